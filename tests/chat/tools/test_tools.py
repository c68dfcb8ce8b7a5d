"""Tools: what a request may give, what a grammar asks for, and calls found in any cutting."""

from __future__ import annotations

import json
import re
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.chat.reasoning import THINK
from copyahead.chat.tools.definitions import (
    ToolSelection,
    check_tools,
    describe,
    grammar_for,
    select_tools,
    tool_names,
)
from copyahead.chat.tools.formats import (
    ARGUMENT_TAGS,
    FUNCTION_TAGS,
    HERMES,
    JSON,
    JSON_LIST,
    LLAMA,
    JsonFormat,
    ToolFormat,
    format_of,
)
from copyahead.chat.tools.stream import (
    ParserEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolParser,
    joined,
)
from copyahead.errors import RequestError
from copyahead.grammar.compiler import Grammar, GrammarCompiler
from copyahead.testing import ToyTokenizer, rechunk

FORMS = (HERMES, LLAMA, JSON, JSON_LIST)
TAGGED = (FUNCTION_TAGS, ARGUMENT_TAGS)
Found = tuple[str, list[tuple[str, str]]]
"""The text of an answer, and name and arguments of each call."""


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def parse(chunks: list[str], parser: ToolParser) -> list[ParserEvent]:
    """All events; checks what holds for any of them."""
    events = [event for chunk in chunks for event in parser.push(chunk)] + parser.finish()
    started: list[str] = []
    for event in events:
        match event:
            case TextDelta(text):
                assert text, "an empty text"
            case ToolCallStart(index, call_id, name):
                assert index == len(started), "calls are numbered in order"
                assert call_id not in started, "an id appears twice"
                assert name, "a call without a name"
                started.append(call_id)
            case ToolCallDelta(index, arguments):
                assert arguments, "an empty delta"
                assert index == len(started) - 1, "a delta of another call than the last"
    return joined(events)


def found(chunks: list[str], form: ToolFormat, names: list[str]) -> Found:
    """What an answer holds, joined."""
    return told(chunks, form, check_tools([tool(name) for name in names]))


def told(chunks: list[str], form: ToolFormat, tools: list[Any]) -> Found:
    """The same, with tools that have schemas."""
    text, calls = "", []
    for event in parse(chunks, form.parser(tools)):
        match event:
            case TextDelta(more):
                text += more
            case ToolCallStart(name=name):
                calls.append((name, ""))
            case ToolCallDelta(_, more):
                calls[-1] = (calls[-1][0], calls[-1][1] + more)
    return text, calls


SHORT = JsonFormat("short", "<c>", "</c>")
BARE = JsonFormat("bare")


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ('<c>{"name":"f"}</c>', SHORT, ("", [("f", "{}")])),
        ('a<c>{"name":"f"}', SHORT, ("a", [("f", "{}")])),
        ('<c>{"name":"f"</c>', SHORT, ('<c>{"name":"f"</c>', [])),
        ("a <c>no</c>", SHORT, ("a <c>no</c>", [])),
        ("<<c></c", SHORT, ("<<c></c", [])),
        (" \n<c>\n{}", SHORT, (" \n<c>\n{}", [])),
        ("{1}", BARE, ("{1}", [])),
        ('{"name":"g"}', BARE, ('{"name":"g"}', [])),
        ('{"name":"f"} b', BARE, (" b", [("f", "{}")])),
        ('[{"name":"f"}]', BARE, ("", [("f", "{}")])),
        ("[1]\n[ {", BARE, ("[1]\n[ {", [])),
        (' [{"name":"f"}', BARE, ("", [("f", "{}")])),
        ('a\n {"name":"f"}', BARE, ('a\n {"name":"f"}', [])),
        ('{"name":"f"}[{"name":"f"}]', BARE, ('[{"name":"f"}]', [("f", "{}")])),
        ('{"name":"f"}\n[{"name":"f"}]', BARE, ("", [("f", "{}"), ("f", "{}")])),
    ],
)
def test_every_cutting_of_a_short_answer(text: str, form: ToolFormat, expected: Found) -> None:
    for pieces in (
        re.findall("..?", text, re.S),
        ["", text[0], *re.findall("..?", text[1:], re.S)],
    ):
        for steps in rechunk(pieces):
            assert found(["".join(step) for step in steps], form, ["f"]) == expected


