"""What clients send, as models. Unknown fields are ignored; wrong types are refused by name.

Ranges are checked where the values are used (`copyahead.sampling`, `copyahead.engine.request`),
so that they are written down once.
"""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from copyahead.sampling import SamplingOptions
from copyahead.server.errors import ApiError

MAX_STOPS = 16
"""Stop strings a request may give. OpenAI allows 4; agents send more."""

RENAMES = {
    "json_schema": "response_format",
    "policy": "speculative.policy",
    "max_draft_tokens": "speculative.max_draft_tokens",
}
"""Fields of `engine.Request` that have another name on the wire."""


class Wire(BaseModel):
    """Base of everything that clients send."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class StreamOptions(Wire):
    """What else a stream holds."""

    include_usage: bool | None = Field(None, description="End with a chunk that holds the usage.")


class Speculative(Wire):
    """How drafts are copied for this request. None of it changes the text."""

    enabled: bool | None = Field(None, description="Draft at all.")
    policy: str | None = Field(None, description="Length policy: `name` or `name:knob=value`.")
    max_draft_tokens: int | None = Field(None, description="Longest draft; 0 drafts nothing.")


class TextPart(Wire):
    """One part of a message's content."""

    type: str
    text: str | None = None


class Prediction(Wire):
    """Text that the answer is expected to repeat."""

    type: Literal["content"] = "content"
    content: str | list[TextPart]


class FunctionCall(Wire):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str = "{}"


class ToolCall(Wire):
    """A call that the model made earlier."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall


class Message(Wire):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class JsonSchema(Wire):
    """A schema for the answer."""

    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)

    name: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Wire):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


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
    logit_bias: dict[str, float] | None = None
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


class CommonFields(SamplingFields):
    """What chat and text completions share."""

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
        return stops


class ChatRequest(CommonFields):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, description="Wins over max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, or an object that names a function."
    )
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise ApiError for what this route cannot do."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(
                "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value"
            )


class CompletionRequest(CommonFields):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(16, description="-1 or null: until the context is full.")
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None


class TokenizeRequest(Wire):
    """Body of `POST /tokenize`: a text, or messages as the chat route would see them."""

    content: str | None = None
    prompt: str | None = Field(None, description="Another name for content.")
    messages: list[Message] | None = None
    add_special: bool = Field(True, description="Read control tokens, add the leading one.")
    with_pieces: bool = Field(False, description="Also the text of every token.")


class DetokenizeRequest(Wire):
    """Body of `POST /detokenize`."""

    tokens: list[int]


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


def schema_of(given: ResponseFormat | None) -> dict[str, Any] | bool | None:
    """The JSON schema that an answer has to follow; None where it is free."""
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return {"type": "object"}
    if given.json_schema is None or given.json_schema.json_schema is None:
        raise ApiError(
            "response_format of type json_schema needs json_schema.schema",
            param="response_format",
            code="invalid_value",
        )
    return given.json_schema.json_schema


def joined(content: str | list[TextPart] | None, param: str) -> str | None:
    """Content as one text; ApiError for a part that is not text."""
    if content is None or isinstance(content, str):
        return content
    for part in content:
        if part.text is None:
            message = f"{param} holds a part of type {part.type}, and the model reads text only"
            raise ApiError(message, param=param, code="invalid_value")
    return "".join(part.text or "" for part in content)


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
