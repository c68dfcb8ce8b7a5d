"""What clients send on every route, as models, and checks of values.

Unknown fields are ignored; wrong types are refused by name. What only one API has stands with its
routes (`openai/`, `anthropic/`).

Ranges are checked where the values are used (`copyahead.sampling`, `copyahead.engine.request`),
so that they are written down once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import core_schema

from copyahead.engine.text import MAX_STOP_LENGTH
from copyahead.sampling import SamplingOptions
from copyahead.server.errors import ApiError

MAX_BIASES = 4096
"""Entries of logit_bias."""
MAX_STOPS = 16
"""Stop strings a request may give. OpenAI allows 4; agents send more."""

RENAMES = {
    "json_schema": "response_format",
    "policy": "speculative.policy",
    "max_draft_tokens": "speculative.max_draft_tokens",
}
"""Fields of `engine.request.Request` that have another name on the wire."""


class Wire(BaseModel):
    """Base of everything that clients send."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _pass_on(cls, given: Any) -> Any:
        """`given`. A thread can let go of the interpreter where a function in Python begins, and
        pydantic, which reads a whole body in one call, has none of its own."""
        return given

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """No list is read beyond its first bad item: a fault takes a thousand times its room."""
        schema = handler(source)
        pending: list[Any] = [schema]
        while pending:
            one = pending.pop()
            if isinstance(one, dict):
                if one.get("type") == "list":
                    one["fail_fast"] = True
                pending += one.values()
            elif isinstance(one, list | tuple):
                pending += one
        return schema

    def prompts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Each text that has to fit the context, in parts, after the name of its field."""
        yield from ()


class StreamOptions(Wire):
    """What else a stream holds."""

    include_usage: bool | None = Field(None, description="End with a chunk that holds the usage.")


class Speculative(Wire):
    """How drafts are copied for this request. None of it changes the text."""

    enabled: bool | None = Field(None, description="Draft at all.")
    policy: str | None = Field(
        None,
        description="Length policy: `name` or `name:knob=value`; beside a draft model also "
        "`POLICY+RULE`, `POLICY+off` and `model`.",
    )
    max_draft_tokens: int | None = Field(None, description="Longest draft; 0 drafts nothing.")


class TextPart(Wire):
    """One part of a message's content."""

    type: str
    text: str | None = None


class Prediction(Wire):
    """Text that the answer is expected to repeat."""

    type: Literal["content"] = "content"
    content: str | list[TextPart]


class JsonSchema(Wire):
    """A schema for the answer."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)

    name: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    """The form of the answer."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    plain_schema: dict[str, Any] | bool | None = Field(
        None, alias="schema", description="As llama.cpp's server takes it."
    )


def _check_bias(given: Any) -> Any:
    """Stop at the first bad entry; pydantic does so for lists only."""
    if not isinstance(given, dict):
        return given
    if len(given) > MAX_BIASES:
        raise ValueError(f"it holds {len(given)} tokens, and at most {MAX_BIASES} are allowed")
    for token, bias in given.items():
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise ValueError(f"the bias of token {token[:20]} must be a number")
    return given


class SamplingFields(Wire):
    """How tokens are chosen; the same on every route. See `copyahead.sampling` for the ranges."""

    temperature: float | None = Field(None, description="0 is greedy; 1 when not given.")
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    logit_bias: Annotated[dict[str, float], BeforeValidator(_check_bias)] | None = Field(
        None, description=f"At most {MAX_BIASES} tokens."
    )
    seed: int | None = Field(None, description="Any whole number; taken modulo 2**32.")

    def sampling(self, *, default_temperature: float) -> SamplingOptions:
        """The options; RequestError for a value out of range."""
        given = {
            name: value
            for name in SamplingFields.model_fields
            if name not in {"logit_bias", "seed"} and (value := getattr(self, name)) is not None
        }
        given.setdefault("temperature", default_temperature)
        if self.seed is not None:
            given["seed"] = self.seed % 2**32
        return SamplingOptions(**given, logit_bias=self._bias())

    def _bias(self) -> dict[int, float]:
        try:
            return {int(token): bias for token, bias in (self.logit_bias or {}).items()}
        except ValueError:
            message = "logit_bias must have token ids as keys"
            raise ApiError(message, param="logit_bias", code="invalid_value") from None


class FormFields(Wire):
    """The form of the answer, as other APIs and other servers' clients spell it."""

    json_schema: Any = Field(None, description="A JSON schema, or its text.")
    guided_json: Any = Field(None, description="The same.")
    guided_regex: Any = Field(None, description="A regular expression for the whole answer.")
    regex: Any = Field(None, description="The same.")
    guided_choice: Any = Field(None, description="The texts of which the answer is one.")
    structured_outputs: dict[str, Any] | None = Field(
        None, description="json, json_object, regex or choice."
    )
    guided_grammar: Any = Field(None, description="Refused, as are the next three.")
    grammar: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    response_format: Any = Field(None, description="Refused where it is another API's.")
    text: Any = Field(None, description="The same of text.format.")
    output_config: Any = Field(None, description="The same.")
    output_format: Any = Field(None, description="The same.")