NESTED = '{"a": {"b": [1, {"c": "}"}]}, "d": "say \\"hi\\"\\n{", "e": "</tool_call><tool_call>"}'
WRITE = '{\n  "path": "x.py",\n  "text": "def f():\\n    return \'{\'"\n}'

ANSWERS: list[tuple[str, ToolFormat, Found]] = [
    (
        f'Let me look.\n\n<tool_call>\n{{"name": "f", "arguments": {NESTED}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "g", "arguments": {WRITE}}}\n</tool_call>\nDone.\n',
        HERMES,
        ("Let me look.\nDone.\n", [("f", NESTED), ("g", WRITE)]),
    ),
    (
        f'<tool_call>{{"arguments":{NESTED},"id":"x","name":"f"}}</tool_call>\n\n',
        HERMES,
        ("", [("f", NESTED)]),
    ),
    (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"b\\\\n\\"}"}</tool_call>',
        HERMES,
        ("", [("f", '{"a": "b\\n"}')]),
    ),
    (
        '<tool_call>{"name": "f", "arguments": null}</tool_call>'
        '<tool_call>{"name": "g", "arguments": 12, "more": [1, {"x": "]"}]}</tool_call>',
        HERMES,
        ("", [("f", "{}"), ("g", "12")]),
    ),
    # No arguments at all are an empty object.
    (
        '<tool_call>{"name": "f", "arguments": ""}</tool_call>'
        '<tool_call>{"arguments": " \\n", "name": "g"}</tool_call>',
        HERMES,
        ("", [("f", "{}"), ("g", "{}")]),
    ),
    # Brackets that do not match, a missing one, one too many, a missing end marker.
    (
        '<tool_call>{"name": "f", "arguments": {"a": [1, <b}</tool_call>then'
        '<tool_call>{"name": "g", "arguments": {"a": 1}</tool_call>'
        '<tool_call>{"name": "f", "arguments": {}}}</tool_call>'
        '<tool_call>{"name": "g", "arguments": {}}<tool_call>{"name": "f", "arguments": {}}',
        HERMES,
        (
            "then",
            [("f", '{"a": [1, <b}'), ("g", '{"a": 1}'), ("f", "{}"), ("g", "{}"), ("f", "{}")],
        ),
    ),
    # Two objects in one pair of markers.
    (
        '<tool_call>\n{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {}}\n</tool_call>',
        HERMES,
        ("", [("f", "{}"), ("g", "{}")]),
    ),
    # Unfinished: what there is of the arguments is passed on; without a name it is text.
    (
        'ok <tool_call>{"name": "f", "arguments": {"a": "b <',
        HERMES,
        ("ok", [("f", '{"a": "b <')]),
    ),
    (
        'ok <tool_call>{"name": "f", "arguments": {"a": 1 </tool_',
        HERMES,
        ("ok", [("f", '{"a": 1 </tool_')]),
    ),
    (
        'ok <tool_call>{"name": "f", "arguments": "{\\"a',
        HERMES,
        ("ok", [("f", '"{\\"a')]),
    ),
    ('ok <tool_call>\n{"na', HERMES, ('ok <tool_call>\n{"na', [])),
    (
        "The marker `<tool_call>` begins a call, {braces} do not.\n",
        HERMES,
        ("The marker `<tool_call>` begins a call, {braces} do not.\n", []),
    ),
    (
        f'{{"name": "f", "parameters": {NESTED}}}; {{"name": "g", "parameters": {{}}}}',
        LLAMA,
        ("", [("f", NESTED), ("g", "{}")]),
    ),
    (
        '{"type": "function", "name": "f", "parameters": {"a": 1}}\nThat was it.',
        LLAMA,
        ("\nThat was it.", [("f", '{"a": 1}')]),
    ),
    (
        f'[{{"name": "f", "arguments": {WRITE}}}, {{"name": "g", "arguments": {{}}}}] ok',
        JSON_LIST,
        (" ok", [("f", WRITE), ("g", "{}")]),
    ),
    (
        'Here:\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": {}}\n',
        JSON,
        ("Here:", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    # The object as a string of JSON, here too; but no other string.
    (
        '{"name": "f", "parameters": "{\\"a\\": 1}"}; {"parameters": "", "name": "g"}',
        LLAMA,
        ("", [("f", '{"a": 1}'), ("g", "{}")]),
    ),
    (
        '[{"name": "f", "arguments": "{\\"a\\": \\"]\\"}"}, {"name": "g", "arguments": " "}] ok',
        JSON_LIST,
        (" ok", [("f", '{"a": "]"}'), ("g", "{}")]),
    ),
    ('{"name": "f", "arguments": "[1]"}', JSON, ('{"name": "f", "arguments": "[1]"}', [])),
    ('{"name": "h", "arguments": "{}"}', JSON, ('{"name": "h", "arguments": "{}"}', [])),
    ('{"name": "f", "arguments": "{\\"a', JSON, ('{"name": "f", "arguments": "{\\"a', [])),
    # Answers in JSON that are no calls: other keys, other names, arguments that are no object.
    ('{"name": "Ada", "age": 36}', JSON, ('{"name": "Ada", "age": 36}', [])),
    ('{"name": "Ada", "arguments": {}}', JSON, ('{"name": "Ada", "arguments": {}}', [])),
    ('{"name": "f", "arguments": "x"}', JSON, ('{"name": "f", "arguments": "x"}', [])),
    (
        '{"calls": [\n  {"name": "f", "arguments": {}}]}',
        JSON,
        ('{"calls": [\n  {"name": "f", "arguments": {}}]}', []),
    ),
    ('{\n{"name": "f", "arguments": {}}', JSON, ("{", [("f", "{}")])),
    ("if (x) {\n[1, 2]\n{}\n", JSON, ("if (x) {\n[1, 2]\n{}\n", [])),
]


@pytest.mark.parametrize(("text", "form", "expected"), ANSWERS)
def test_one_character_at_a_time_and_every_cut_in_two(
    text: str, form: ToolFormat, expected: Found
) -> None:
    names = ["f", "g"]
    assert found([text], form, names) == expected
    assert found(list(text), form, names) == expected
    for place in range(1, len(text)):
        assert found([text[:place], text[place:]], form, names) == expected


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(), JSON_VALUES, max_size=3)


