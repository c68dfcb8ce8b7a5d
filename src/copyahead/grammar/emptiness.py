"""Finds the parts of a JSON schema that no value can follow, before a model is led into one.

A schema that needs itself (`{"$ref": "#/$defs/n"}` defined as itself, or an object that must hold
another one like it) describes no finite value. llguidance compiles it all the same, and an answer
that has come as far as there cannot go on. Here such parts become `false`, with which llguidance
leaves out what is optional and refuses what is required.

What is possible is derived from what needs nothing, as in Horn clauses: linear in the schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

Schema = Mapping[str, Any] | bool

_MAX_PARTS = 64
"""Most schemas that are read together as one."""
_MAX_STEPS = 50_000
"""Most steps that reading schemas together takes; after that each is read by itself."""
_ALTERNATIVES = ("anyOf", "oneOf")
_LISTS = (*_ALTERNATIVES, "allOf", "prefixItems", "items")
_MAPPINGS = ("properties", "patternProperties")
_SINGLE = ("additionalProperties", "items", "additionalItems")


def pruned(schema: Any) -> Any:
    """`schema` with `false` for each part that no value follows; itself where there is none.

    `schema` is not changed. Raises RecursionError for one that is nested too deeply for JSON.
    """
    if not isinstance(schema, Mapping):
        return schema
    found = _Possible(schema)
    # The compiler itself finds what is impossible without recursion.
    if not found.has_references or not found.impossible():
        return schema
    if not found.holds(schema):
        return False
    copied = json.loads(json.dumps(schema))
    for container, key in _Possible(copied).impossible():
        container[key] = False
    return copied


class _Possible:
    """Which of the schemas that `root` reaches some value follows."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0
        self._anchors: dict[str, Any] = {}
        self._nodes: dict[int, int] = {}
        self._needs: list[int] = []
        """For each node, how many more of its conditions must hold."""
        self._waiting: list[list[int]] = []
        """For each node, those of which it is a condition."""
        self._schemas = self._reachable()
        self.has_references = any("$ref" in schema for schema in self._schemas)
        if not self.has_references:
            return
        for schema in self._schemas:
            self._nodes[id(schema)] = self._add(1)
        for schema in self._schemas:
            self._derive(schema)
        self._settle()

    def holds(self, schema: Any) -> bool:
        """Whether some value follows `schema`; what is no schema is left to the compiler."""
        if not isinstance(schema, Mapping):
            return schema is not False
        return self._needs[self._nodes[id(schema)]] <= 0

    def impossible(self) -> list[tuple[Any, Any]]:
        """The places, container and key, of the schemas that no value follows; a root that is one
        is in the list, too."""
        places: list[tuple[Any, Any]] = [] if self.holds(self._root) else [({}, "")]
        for schema in self._schemas:
            places += [
                (container, key)
                for container, key in _places(schema)
                if isinstance(container[key], Mapping) and not self.holds(container[key])
            ]
        return places

    def _reachable(self) -> list[Mapping[str, Any]]:
        found: dict[int, Mapping[str, Any]] = {}
        pending: list[Any] = [self._root]
        references: list[str] = []
        while pending or references:
            if not pending:
                pending.append(self._target(references.pop()))
            schema = pending.pop()
            if not isinstance(schema, Mapping) or id(schema) in found:
                continue
            found[id(schema)] = schema
            for name in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(name), str):
                    self._anchors.setdefault(schema[name], schema)
            for name in ("$defs", "definitions"):
                if isinstance(schema.get(name), Mapping):
                    pending += schema[name].values()
            pending += [container[key] for container, key in _places(schema)]
            if isinstance(schema.get("$ref"), str):
                references.append(schema["$ref"])
        return list(found.values())

    def _target(self, reference: str) -> Any:
        """What `#...` points at; None where it points at nothing that is known here."""
        if not reference.startswith("#"):
            return None
        if not reference.startswith("#/"):
            return self._anchors.get(reference[1:]) if reference != "#" else self._root
        found: Any = self._root
        for part in unquote(reference[2:]).split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found

    def _add(self, needs: int) -> int:
        self._needs.append(needs)
        self._waiting.append([])
        return len(self._needs) - 1

    def _all_of(self, nodes: Sequence[int]) -> int:
        node = self._add(len(nodes))
        for each in nodes:
            self._waiting[each].append(node)
        return node

    def _any_of(self, nodes: Sequence[int]) -> int:
        node = self._add(1)
        for each in nodes:
            self._waiting[each].append(node)
        return node

    def _node(self, schema: Any) -> int:
        """The node of a schema, of one that always holds, or of one that never does."""
        if isinstance(schema, Mapping):
            return self._nodes[id(schema)]
        return self._add(1 if schema is False else 0)

    def _derive(self, schema: Mapping[str, Any]) -> None:
        """What must hold so that some value follows `schema`."""
        conditions = [self._node(each) for each in self._also(schema)]
        own = self._parts(schema)
        for name in _ALTERNATIVES:
            arms = schema.get(name)
            if isinstance(arms, list) and arms:
                ways = [
                    self._all_of([self._node(arm), self._value([*own, *self._parts(arm)])])
                    for arm in arms
                ]
                conditions.append(self._any_of(ways))
        conditions.append(self._value(own))
        self._waiting[self._all_of(conditions)].append(self._nodes[id(schema)])

    def _also(self, schema: Any) -> list[Any]:
        """The schemas that a value of `schema` has to follow besides."""
        if not isinstance(schema, Mapping):
            return []
        reference, parts = schema.get("$ref"), schema.get("allOf")
        target = self._target(reference) if isinstance(reference, str) else None
        return [*([] if target is None else [target]), *(parts if isinstance(parts, list) else [])]

    def _parts(self, schema: Any) -> list[Mapping[str, Any]]:
        """`schema` and what its values have to follow besides, as far as there is time for that."""
        parts: dict[int, Mapping[str, Any]] = {}
        pending = [schema]
        while pending and len(parts) < _MAX_PARTS:
            one = pending.pop()
            if isinstance(one, Mapping) and id(one) not in parts:
                parts[id(one)] = one
                also = self._also(one) if self._steps < _MAX_STEPS else []
                self._steps += 1 + len(also)
                pending += also[:_MAX_PARTS]
        return list(parts.values())

    def _value(self, parts: Sequence[Mapping[str, Any]]) -> int:
        """A node for values that follow all `parts`, by the kinds of value that they allow."""
        if any("const" in part or "enum" in part for part in parts):
            return self._add(0)
        kinds = _kinds(parts)
        if kinds is None or not kinds <= {"object", "array"}:
            return self._add(0)
        ways = []
        if "object" in kinds:
            ways.append(self._all_of([self._node(each) for each in self._members(parts)]))
        if "array" in kinds:
            ways.append(self._all_of([self._node(each) for each in self._items(parts)]))
        return self._any_of(ways)

    def _members(self, parts: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        """The schemas of the members that an object must have."""
        if self._steps >= _MAX_STEPS:
            parts = parts[:1]
        for part in parts:
            required = part.get("required")
            for name in required if isinstance(required, list) else ():
                self._steps += len(parts)
                if not isinstance(name, str):
                    continue
                for other in parts:
                    properties = other.get("properties")
                    if isinstance(properties, Mapping) and name in properties:
                        yield properties[name]
                    elif "patternProperties" not in other:
                        yield other.get("additionalProperties", True)

    def _items(self, parts: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
        """The schemas of the items that a list must have."""
        given = [part.get("minItems") for part in parts]
        least = max((count for count in given if isinstance(count, int)), default=0)
        for part in parts:
            items, first = part.get("items"), part.get("prefixItems")
            if isinstance(items, list):
                first, items = items, part.get("additionalItems")
            listed = first if isinstance(first, list) else []
            yield from listed[:least]
            if least > len(listed):
                yield items

    def _settle(self) -> None:
        """Derive all that can be."""
        ready = [node for node, needs in enumerate(self._needs) if needs == 0]
        while ready:
            for node in self._waiting[ready.pop()]:
                self._needs[node] -= 1
                if self._needs[node] == 0:
                    ready.append(node)


def _kinds(parts: Sequence[Mapping[str, Any]]) -> set[str] | None:
    """The types of value that all `parts` name; None where none names any."""
    common: set[str] | None = None
    for part in parts:
        if "type" in part:
            named = part["type"] if isinstance(part["type"], list) else [part["type"]]
            kinds = {"number" if kind == "integer" else str(kind) for kind in named}
            common = kinds if common is None else common & kinds
    return common


def _places(schema: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Container and key of each schema that stands in `schema` itself."""
    for name in _SINGLE:
        if name in schema:
            yield schema, name
    for name in _LISTS:
        if isinstance(schema.get(name), list):
            yield from ((schema[name], place) for place in range(len(schema[name])))
    for name in _MAPPINGS:
        if isinstance(schema.get(name), Mapping):
            yield from ((schema[name], key) for key in schema[name])