class CommonFields(SamplingFields, FormFields):
    """What the bodies of all routes that write an answer share."""

    model: str | None = Field(None, description="Ignored: the server has one model.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = Field(None, description="-1 or null: until the context is full.")
    min_tokens: int | None = None
    stop: str | list[str] | None = Field(None, description="null and [] are the same as absent.")
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    speculative: Speculative | None = None
    prediction: Prediction | None = None
    include_copied: bool | None = Field(
        None, description="Say in a field `copied` which text was copied."
    )
    user: str | None = None

    def check(self) -> None:
        """Raise ApiError for what the route of this body cannot do."""

    def prompts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Each text that has to fit the context, in parts, after the name of its field."""
        if self.prediction is not None:
            content = self.prediction.content
            parts = [content] if isinstance(content, str) else [p.text or "" for p in content]
            yield "prediction", parts

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings; ApiError for an empty one or too many."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if any(stop == "" for stop in stops):
            raise ApiError(
                "stop must not hold an empty text: leave it out", param="stop", code="invalid_value"
            )
        if len(stops) > MAX_STOPS:
            raise ApiError(
                f"stop holds {len(stops)} texts, and at most {MAX_STOPS} are allowed",
                param="stop",
                code="invalid_value",
            )
        check_stop_lengths(stops, "stop")
        return stops


def check_stop_lengths(stops: Sequence[str], param: str) -> None:
    """Raise ApiError for a stop string that is too long."""
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_LENGTH:
        raise ApiError(
            f"{param} holds a text of {longest} characters, and at most {MAX_STOP_LENGTH} are "
            "allowed",
            param=param,
            code="invalid_value",
        )


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return f"{prefix}{uuid.uuid4().hex}"


def now() -> int:
    """Seconds since 1970, as `created` fields have them."""
    return int(time.time())


def budget(field: str, value: int | None) -> int | None:
    """The tokens to write: None for null and -1; ApiError for other negative numbers."""
    if value is None or value == -1:
        return None
    if value < 0:
        message = f"{field} must be 0 or more, or -1 for no limit, not {value}"
        raise ApiError(message, param=field, code="invalid_value")
    return value


def schema_of(given: ResponseFormat | None, field: str) -> dict[str, Any] | bool | None:
    """The JSON schema that an answer has to follow; None where it is free. ApiError for a form,
    named `field`, that is not whole or holds what is not known."""
    if given is None:
        return None
    check_form(given, field)
    inner = given.json_schema.json_schema if given.json_schema is not None else None
    if inner is not None and given.plain_schema is not None:
        raise ApiError(f"{field} holds two schemas: give one", param=field, code="invalid_value")
    schema = given.plain_schema if inner is None else inner
    if given.type == "text" and schema is not None:
        raise ApiError(
            f"{field} holds a schema and is of type text: make it json_schema",
            param=f"{field}.type",
            code="invalid_value",
        )
    if given.type == "json_schema" and schema is None:
        raise ApiError(
            f"{field} of type json_schema needs json_schema.schema",
            param=field,
            code="invalid_value",
        )
    return {"type": "object"} if given.type == "json_object" and schema is None else schema


_FORM_KEYS = frozenset({"name", "strict", "description"})
"""What a form may hold besides, which changes nothing."""


def check_form(given: Wire, field: str) -> None:
    """Raise ApiError for a form of the answer, named `field`, with a key that is not known."""
    for key, value in (given.model_extra or {}).items():
        if value is not None and key not in _FORM_KEYS:
            raise not_supported(f"{field}.{key}", "give the schema as OpenAI's clients do")


def joined(content: str | list[TextPart] | None, param: str) -> str | None:
    """Content as one text; ApiError for a part that is not text."""
    if content is None or isinstance(content, str):
        return content
    for part in content:
        if part.text is None:
            message = f"{param} holds a part of type {part.type}, and the model reads text only"
            raise ApiError(message, param=param, code="invalid_value")
    return "".join(part.text or "" for part in content)


def text_field(part: Mapping[str, Any], name: str, where: str) -> str:
    """The text under `name` in a part of a body, which `where` names; ApiError where it is none."""
    value = part.get(name)
    if not isinstance(value, str):
        field = f"{where}.{name}"
        raise ApiError(f"{field} must be a text", param=field, code="invalid_value")
    return value


def not_supported(field: str, reason: str) -> ApiError:
    """The refusal of a field that a route cannot honour."""
    return ApiError(f"{field} is not supported: {reason}", param=field, code="unsupported_value")


def field_names() -> frozenset[str]:
    """Every name that may stand in a body; tells fields from the names of alternatives."""
    names: set[str] = set()
    pending: list[type[Wire]] = [Wire]
    while pending:
        model = pending.pop()
        pending += model.__subclasses__()
        names |= set(model.model_fields)
        names |= {f.alias for f in model.model_fields.values() if f.alias is not None}
    return frozenset(names)