def cut(text: str, data: st.DataObject) -> list[str]:
    """`text` in some chunks."""
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    return [text[a:b] for a, b in pairwise(places)]


@given(
    st.lists(st.tuples(st.sampled_from(["f", 'a "b" \\']), ARGUMENTS), min_size=1, max_size=4),
    st.sampled_from(FORMS),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.data(),
)
def test_calls_as_they_are_written_are_found(
    calls: list[tuple[str, Any]],
    form: ToolFormat,
    ascii_only: bool,
    indent: int | None,
    data: st.DataObject,
) -> None:
    written = [(n, json.dumps(a, ensure_ascii=ascii_only, indent=indent)) for n, a in calls]
    text, result = found(cut(form.write(written), data), form, ["f", 'a "b" \\'])
    assert text == ""
    assert result == written


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool",
        '{"name": "f", "arguments": ',
        '{"name": "f"',
        "null",
        *list('{}"\\,:[]\n x<;'),
        '"arguments": ',
        "{}",
    ]
)
TAG_PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=n>",
        "<parameter=",
        "</parameter>",
        "f\n",
        "<arg_key>",
        "n</arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        *list('7<>\n "x/'),
    ]
)
ANY_TEXT = st.lists(PIECES, max_size=16).map("".join)
ANY_TAGS = st.lists(TAG_PIECES, max_size=16).map("".join)


@given(
    st.tuples(ANY_TEXT, st.sampled_from(FORMS)) | st.tuples(ANY_TAGS, st.sampled_from(TAGGED)),
    st.data(),
)
def test_any_text_gives_the_same_events_in_any_chunks(
    written: tuple[str, ToolFormat], data: st.DataObject
) -> None:
    text, form = written

    def events(chunks: list[str]) -> list[ParserEvent]:
        ids = count()
        tools = check_tools([tool("f", n={"type": "number"})])
        return parse(chunks, form.parser(tools, lambda: f"call_{next(ids)}"))

    whole = events([text])
    assert events(list(text)) == whole
    assert events(cut(text, data)) == whole
    if all(isinstance(event, TextDelta) for event in whole):
        assert "".join(e.text for e in whole if isinstance(e, TextDelta)) == text


def test_text_is_shown_as_soon_as_it_can_be() -> None:
    parser = HERMES.parser()
    assert parser.push("Hello <b>") == [TextDelta("Hello <b>")]
    assert parser.push(" <tool_call") == []
    assert parser.push(' >{"a"') == [TextDelta(' <tool_call >{"a"')]
    assert parser.push('<tool_call>{"name": "f", "arg') == []
    assert parser.push('uments": ') == []
    start, delta = parser.push('{"a": [1')
    assert isinstance(start, ToolCallStart)
    assert delta == ToolCallDelta(0, '{"a": [1')
    assert parser.push(", 2]}") == [ToolCallDelta(0, ", 2]}")]
    assert parser.push("}</tool_call>") == []
    assert parser.finish() == []


