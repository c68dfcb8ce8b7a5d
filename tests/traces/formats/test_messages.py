"""Messages and what stands beside them: what the model read, what it wrote, what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from copyahead.cli import run
from tests.traces.formats.toys import call, noted, read_all, said, trace_of

ASK = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "x"}
TOOL = {"name": "look", "description": "Looks."}
TOOLS = 'system: <tools>\n{"name":"look","description":"Looks."}\n</tools>'


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({"system": "s"}, ["system: s"]),
        ({"system": [{"type": "text", "text": "s"}]}, ["system: s"]),
        ({"instructions": "s"}, ["system: s"]),
        ({"tools": [TOOL]}, [TOOLS]),
        ({"functions": [TOOL]}, [TOOLS]),
        ({"tools": "as text"}, ["system: <tools>\nas text\n</tools>"]),
        ({"request": {"tools": [TOOL]}}, [TOOLS]),
        ({"request": {"system": "s"}, "tools": [TOOL]}, [TOOLS, "system: s"]),
        ({"system": None, "tools": []}, []),
    ],
)
def test_text_beside_the_messages_is_read(
    tmp_path: Path, beside: dict[str, Any], expected: list[str]
) -> None:
    (session,) = read_all(tmp_path, {"messages": [ASK, ANSWER], **beside})
    assert session == [*expected, "user: q", "*assistant: x"]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"reasoning": "hm"}, "<think>\nhm\n</think>\nx"),
        ({"reasoning_content": "hm", "reasoning": "hm"}, "<think>\nhm\n</think>\nx"),
        ({"thinking": "hm"}, "<think>\nhm\n</think>\nx"),
        ({"thinking_blocks": [{"thinking": "hm"}]}, "<think>\nhm\n</think>\nx"),
        ({"reasoning_details": [{"text": "hm"}]}, "<think>\nhm\n</think>\nx"),
        ({"function_call": {"name": "f", "arguments": "{}"}}, "x\n" + call("f", "{}")),
        ({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, call("f", "{}")),
        (
            {"content": "", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]},
            call("f", '{"a":1}'),
        ),
        ({"content": None, "refusal": "no"}, "no"),
    ],
)
def test_thinking_and_calls_are_written(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    (session,) = read_all(tmp_path, {"messages": [ASK, {**ANSWER, **fields}]})
    assert session == ["user: q", f"*assistant: {text}"]


def test_a_call_of_a_free_form_tool_keeps_its_text(tmp_path: Path) -> None:
    calls = [{"type": "custom", "custom": {"name": "patch", "input": "a\nb"}}]
    (session,) = read_all(tmp_path, {"messages": [ASK, {"role": "assistant", "tool_calls": calls}]})
    assert session[1] == '*assistant: <tool_call>\n{"name": "patch"}\na\nb\n</tool_call>'


def test_parts_of_anthropic_s_kind(tmp_path: Path) -> None:
    answer = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "1", "name": "look", "input": {"path": "a"}},
    ]
    result = [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "file"}]},
        {"type": "tool_result", "tool_use_id": "2", "content": "more"},
        {"type": "text", "text": "go on"},
    ]
    messages = [ASK, {"role": "assistant", "content": answer}, {"role": "user", "content": result}]
    (session,) = read_all(tmp_path, {"system": "s", "messages": [*messages, ANSWER]})
    assert session == [
        "system: s",
        "user: q",
        "*assistant: <think>\nhm\n</think>\nx\n" + call("look", '{"path":"a"}'),
        "tool: filemore",
        "user: go on",
        "*assistant: x",
    ]


def test_a_result_of_the_server_s_own_tool_is_read_and_not_written(tmp_path: Path) -> None:
    parts = [
        {"type": "server_tool_use", "name": "run", "input": {}},
        {"type": "bash_code_execution_tool_result", "content": [{"type": "text", "text": "out"}]},
        {"type": "text", "text": "x"},
    ]
    (session,) = read_all(tmp_path, {"messages": [ASK, {"role": "assistant", "content": parts}]})
    assert session[1:] == ["*assistant: " + call("run", "{}"), "tool: out", "*assistant: x"]


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("function_call", "*assistant: t"),
        ("model", "*assistant: t"),
        ("tool", "tool: t"),
        ("observation", "observation: t"),
        ("system", "system: t"),
    ],
)
def test_turns_of_share_gpt(tmp_path: Path, role: str, expected: str) -> None:
    turns = [("human", "q"), (role, "t"), ("gpt", "x")]
    item = {"conversations": [{"from": who, "value": text} for who, text in turns]}
    (session,) = read_all(tmp_path, {**item, "system": "s", "tools": "[]"})
    context = ["system: s", "system: <tools>\n[]\n</tools>"]
    assert session == [*context, "user: q", expected, "*assistant: x"]


def test_a_role_that_is_not_known_is_taken_as_read_and_reported_with_its_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    critic = {"role": "critic", "content": "c"}
    trace = trace_of(
        tmp_path, {"messages": [critic, ANSWER, critic]}, {"messages": [critic, ANSWER]}
    )
    assert said(trace.conversations[0]) == ["critic: c", "*assistant: x", "critic: c"]
    (problem,) = trace.problems
    assert (problem.place, problem.count, problem.skipped) == ("role critic", 3, False)
    # Reported before the tokenizer is looked for.
    assert run(["replay", trace.path, "--tokenizer", "none.json"]) == 2
    shown = capsys.readouterr().err
    assert f"note: {trace.path}, role critic: not known, so taken as read" in shown
    assert "(3 times)" in shown


@pytest.mark.parametrize(
    ("item", "place"),
    [
        ({"messages": [{**ASK, "memo": "m"}, ANSWER]}, "key memo of a message"),
        ({"messages": [ASK, ANSWER], "memo": {"a": ["m"]}}, "key memo of an object with messages"),
        ({"messages": [ASK, ANSWER], "request": {"memo": "m"}}, "key memo of a request"),
        (
            {"messages": [{**ASK, "tool_calls": [{"name": "f"}]}, ANSWER]},
            "key tool_calls of a message of role user",
        ),
        (
            {"messages": [ASK, {**ANSWER, "reasoning": "one", "thinking": "other"}]},
            "key thinking of a message",
        ),
        (
            {"conversations": [{"from": "gpt", "value": "x"}], "memo": "m"},
            "key memo of an object with messages",
        ),
        (
            {"messages": [ASK, {**ANSWER, "content": [{"type": "redacted_thinking"}, "x"]}]},
            "part redacted_thinking",
        ),
    ],
)
def test_text_that_is_not_read_is_reported(
    tmp_path: Path, item: dict[str, Any], place: str
) -> None:
    trace = trace_of(tmp_path, item, item)
    assert noted(trace) == {place: 2}
    assert "*assistant: " in "".join(said(trace.conversations[0]))


def test_keys_that_hold_no_text_are_nothing_to_report(tmp_path: Path) -> None:
    item = {"messages": [{**ASK, "seen": True, "memo": " "}, ANSWER], "usage": {"tokens": 3}}
    assert read_all(tmp_path, {**item, "memo": {"a": [None, 1.5]}, "model": "m"})


def test_a_file_that_is_itself_a_conversation(tmp_path: Path) -> None:
    expected = ["user: q", "*assistant: x", "*assistant: x"]
    assert read_all(tmp_path, [ASK, ANSWER, ANSWER], document=True) == [expected]
    assert read_all(tmp_path, ASK, ANSWER, ANSWER) == [expected]
    assert read_all(tmp_path, [[ASK, ANSWER], [ANSWER]], document=True) == [
        ["user: q", "*assistant: x"],
        ["*assistant: x"],
    ]
