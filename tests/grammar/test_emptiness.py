"""Parts of a schema that no value follows: against a slow search, and where answers meet them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.errors import RequestError
from copyahead.grammar import emptiness
from copyahead.grammar.compiler import Grammar, GrammarCompiler
from copyahead.grammar.emptiness import pruned
from copyahead.testing import ToyTokenizer

pytest.importorskip("llguidance")

BYTES = ToyTokenizer([b"", *(bytes([byte]) for byte in range(256))])
COMPILER = GrammarCompiler(BYTES, BYTES.vocab_size)
ITSELF = {"$ref": "#/$defs/n"}
ENDLESS: Any = {
    "a reference to itself": ITSELF,
    "a member that must be there": {"type": "object", "properties": {"n": ITSELF},
                                    "required": ["n"]},
    "a list that is never empty": {"type": "array", "items": ITSELF, "minItems": 1},
    "a first item": {"type": "array", "prefixItems": [{}, ITSELF], "minItems": 2},
    "members of any name": {"type": "object", "additionalProperties": ITSELF, "required": ["n"]},
    "every alternative": {"anyOf": [ITSELF, {"type": "array", "items": ITSELF, "minItems": 1}]},
    "one of several parts": {"allOf": [{"type": "object"}, ITSELF]},
    "parts that ask for it together": {
        "allOf": [{"type": "object", "properties": {"n": ITSELF}}, {"required": ["n"]}]
    },
    "an alternative that asks for a member": {
        "type": "object", "properties": {"n": ITSELF}, "anyOf": [{"required": ["n"]}]
    },
}  # fmt: skip


@pytest.mark.parametrize("definition", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_needs_itself_without_end_is_refused_where_it_is_required(definition: Any) -> None:
    schemas: list[Any] = [
        {**ITSELF, "$defs": {"n": definition}},
        {"type": "object", "properties": {"a": ITSELF}, "required": ["a"],
         "$defs": {"n": definition}},
    ]  # fmt: skip
    for schema in schemas:
        before = json.dumps(schema)
        assert pruned(schema) is False
        assert json.dumps(schema) == before
        with pytest.raises(RequestError, match="json_schema allows no value") as caught:
            COMPILER.compile(Grammar("json_schema", before))
        assert caught.value.field == "json_schema"


@pytest.mark.parametrize("definition", ENDLESS.values(), ids=ENDLESS.keys())
def test_and_is_left_out_where_it_is_optional(definition: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"a": ITSELF, "b": {"anyOf": [ITSELF, {"type": "null"}]},
                       "c": {"type": "array", "items": ITSELF}},
        "additionalProperties": False,
        "$defs": {"n": definition},
    }  # fmt: skip
    assert taken(schema, '{"b":null,"c":[]}')
    for text in ('{"a', '{"b":{', '{"b":[', '{"c":[{', '{"c":[['):
        assert not taken(schema, text)


def taken(schema: Any, text: str) -> bool:
    """Whether an answer by `schema` may begin with `text`."""
    state = COMPILER.compile(Grammar("json_schema", json.dumps(schema)))
    try:
        for token in BYTES.encode(text):
            state.accept(token)
    except RequestError:
        return False
    return True


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"left": {"$ref": "#"}}},
        {"type": ["object", "null"], "properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"properties": {"n": {"$ref": "#"}}, "required": ["n"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]},
        {"$ref": "elsewhere.json"},
        {"$ref": "#/nowhere"},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {}}},
        {"type": "number", "allOf": [{"type": "integer"}, {"$ref": "#/$defs/x"}],
         "$defs": {"x": True}},
        {"required": [["a"]], "properties": 3, "items": 4, "anyOf": 5, "$ref": 6, "type": {}},
    ],
)  # fmt: skip
def test_what_some_value_follows_is_left_as_it_is(schema: Any) -> None:
    assert pruned(schema) is schema


def test_true_is_any_json_and_false_is_refused() -> None:
    state = COMPILER.compile(Grammar("json_schema", "true"))
    for token in BYTES.encode('[{"a": 1}, null]'):
        state.accept(token)
    assert state.complete
    with pytest.raises(RequestError, match="json_schema allows no value"):
        COMPILER.compile(Grammar("json_schema", "false"))


PLACES = st.sampled_from([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"type": "null"}, False])


def _made(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.tuples(inner, st.booleans(), inner, st.booleans()).map(
        lambda of: {
            "type": "object",
            "properties": {"x": of[0], "y": of[2]},
            "required": [name for name, needed in (("x", of[1]), ("y", of[3])) if needed],
        }
    )
    lists = st.tuples(inner, st.integers(0, 2)).map(
        lambda of: {"type": "array", "items": of[0], "minItems": of[1]}
    )
    return objects | lists | st.lists(inner, min_size=1, max_size=2).map(lambda of: {"anyOf": of})


SCHEMAS = st.recursive(PLACES, _made, max_leaves=6)


def has_value(schema: Any, root: Mapping[str, Any], depth: int) -> bool:
    """Whether some value follows `schema` that takes at most `depth` steps to build."""
    if isinstance(schema, bool) or depth == 0:
        return schema is True
    if "$ref" in schema:
        return has_value(root["$defs"][schema["$ref"][-1]], root, depth - 1)
    if "anyOf" in schema:
        return any(has_value(arm, root, depth - 1) for arm in schema["anyOf"])
    needed = [schema["properties"][name] for name in schema.get("required", ())]
    needed += [schema["items"]] if schema.get("minItems") else []
    return all(has_value(each, root, depth - 1) for each in needed)


@given(SCHEMAS, SCHEMAS, SCHEMAS)
def test_it_finds_what_a_slow_search_finds(top: Any, a: Any, b: Any) -> None:
    schema = {"anyOf": [top], "$defs": {"a": a, "b": b}}
    if not any("$ref" in json.dumps(each) for each in (top, a, b)):
        return
    assert (pruned(schema) is not False) == has_value(schema, schema, 30)


def test_schemas_that_refer_to_each_other_a_lot_take_bounded_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conditions = []
    node = emptiness._Possible._node

    def counted(self: Any, schema: Any) -> int:
        conditions.append(schema)
        return node(self, schema)

    monkeypatch.setattr(emptiness._Possible, "_node", counted)
    names = [f"n{number}" for number in range(1000)]
    also = [{"$ref": "#/$defs/all"}, {"$ref": "#/$defs/n0"}]
    definitions: Any = {name: {"type": "object", "allOf": also} for name in names}
    schema = {"$ref": "#/$defs/n0", "$defs": {**definitions, "all": {"required": names}}}
    assert pruned(json.loads(json.dumps(schema))) is False
    assert len(conditions) < 200_000
