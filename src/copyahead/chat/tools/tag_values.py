"""Values of calls that are written as plain text between tags: what they are in JSON.

The text itself does not say whether `7` is a number or a text; the tool's JSON schema does. Where
it says nothing, a value is a text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

Kinds = frozenset[str]
"""Kinds of JSON values; empty where any may come."""

_ANY: Kinds = frozenset()
_KINDS = {"integer": "number"}
_PARTS = {
    "object": ("properties", "patternProperties", "additionalProperties"),
    "array": ("items", "prefixItems"),
}
"""What only schemas of these kinds have: some leave the type out."""
_NESTED = frozenset({"$ref", "anyOf", "oneOf", "allOf"})
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null"}


def kinds_of(schema: Any, root: Mapping[str, Any]) -> Kinds:
    """The kinds of values that `schema` allows; `root` is the schema that it stands in."""
    found: set[str] = set()
    seen: set[str] = set()
    pending = [schema]
    while pending:
        one = pending.pop()
        if not isinstance(one, Mapping):
            return _ANY
        if "$ref" in one:
            reference = str(one["$ref"])
            # What has been seen adds nothing, and may refer to itself.
            pending += [] if reference in seen else [referred(reference, root)]
            seen.add(reference)
            continue
        alternatives = one.get("anyOf", one.get("oneOf"))
        named = _named(one)
        if named:
            found |= named
        elif isinstance(alternatives, list) and alternatives:
            pending += alternatives
        elif isinstance(one.get("allOf"), list):
            pending.append(_telling(one["allOf"], root))
        else:
            return _ANY
    return frozenset(found)


def _telling(parts: Sequence[Any], root: Mapping[str, Any]) -> Any:
    """The first of the parts that a value has to follow that says what it is; None if none does."""
    for part in parts:
        schema = part
        if isinstance(part, Mapping) and "$ref" in part:
            schema = referred(str(part["$ref"]), root)
        if isinstance(schema, Mapping) and (_named(schema) or not _NESTED.isdisjoint(schema)):
            return part
    return None


def _named(schema: Mapping[str, Any]) -> set[str]:
    """The kinds that a schema names by itself, by its values or by its type."""
    if "const" in schema:
        return {_kind(schema["const"])}
    values, given = schema.get("enum"), schema.get("type")
    if isinstance(values, list):
        return set(map(_kind, values))
    if given is None:
        given = [kind for kind, keys in _PARTS.items() if any(key in schema for key in keys)]
    names = given if isinstance(given, list) else [given]
    kinds = {_KINDS.get(str(name), str(name)) for name in names}
    return kinds | {"null"} if kinds and schema.get("nullable") is True else kinds


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    """What `#/...` points at in `root`; None where it points at nothing."""
    found: Any = root
    if not reference.startswith("#"):
        return None
    for part in filter(None, reference[1:].split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def is_text(kinds: Kinds) -> bool:
    """Whether a value is a text whatever it looks like."""
    return kinds <= {"string"}


def as_json(text: str, kinds: Kinds) -> str:
    """The JSON of a value: as it stands where it is one of `kinds`, and else as a text."""
    if is_text(kinds):
        return json.dumps(text, ensure_ascii=False)
    word = text.strip()
    # Templates print True and None, so models write them.
    word = _WORDS.get(word.lower(), word)
    try:
        kind = _kind(json.loads(word, parse_constant=_refuse))
    except (ValueError, RecursionError):
        kind = "string"
    return word if kind in kinds - {"string"} else json.dumps(text, ensure_ascii=False)


def as_text(value: Any) -> str:
    """How a model writes a value."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