def test_a_long_text_that_looks_like_calls_takes_linear_time() -> None:
    text = '<tool_call>{"arguments": {' * 20_000
    assert found([text], HERMES, []) == (text, [])
    text = '{"name": "\n' * 40_000
    assert found([text], JSON, ["f"]) == (text, [])


@pytest.mark.parametrize(("form", "between"), [(HERMES, " "), (LLAMA, ";; ]] "), (JSON, "\n")])
def test_white_space_after_a_call_takes_linear_time(form: ToolFormat, between: str) -> None:
    call = form.write([("f", "{}")])
    between *= 500_000
    text, calls = found([call + between + "." + between, between, call], form, ["f"])
    assert calls[0] == ("f", "{}")
    assert text.strip().endswith(".") or not between.isspace()


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


TOOLS = check_tools(
    [
        tool("read", path={"$ref": "#/$defs/p"}),
        {"type": "function", "function": {"name": "now"}},
    ]
)
TOOLS[0]["function"]["parameters"]["$defs"] = {"p": {"type": "string"}}
BYTES = ToyTokenizer([b"", *(bytes([value]) for value in range(256)), b"<tool_call>"])
COMPILER = GrammarCompiler(BYTES, BYTES.vocab_size)


def allows(grammar: str | None, text: str) -> bool:
    """Whether the grammar allows exactly `text`."""
    assert grammar is not None
    matcher = COMPILER.compile(Grammar("grammar", grammar))._matcher
    tokens = [1 + byte for byte in text.encode()]
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    return bool(matcher.consume_tokens(tokens) and matcher.is_accepting())


READ, NOW = ("read", '{"path": "a\\"b\\n<"}'), ("now", "{}")


@pytest.mark.parametrize("form", [*FORMS, *TAGGED], ids=lambda form: form.name)
def test_a_grammar_allows_what_the_choice_allows(form: ToolFormat) -> None:
    required = grammar_for(select_tools(TOOLS, "required"), form)
    assert allows(required, form.write([READ]))
    assert allows(required, form.write([NOW, READ, NOW]))
    assert not allows(required, form.write([("read", "{}")]))
    assert not allows(required, form.write([("now", '{"x": 1}')]))
    assert not allows(required, "It is noon.")
    if form in FORMS:
        assert not allows(required, form.write([("now", "{" + " " * 40 + "}")]))
    single = grammar_for(select_tools(TOOLS, "required"), form, parallel=False)
    assert allows(single, form.write([READ]))
    assert not allows(single, form.write([READ, NOW]))
    now = {"type": "function", "function": {"name": "now"}}
    named = grammar_for(select_tools(TOOLS, now), form)
    assert allows(named, form.write([NOW]))
    assert not allows(named, form.write([READ]))
    assert not allows(named, form.write([NOW, NOW]))


def test_a_grammar_leaves_room_to_think() -> None:
    call = HERMES.write([NOW])
    free = grammar_for(select_tools(TOOLS, "required"), HERMES, thinking=THINK)
    assert allows(free, call)
    assert allows(free, f"<think>\nread < now </think>\n\n{call}")
    assert not allows(free, f"now </think>{call}")
    opened = grammar_for(select_tools(TOOLS, "required"), HERMES, thinking=THINK, opened=True)
    assert allows(opened, f"now\n</think>\n\n{call}")
    assert not allows(opened, call)


OPEN = {"type": "object", "properties": {"name": {"type": "string"}}}
CLOSED = {**OPEN, "additionalProperties": False}


@pytest.mark.parametrize("schema", [OPEN, {"type": "array", "items": CLOSED}, {"enum": ["{", 3]}])
@pytest.mark.parametrize("form", [*FORMS, *TAGGED])
def test_a_grammar_allows_calls_or_an_answer_by_a_schema(form: ToolFormat, schema: Any) -> None:
    grammar = grammar_for(select_tools(TOOLS, "auto"), form, answer=schema)
    one = grammar_for(select_tools(TOOLS, "auto"), form, answer=schema, parallel=False)
    both = form.write([("now", '{"a": "1"}'), ("read", "{}")])
    assert allows(grammar, both)
    assert not allows(one, both)
    assert allows(one, form.write([NOW]))
    assert not allows(grammar, form.write([("other", "{}")]) + " ")
    values: dict[str, list[Any]] = {
        "object": [{}, {"name": "now"}, {"x": [1]}],
        "array": [[], [{"name": "b"}, {}]],
    }
    for value in values.get(schema.get("type", ""), ["{", 3]):
        assert allows(grammar, json.dumps(value))
        assert not allows(grammar, json.dumps(value) + form.write([NOW]))


