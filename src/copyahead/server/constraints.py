"""The form that a request asks for, in the spellings of several servers' clients.

OpenAI's and Anthropic's own stand with their routes. What vLLM's, SGLang's and llama.cpp's clients
send beside them is read here, on every route; what cannot be kept is refused by its name, and
nothing of the kind is ever ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from copyahead.chat.tools.formats import lark_text
from copyahead.server.errors import ApiError
from copyahead.server.wire import CommonFields, ResponseFormat, not_supported, schema_of

Json = dict[str, Any]


class Constraint(NamedTuple):
    """What holds the text of an answer: a schema or a rule, and the field that it comes from."""

    field: str = "response_format"
    schema: Json | bool | None = None
    rule: str | None = None
    """An expression of llguidance's Lark."""

    @property
    def is_free(self) -> bool:
        """Whether any text will do."""
        return self.schema is None and self.rule is None

    def for_prompt(self) -> dict[str, Any]:
        """The arguments of `chat.prompt.chat_prompt`."""
        return {"schema": self.schema, "rule": self.rule, "answer_field": self.field}

    def for_engine(self) -> dict[str, str]:
        """The fields of `engine.request.Request`."""
        if self.rule is not None:
            return {"grammar": f"start: {self.rule}\n"}
        return {} if self.schema is None else {"json_schema": json.dumps(self.schema)}


FOREIGN = ("response_format", "text", "output_config", "output_format")
"""Fields for the form of an answer that one API has and others have not."""
_REFUSED = ("grammar", "guided_grammar", "ebnf", "structural_tag")
_HOW = "give a JSON schema, guided_regex or guided_choice"
_STRUCTURED = "structured_outputs"


def constraint_of(body: CommonFields, field: str, own: ResponseFormat | None) -> Constraint:
    """What `body` asks for. `field` and `own`: as its own API spells it.

    ApiError for a spelling that is not known, or for two that are not one.
    """
    _refuse_foreign(body, field)
    for name in _REFUSED:
        if getattr(body, name) is not None:
            raise not_supported(name, _HOW)
    given = {name: getattr(body, name) for name in _READERS}
    structured = body.structured_outputs or {}
    for name, value in structured.items():
        if value is not None and name not in _IN_STRUCTURED and name not in _HARMLESS:
            raise not_supported(f"{_STRUCTURED}.{name}", _HOW)
    found = [_READERS[name](value, name) for name, value in given.items() if value is not None]
    found += [
        read(structured[name], f"{_STRUCTURED}.{name}")
        for name, read in _IN_STRUCTURED.items()
        if structured.get(name) is not None
    ]
    found.append(Constraint(field, schema_of(own, field)))
    found = [each for each in found if not each.is_free]
    if len(found) > 1:
        names = " and ".join(each.field for each in found)
        raise ApiError(
            f"{names} exclude each other: give one", param=found[0].field, code="invalid_value"
        )
    return found[0] if found else Constraint(field)


def _refuse_foreign(body: CommonFields, field: str) -> None:
    own = field.partition(".")[0]
    for name in FOREIGN:
        # Anthropic's clients know two names for the same thing.
        is_own = name == own or {name, own} == {"output_config", "output_format"}
        value = getattr(body, name, None)
        if value is not None and not is_own:
            if name == "text" and not (isinstance(value, Mapping) and value.get("format")):
                continue
            raise not_supported(name, f"on this route, give {field}")


def _read_schema(value: Any, field: str) -> Constraint:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _wrong(field, "a JSON schema") from None
    if not isinstance(value, dict | bool):
        raise _wrong(field, "a JSON schema")
    return Constraint(field, schema=value)


def _read_object(value: Any, field: str) -> Constraint:
    if not isinstance(value, bool):
        raise _wrong(field, "true or false")
    return Constraint(field, schema={"type": "object"} if value else None)


def _read_regex(value: Any, field: str) -> Constraint:
    if not isinstance(value, str) or not value:
        raise _wrong(field, "a regular expression")
    pattern = value.replace("\n", r"\n").replace("\r", r"\r")
    return Constraint(field, rule=f"/{_without_slashes(pattern)}/")


def _without_slashes(pattern: str) -> str:
    """The pattern with a backslash before each slash: Lark's patterns end with a bare one."""
    escaped, is_escape = [], False
    for char in pattern:
        escaped.append("\\/" if char == "/" and not is_escape else char)
        is_escape = char == "\\" and not is_escape
    return "".join(escaped)


def _read_choice(value: Any, field: str) -> Constraint:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) and v for v in value):
        raise _wrong(field, "a list of texts, none of them empty")
    return Constraint(field, rule=" | ".join(map(lark_text, value)))


def _wrong(field: str, what: str) -> ApiError:
    return ApiError(f"{field} must be {what}", param=field, code="invalid_value")


_READERS = {
    "json_schema": _read_schema,
    "guided_json": _read_schema,
    "guided_regex": _read_regex,
    "regex": _read_regex,
    "guided_choice": _read_choice,
}
_IN_STRUCTURED = {
    "json": _read_schema,
    "json_object": _read_object,
    "regex": _read_regex,
    "choice": _read_choice,
}
"""What vLLM's `structured_outputs` holds."""
_HARMLESS = frozenset(
    {"disable_fallback", "disable_any_whitespace", "disable_additional_properties",
     "whitespace_pattern"}
)  # fmt: skip
"""Settings of vLLM's that say how, and not what."""
