"""Calls written in tags: found in any cutting, typed by the schema, forced, shown, and served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.chat.template.template import ChatTemplate
from copyahead.chat.tools.definitions import check_tools, grammar_for, select_tools
from copyahead.chat.tools.formats import ARGUMENT_TAGS, FUNCTION_TAGS, HERMES, ToolFormat
from copyahead.chat.tools.stream import TextDelta, ToolCallDelta, ToolCallStart
from copyahead.chat.tools.tag_values import as_json, kinds_of
from tests.chat.tools.test_tools import TAGGED, Found, allows, cut, told, tool
from tests.server.toys import running

EDIT = tool("edit", path={"type": "string"}, line={"type": "integer"}, all={"type": "boolean"})
LIST = tool("list", of={"type": "array"}, by={"anyOf": [{"type": "object"}, {"type": "null"}]})
TOOLS: Any = check_tools([EDIT, LIST, tool("now")])


def answer(*lines: str) -> str:
    return "\n".join(lines)


INNER = 'x = """</function>\n</tool_call>"""\n</function>\n</tool_call>\n\n</parameter>. Done'
FUNCTIONS: list[tuple[str, Found]] = [
    (
        answer(
            "Let me see.", "", "<tool_call>", "<function=edit>", "<parameter=path>", "a.py",
            "</parameter>", "<parameter=line>", "7", "</parameter>", "<parameter=all>", "True",
            "</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function=now>",
            "</function>", "</tool_call>", "",
        ),
        ("Let me see.", [("edit", '{"path": "a.py", "line": 7, "all": true}'), ("now", "{}")]),
    ),
    # A text keeps its own breaks, its quotes, and tags that end nothing.
    (
        answer(
            "<tool_call>", "<function=edit>", "<parameter=path>", "", ' "a\\"', "</p></parameter>",
            "</parameter> x", "</function>", "<parameter=b>", "", "</parameter>", "</function>",
            "</tool_call> ok",
        ),
        (
            " ok",
            [
                (
                    "edit",
                    json.dumps(
                        {
                            "path": '\n "a\\"\n</p></parameter>\n</parameter> x\n</function>\n'
                            "<parameter=b>\n"
                        }
                    ),
                )
            ],
        ),
    ),
    # On one line, without breaks; a key that no schema knows; a value that is not what it should.
    (
        "<tool_call><function=edit><parameter=line>seven</parameter>"
        "<parameter=more>8</parameter></function></tool_call>",
        ("", [("edit", '{"line": "seven", "more": "8"}')]),
    ),
    # No marker before the call, and none after it; two in one pair of markers.
    ("Now: <function=now>\n</function>\nDone.", ("Now:\nDone.", [("now", "{}")])),
    (
        "<tool_call>\n<function=now>\n</function>\n<function=now></function></tool_call>",
        ("", [("now", "{}"), ("now", "{}")]),
    ),
    # Closing tags left out: of the call, and of the value.
    (
        "<tool_call>\n<function=edit>\n<parameter=path>\na\n</parameter>\n</tool_call>then",
        ("then", [("edit", '{"path": "a"}')]),
    ),
    (
        "<tool_call>\n<function=edit>\n<parameter=line>\n4\n</function>\n</tool_call>then",
        ("then", [("edit", '{"line": 4}')]),
    ),
    (
        "<tool_call>\n<function=edit>\n<parameter=path>\na\n</function>\n</tool_call>\n\n",
        ("", [("edit", '{"path": "a"}')]),
    ),
    # Both of them inside a value.
    (
        FUNCTION_TAGS.write([("edit", json.dumps({"path": INNER, "line": 4}))]),
        ("", [("edit", json.dumps({"path": INNER, "line": 4}))]),
    ),
    (
        FUNCTION_TAGS.write([("list", json.dumps({"of": [INNER]}))]),
        ("", [("list", json.dumps({"of": [INNER]}))]),
    ),
    # Unfinished: what there is of the arguments is passed on.
    ("<tool_call>\n<function=edit>\n<parameter=pa", ("", [("edit", "{")])),
    (
        "<tool_call>\n<function=edit>\n<parameter=path>\na\n</par",
        ("", [("edit", '{"path": "a\\n</par')]),
    ),
    ("<tool_call>\n<function=edit>\n<parameter=line>\n12", ("", [("edit", '{"line": 12')])),
    (
        "<tool_call>\n<function=edit>\n<parameter=path>\na\n</parameter>\n",
        ("", [("edit", '{"path": "a"')]),
    ),
    # What is no argument ends the call, and is text.
    ("<function=now><parameter=a\nb>", ("<parameter=a\nb>", [("now", "{}")])),
    # What only looks like a call.
    ("<tool_call><function=now>\n<b> it is", ("<tool_call><function=now>\n<b> it is", [])),
    ("Write `<function=now>` and then", ("Write `<function=now>` and then", [])),
    (
        '<tool_call>\n<function=now>\n{"a": 1}\n</function>\n</tool_call>',
        ('<tool_call>\n<function=now>\n{"a": 1}\n</function>\n</tool_call>', []),
    ),
    (
        "<function=now> is <function=now><tool_call><function=now></function></tool_call>",
        ("<function=now> is <function=now>", [("now", "{}")]),
    ),
    ("<tool_call>\n<function=now>\n", ("<tool_call>\n<function=now>\n", [])),
    ("<tool_call>\n<function=", ("<tool_call>\n<function=", [])),
    ("<tool_call>\n{}</tool_call>", ("<tool_call>\n{}</tool_call>", [])),
    ("<function=other></function> <<function", ("<function=other></function> <<function", [])),
    ("`<tool_call>` begins <function=a>.\n", ("`<tool_call>` begins <function=a>.\n", [])),
]  # fmt: skip
ARGUMENTS: list[tuple[str, Found]] = [
    (
        answer(
            "Hm.", "<tool_call>edit", "<arg_key>path</arg_key>", "<arg_value>a.py", "</arg_value>",
            "<arg_key>line</arg_key>", "<arg_value>7</arg_value>", "</tool_call>",
            "<tool_call>now", "</tool_call>",
        ),
        ("Hm.", [("edit", '{"path": "a.py\\n", "line": 7}'), ("now", "{}")]),
    ),
    (
        "<tool_call>\nlist<arg_key>of</arg_key><arg_value>[1, </arg_value>2]</arg_value>"
        "<arg_key>by</arg_key><arg_value>null</arg_value></tool_call>",
        ("", [("list", '{"of": "[1, </arg_value>2]", "by": null}')]),
    ),
    ("<tool_call>now", ("<tool_call>now", [])),
    ("<tool_call> begins a call\n", ("<tool_call> begins a call\n", [])),
    ("<tool_call>now</tool_call> ok", (" ok", [("now", "{}")])),
    ("<tool_call>now\nis", ("<tool_call>now\nis", [])),
    ("<tool_call>now\n<arg_key>a</arg_key> b</tool_call>", ("", [("now", '{"a": "b</tool_call>')])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [(text, FUNCTION_TAGS, expected) for text, expected in FUNCTIONS]
    + [(text, ARGUMENT_TAGS, expected) for text, expected in ARGUMENTS],
)
def test_one_character_at_a_time_and_every_cut_in_two(
    text: str, form: ToolFormat, expected: Found
) -> None:
    assert told([text], form, TOOLS) == expected
    assert told(list(text), form, TOOLS) == expected
    for place in range(1, len(text)):
        assert told([text[:place], text[place:]], form, TOOLS) == expected


# A text may look like anything but the end of its value.
TEXTS = st.text().filter(lambda text: "</" not in text)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ({"type": "string"}, TEXTS),
    ({}, TEXTS),
    ({"type": "number"}, NUMBERS),
    ({"type": ["boolean", "null"]}, st.booleans() | st.none()),
    ({"type": "array"}, st.lists(TEXTS | NUMBERS | st.none())),
    ({"$ref": "#/$defs/deep"}, st.dictionaries(TEXTS, st.lists(TEXTS), max_size=3)),
]
VALUE = st.sampled_from(VALUES).flatmap(lambda pair: st.tuples(st.just(pair[0]), pair[1]))
KEY = st.text(min_size=1).filter(lambda key: key == key.strip() and not set("<>\n") & set(key))


@given(
    st.lists(st.dictionaries(KEY, VALUE, max_size=3), min_size=1, max_size=3),
    st.sampled_from(TAGGED),
    st.data(),
)
def test_calls_as_they_are_written_are_found(
    calls: list[dict[str, tuple[Any, Any]]], form: ToolFormat, data: st.DataObject
) -> None:
    tools, written = [], []
    for place, call in enumerate(calls):
        one = tool(f"f{place}", key={})
        schema = {"properties": {key: kind for key, (kind, _) in call.items()}}
        schema["$defs"] = {"deep": {"type": "object"}}
        one["function"]["parameters"] = schema
        tools.append(one)
        arguments = {key: value for key, (_, value) in call.items()}
        written.append((f"f{place}", json.dumps(arguments, ensure_ascii=False)))
    text, found = told(cut(form.write(written), data), form, check_tools(tools))
    assert text == ""
    assert found == written


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "7", "7"),
        ({"type": "string"}, "null", "null"),
        ({}, "[1]", "[1]"),
        (True, "1", "1"),
        ({"type": "integer"}, " 12\n", 12),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "integer"}, "NaN", "NaN"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "integer"}, "true", "true"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "null"}, "None", None),
        ({"type": "array"}, '["a", 1]', ["a", 1]),
        ({"type": "array"}, "['a']", "['a']"),
        ({"type": "array"}, "[" * 100_000, "[" * 100_000),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "7", "7"),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, '["a"]', ["a"]),
        ({"anyOf": [{}, {"type": "array"}]}, "[]", "[]"),
        ({"enum": ["a", 1]}, "1", 1),
        ({"enum": ["1"]}, "1", "1"),
        ({"const": True}, "true", True),
        ({"$ref": "#/$defs/n"}, "5", 5),
        ({"$ref": "#/$defs/loop"}, "5", "5"),
        ({"$ref": "https://example.com/x"}, "5", "5"),
        ({"$ref": 7}, "5", "5"),
        ({"$ref": "#/$defs/tree"}, "5", 5),
        ({"$ref": "#/$defs/wide0"}, "5", 5),
        ({"anyOf": []}, "5", "5"),
        ({"allOf": [{"$ref": "#/$defs/n"}], "title": "N"}, "5", 5),
        ({"allOf": [{"minLength": 1}, {"type": "string"}]}, "5", "5"),
        ({"allOf": [{"allOf": [{"type": "array"}]}]}, "[5]", [5]),
        ({"allOf": [{"$ref": "#/$defs/round"}]}, "5", "5"),
        ({"allOf": [True, {"$ref": "#/$defs/none"}]}, "5", "5"),
        ({"properties": {"a": {}}}, '{"a": 5}', {"a": 5}),
        ({"additionalProperties": {"type": "integer"}}, '{"a": 5}', {"a": 5}),
        ({"items": {}, "nullable": True}, "null", None),
        ({"items": {}}, "[5]", [5]),
    ],
)
def test_what_a_value_is_by_its_schema(schema: Any, text: str, value: Any) -> None:
    inner: dict[str, Any] = {"n": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}
    inner["tree"] = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/tree"}]}
    inner["round"] = {"allOf": [{"$ref": "#/$defs/round"}]}
    for place in range(50):
        inner[f"wide{place}"] = {"oneOf": [{"$ref": f"#/$defs/wide{place + 1}"}] * 2}
    inner["wide50"] = {"type": "number"}
    root = {"$defs": inner}
    assert json.loads(as_json(text, kinds_of(schema, root))) == value


def test_a_text_is_passed_on_while_it_is_written_and_other_values_when_they_are_whole() -> None:
    parser = FUNCTION_TAGS.parser(TOOLS)
    assert parser.push("<tool_call>\n<function=edit>\n") == []
    start, delta = parser.push("<parameter=")
    assert isinstance(start, ToolCallStart)
    assert start.name == "edit"
    assert delta == ToolCallDelta(0, "{")
    assert parser.push("path>\nsrc/") == [ToolCallDelta(0, '"path": "src/')]
    assert parser.push("a.py\n") == [ToolCallDelta(0, "a.py")]
    assert parser.push("</parameter>\n<parameter=line>\n1") == [ToolCallDelta(0, '", "line": ')]
    assert parser.push("2") == []
    assert parser.push("\n</parameter>\n</function>") == [ToolCallDelta(0, "12}")]
    assert parser.push("\n</tool_call>") == []
    assert parser.push("ok") == [TextDelta("ok")]


def test_a_long_text_that_looks_like_calls_takes_linear_time() -> None:
    for text in ("<tool_call>\n<function=", "<function=x>", "<tool_call>" + " " * 100):
        text *= 5_000
        assert told([text], FUNCTION_TAGS, TOOLS) == (text, [])
    value = "\n</parameter>\n" * 5_000 + "</parameter>" + " " * 200_000
    value += INNER * 5_000 + "\n</function>\n</tool_call>" + " " * 200_000 + "."
    written = FUNCTION_TAGS.write([("edit", json.dumps({"path": value}))])
    ((_, arguments),) = told([written], FUNCTION_TAGS, TOOLS)[1]
    assert json.loads(arguments) == {"path": value}


# Grammars

KINDS: Any = check_tools(
    [
        tool(
            "f",
            text={"type": "string"},
            word={"enum": ["a", 'b"']},
            one={"const": "x\ny"},
            count={"$ref": "#/$defs/n"},
            items={"type": "array", "items": {"type": "boolean"}},
            unknown={"anyOf": [{"type": "string"}, {"type": "null"}]},
            far={"type": "object", "properties": {"a": {"$ref": "#/properties/text"}}},
        )
    ]
)
KINDS[0]["function"]["parameters"] |= {
    "$defs": {"n": {"type": "integer", "minimum": 3}},
    "required": ["text", "unlisted"],
}


@pytest.mark.parametrize("form", TAGGED, ids=lambda form: form.name)
@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({"text": "", "unlisted": "x"}, True),
        ({"text": "a\n<b>\n", "word": 'b"', "one": "x\ny", "unlisted": ""}, True),
        ({"text": "", "count": 3, "items": [True, False], "unlisted": ""}, True),
        ({"text": "", "unknown": "anything", "far": "anything", "unlisted": ""}, True),
        ({"text": ""}, False),
        ({"unlisted": ""}, False),
        ({"text": "", "word": "c", "unlisted": ""}, False),
        ({"text": "", "one": "x", "unlisted": ""}, False),
        ({"text": "", "count": 2, "unlisted": ""}, False),
        ({"text": "", "count": "3x", "unlisted": ""}, False),
        ({"text": "", "items": [1], "unlisted": ""}, False),
        ({"text": "", "other": "", "unlisted": ""}, False),
    ],
)
def test_a_grammar_holds_values_to_the_schema(
    form: ToolFormat, arguments: dict[str, Any], allowed: bool
) -> None:
    grammar = grammar_for(select_tools(KINDS, "required"), form)
    written = form.write([("f", json.dumps(arguments))])
    assert allows(grammar, written) is allowed
    ((_, read),) = told([written], form, KINDS)[1]
    assert json.loads(read) == arguments


def test_a_tool_whose_schema_lists_nothing_takes_any_arguments() -> None:
    tools: Any = check_tools([tool("f")])
    tools[0]["function"]["parameters"] = {"type": "object"}
    grammar = grammar_for(select_tools(tools, "required"), FUNCTION_TAGS)
    for arguments in ({}, {"a": "x"}, {"a": "x", "b c": "{"}):
        assert allows(grammar, FUNCTION_TAGS.write([("f", json.dumps(arguments))]))


# Templates

CODER = """
{%- if tools %}{{ '<|system|># Tools\\n' }}
{%- for tool in tools %}{{ '\\n<function>\\n<name>' ~ tool.function.name ~ '</name>' }}
{%- for name, fields in tool.function.parameters.properties | items %}
{{- '\\n<parameter><name>' ~ name ~ '</name>' ~ fields | tojson ~ '</parameter>' }}{% endfor %}
{{- '\\n</function>' }}{% endfor %}
{{- '\\nWrite <tool_call>\\n<function=name>\\n<parameter=key>\\nvalue\\n</parameter>' }}
{{- '\\n</function>\\n</tool_call><|end|>' }}{% endif %}
{%- for m in messages %}
{{- '<|answer|>' if m.role == 'assistant' else '<|user|>' }}
{%- if m.role == 'tool' %}{{ '<tool_response>' ~ m.content ~ '</tool_response>' }}
{%- else %}{{ m.content }}{% endif %}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n<function=' ~ call.function.name ~ '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' ~ name ~ '>\\n' }}
{{- value | tojson if value is mapping or (value is sequence and value is not string) else value }}
{{- '\\n</parameter>\\n' }}{% endfor %}
{{- '</function>\\n</tool_call>' }}{% endfor %}
{{- '<|end|>' }}{% endfor %}
{{- '<|answer|>' if add_generation_prompt }}"""

ARG_KEYS = """
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}[{{ m.role }}]{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>' ~ call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- '\n<arg_key>' ~ key ~ '</arg_key>' }}
{{- '\n<arg_value>' ~ (value if value is string else value | tojson) ~ '</arg_value>' }}
{%- endfor %}
{{- '\n</tool_call>' }}{% endfor %}{% endfor %}"""


def calling(arguments: str) -> list[dict[str, Any]]:
    function = {"name": "edit", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


@pytest.mark.parametrize(("source", "form"), [(CODER, FUNCTION_TAGS), (ARG_KEYS, ARGUMENT_TAGS)])
def test_the_form_is_found_by_trying_the_template_out(source: str, form: ToolFormat) -> None:
    template = ChatTemplate(source)
    assert template.tool_format is form
    assert template.capabilities.tools
    assert template.capabilities.calls == ("", True)
    assert template.capabilities.parallel_calls
    text = template.render(calling('{"path": "a\\nb", "line": [7]}'), TOOLS)
    assert form.write([("edit", '{"path": "a\\nb", "line": [7]}')]) in text
    assert "You can call" not in text
    cut_off = template.render(calling('{"path": "a'), TOOLS)
    assert form.write([("edit", '{"arguments": "{\\"path\\": \\"a"}')]) in cut_off


def test_tags_that_are_not_known_are_not_taken_for_known_ones() -> None:
    template = ChatTemplate(ARG_KEYS.replace("arg_value", "value"))
    assert template.tool_format is HERMES
    assert not template.capabilities.tools


# The server

SAID = FUNCTION_TAGS.write([("edit", '{"path": "a.py\\n", "line": 3}'), ("now", "{}")])
CALLS = [("edit", {"path": "a.py\n", "line": 3}), ("now", {})]


def test_clients_accumulate_what_was_called() -> None:
    message: Any = {"role": "user", "content": f"say:{SAID}"}
    with running(template=ChatTemplate(CODER), policy="fixed") as server:
        with openai.OpenAI(base_url=server.api, api_key="x", max_retries=0) as client:
            options: Any = {"model": "m", "messages": [message], "tools": TOOLS}
            whole = client.chat.completions.create(**options)
            with client.chat.completions.stream(**options) as stream:
                final = stream.get_final_completion()
            for completion in (whole, final):
                (choice,) = completion.choices
                assert choice.finish_reason == "tool_calls"
                found = choice.message.tool_calls or []
                functions: Any = [call.function for call in found]
                assert [(f.name, json.loads(f.arguments)) for f in functions] == CALLS
        with anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0) as other:
            tools: Any = [
                {"name": t["function"]["name"], "input_schema": t["function"]["parameters"]}
                for t in TOOLS
            ]
            with other.messages.stream(
                model="m", max_tokens=300, messages=[message], tools=tools
            ) as events:
                blocks = events.get_final_message().content
            assert [(b.name, b.input) for b in blocks if b.type == "tool_use"] == CALLS


@contextmanager
def coder() -> Iterator[openai.OpenAI]:
    """A client of a server whose template has calls written in tags."""
    with (
        running(template=ChatTemplate(CODER)) as server,
        openai.OpenAI(base_url=server.api, api_key="x", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_call_that_is_asked_for_comes_whatever_the_model_would_say(choice: Any) -> None:
    tools: Any = [tool("pick", kind={"enum": ["x", "y"]}, sure={"type": "boolean"})]
    options: Any = {
        "model": "m", "messages": [{"role": "user", "content": "say:no"}], "tools": tools,
        "tool_choice": choice, "parallel_tool_calls": False,
    }  # fmt: skip
    with coder() as client:
        (picked,) = client.chat.completions.create(**options).choices
    calls: Any = picked.message.tool_calls
    arguments = json.loads(calls[0].function.arguments)
    assert arguments["kind"] in ("x", "y")
    assert arguments["sure"] in (True, False)


def test_the_turn_after_a_call_reads_only_what_is_new() -> None:
    said = FUNCTION_TAGS.write([("edit", '{"path": "a.py", "line": 3}')])
    turns: list[Any] = [{"role": "user", "content": f"say:\n{said}"}]
    options: Any = {"model": "m", "tools": TOOLS}
    with coder() as client:
        first = client.chat.completions.create(messages=turns, **options)
        answer: Any = first.choices[0].message
        result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "ok"}
        turns += [answer.to_dict(), result]
        second = client.chat.completions.create(messages=turns, **options)
    assert first.usage is not None
    assert second.usage is not None
    details = second.usage.prompt_tokens_details
    assert details is not None
    assert (details.cached_tokens or 0) >= first.usage.total_tokens - 1
