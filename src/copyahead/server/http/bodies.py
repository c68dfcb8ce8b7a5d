"""From the bytes of a body to its model, up to the first fault.

The framework would collect every fault: a list of a million wrong items costs gigabytes then.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TypeVar

from pydantic import ValidationError

from copyahead.server.errors import ApiError
from copyahead.server.http.text_limit import TextLimit
from copyahead.server.wire import Wire, field_names

MAX_VALUES = 1_000_000
"""Numbers, texts, lists and objects that one body may hold. Each is small on the wire and may take
two hundred bytes in memory."""
MAX_CONTAINERS = 30_000
"""Lists and objects among them. Each costs ten times as much as a number, in calls during which
nothing else runs in the process: 100,000 of them kept it busy for 300 ms."""

_PIECE = 2**16
"""Characters."""

Body = TypeVar("Body", bound=Wire)


def weight(data: bytes) -> int:
    """Its bytes, and a hundred for each list and object: so much longer do these take to read."""
    return len(data) + 100 * (data.count(b"[") + data.count(b"{"))


def read_body(data: bytes, model: type[Body], limit: TextLimit) -> Body:
    """`data` as a `model`; ApiError names the first fault, or the text that cannot fit `limit`."""
    if not data:
        raise no_object()
    try:
        text = data.decode("utf-8-sig")
        check_size(text)
        given = json.loads(text)
    except RecursionError:
        raise too_deep() from None
    except ValueError as error:
        if isinstance(error, ApiError):
            raise
        raise ApiError("the body is not valid JSON in UTF-8", code="invalid_json") from None
    try:
        body = model.model_validate(given)
    except ValidationError as error:
        raise _wrong_value(error) from None
    for field, texts in body.prompts():
        limit.check(field, texts)
    return body


def check_size(text: str) -> None:
    """Raise ApiError where a JSON text holds too many values, before they are made."""
    for limit, what, count in (
        (MAX_VALUES, "values", _num_values),
        (MAX_CONTAINERS, "lists and objects", _num_containers),
    ):
        if count(text) > limit and count(_outside_strings(text)) > limit:
            raise ApiError(
                f"the body holds more than {limit} {what}: send fewer and longer texts, or less",
                status=413,
                code="body_too_large",
            )


def _outside_strings(text: str) -> str:
    """A JSON text without its strings, piece by piece: one call that does it all takes a second
    over a large body, in which nothing else runs."""
    text = text.replace("\\\\", "").replace('\\"', "")
    outside, is_inside = [], False
    for start in range(0, len(text), _PIECE):
        parts = text[start : start + _PIECE].split('"')
        outside += parts[is_inside::2]
        is_inside ^= len(parts) % 2 == 0
    return "".join(outside)


def _num_containers(text: str) -> int:
    """No fewer than the lists and objects in a JSON text; brackets in its strings are counted
    too."""
    return text.count("[") + text.count("{")


def _num_values(text: str) -> int:
    """The same for all its values."""
    return 1 + text.count(",") + _num_containers(text)


def no_object() -> ApiError:
    """The refusal of a body that holds no fields at all."""
    return ApiError(
        "the body must be a JSON object, sent as application/json", code="invalid_value"
    )


def too_deep() -> ApiError:
    """The refusal of lists in lists in lists."""
    return ApiError("the body is nested too deeply", code="invalid_json")


def _wrong_value(error: ValidationError) -> ApiError:
    """The first of a body's faults, by the name of its field."""
    first = error.errors(include_url=False, include_context=False)[0]
    # Names of a union's alternatives stand in the path too; numbers before them are items.
    names = _names()
    parts = [part for part in first["loc"] if part in names or isinstance(part, int)]
    param = ".".join(map(str, parts)) or None
    if param is None:
        return no_object()
    what = str(first["msg"]).removeprefix("Input should").removeprefix("Value error,").strip()
    verb = "must" if str(first["msg"]).startswith("Input should") else "is wrong:"
    if first["type"] == "missing":
        verb, what = "is", "missing"
    if first["type"] == "float_type" and type(first["input"]) is int:
        what = "be from -1e308 to 1e308"
    return ApiError(f"{param} {verb} {what}", param=param, code="invalid_value")


@cache
def _names() -> frozenset[str]:
    return field_names()