@pytest.mark.parametrize("schema", [True, {"type": "object"}])
def test_white_space_of_an_answer_after_thinking_is_bounded(schema: Any) -> None:
    grammar = grammar_for(ToolSelection(), HERMES, thinking=THINK, opened=True, answer=schema)
    assert allows(grammar, 'hm</think>\n\n{ "a":\n1}')
    assert not allows(grammar, "hm</think>\n\n{" + "\n" * 300 + "}")


def test_a_schema_that_no_value_follows_is_refused() -> None:
    with pytest.raises(RequestError, match="response_format allows no value"):
        grammar_for(ToolSelection(), HERMES, answer=False)


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_no_grammar_where_the_model_is_free(choice: str | None) -> None:
    selection = select_tools(TOOLS, choice)
    assert grammar_for(selection, HERMES) is None
    assert tool_names(selection.tools) == ([] if choice == "none" else ["read", "now"])


def test_allowed_tools_and_the_flat_form() -> None:
    allowed = {"mode": "required", "tools": [tool("now")]}
    chosen, must, _ = select_tools(TOOLS, {"type": "allowed_tools", "allowed_tools": allowed})
    assert (tool_names(chosen), must) == (["now"], True)
    chosen, must, _ = select_tools(TOOLS, {"type": "function", "name": "read"})
    assert (tool_names(chosen), must) == (["read"], True)


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        (TOOLS, {"type": "function", "function": {"name": "rm"}}, "'rm', and tools has read, now"),
        ([], "required", "no tool"),
        (TOOLS, "always", "tool_choice must be"),
        (TOOLS, {"type": "function"}, "tool_choice must be"),
        (TOOLS, {"type": "function", "function": {"name": 3}}, "tool_choice must be"),
        (TOOLS, 7, "tool_choice must be"),
        (TOOLS, {"type": "allowed_tools", "tools": ["x"]}, "tool_choice must be"),
    ],
)
def test_a_wrong_choice_is_refused(tools: list[Any], choice: Any, words: str) -> None:
    with pytest.raises(RequestError, match="tool_choice") as caught:
        select_tools(tools, choice)
    assert words in str(caught.value)
    assert caught.value.field == "tool_choice"


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        (["x"], "tools[0]"),
        ([{"type": "web_search"}], "tools[0]"),
        ([{"type": "function"}], "tools[0]"),
        ([tool("a"), {"type": "function", "function": {}}], "tools[1].function"),
        ([{"type": "function", "function": {"name": ""}}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "\ud800"}}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "a", "parameters": 1}}], "tools[0].function"),
        ([{"type": "function", "function": {"name": "a", "description": 1}}], "tools[0].function"),
        ([tool("a"), tool("a")], "tools"),
        ([tool("a", b=deep(90)), tool("c", b=deep(101))], "tools[1].function"),
    ],
)
def test_a_wrong_tool_is_refused(tools: list[Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_tools(tools)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_many_names_are_compared_only_where_they_may_be_the_same() -> None:
    compared = []

    class Name(str):
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    names = [Name(number) for number in range(500)]
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    assert tool_names(check_tools(tools)) == names
    assert len(compared) < 10 * len(names)


def test_the_form_is_read_off_the_template() -> None:
    assert format_of("... <tool_call>\n{...}") is HERMES
    assert format_of("{{ '[TOOL_CALLS] [' }}") is JSON_LIST
    assert format_of("""'{"name": "' + name + '", "parameters": '""") is LLAMA
    assert format_of("{{ tools | tojson }}") is JSON


def test_the_description_names_every_tool_and_shows_a_call_in_the_form() -> None:
    text = describe(TOOLS)
    assert '"read"' in text
    assert '"now"' in text
    assert found([text.split("\n", 3)[3]], HERMES, [])[1]


def test_schemas_of_the_request_are_not_changed() -> None:
    before = json.dumps(TOOLS)
    grammar_for(select_tools(TOOLS, "required"), HERMES)
    assert json.dumps(TOOLS) == before
