"""Logs of requests with their answers, and pairs: which text was read, which was written."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.errors import ConfigError
from copyahead.traces.formats.importers import KNOWN, read_traces
from copyahead.traces.formats.reading import words
from tests.traces.formats.toys import call, noted, read_all, said, trace_of

ASK = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "x"}
CHOICE = {"choices": [{"message": ANSWER}]}
TOOLS = 'system: <tools>\n{"name":"look"}\n</tools>'


@pytest.mark.parametrize(
    "item",
    [
        {"request": {"messages": [ASK]}, "response": CHOICE},
        {"messages": [ASK], **CHOICE},
        {"messages": [ASK], "response": "x"},
        {"messages": [ASK], "completion": "x"},
        {"messages": [ASK], "output": ANSWER},
        {"messages": [ASK], "output": [ANSWER]},
        {"messages": [ASK], "response": {"message": ANSWER, "done": True}},
        {"input": {"messages": [ASK]}, "output": ANSWER},
        {"input": [ASK], "output": [{"type": "message", **ANSWER}]},
        {"request": {"prompt": "q"}, "response": {"response": "x"}},
        {"request": {"prompt": ["q"]}, "response": {"choices": [{"text": "x"}]}},
        {"request": {"input": "q"}, "response": {"output": [{"type": "message", **ANSWER}]}},
        {"input": "q", "output": "x"},
        {"request": {"prompt": "q"}, "response": "x"},
        {"request": '{"prompt": "q"}', "response": '{"content": "x"}'},
        {"prompt": "q", "completion": "x"},
        {"prompt": [ASK], "completion": [ANSWER]},
        {"prompt": "q", "response": "x", "id": 7},
        {"instruction": "q", "output": "x"},
        {"instruction": "q", "input": "", "output": "x"},
    ],
)
def test_a_question_and_its_answer(tmp_path: Path, item: dict[str, Any]) -> None:
    assert read_all(tmp_path, item) == [["user: q", "*assistant: x"]]


def test_the_context_of_a_request_is_read_and_keeps_its_session_together(tmp_path: Path) -> None:
    context = {"system": "s", "tools": [{"name": "look"}]}
    more = [ASK, ANSWER, {"role": "user", "content": "r"}]
    log = [
        {"request": {"messages": messages, **context}, "response": CHOICE}
        for messages in ([ASK], more)
    ]
    assert read_all(tmp_path, *log) == [
        ["system: s", TOOLS, "user: q", "*assistant: x", "user: r", "*assistant: x"]
    ]


def test_a_log_of_anthropic_s_messages(tmp_path: Path) -> None:
    content = [
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "1", "name": "look", "input": {}},
    ]
    first = {
        "request": {"system": [{"type": "text", "text": "s"}], "messages": [ASK], "max_tokens": 5},
        "response": {"id": "msg_1", "type": "message", "role": "assistant", "content": content},
    }
    result = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "1", "content": "o"}],
    }
    history = [ASK, {"role": "assistant", "content": content}, result]
    second = {
        "request": {"system": "s", "messages": history},
        "response": {"role": "assistant", "content": [{"type": "text", "text": "y"}]},
    }
    assert read_all(tmp_path, first, second) == [
        [
            "system: s",
            "user: q",
            "*assistant: x\n" + call("look", "{}"),
            "tool: o",
            "*assistant: y",
        ]
    ]


OUTPUT = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"a": 1}'},
    {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "a\nb"},
]
WROTE = (
    "*assistant: <think>\nhm\n</think>\nx\n"
    + call("look", '{"a": 1}')
    + '\n<tool_call>\n{"name": "patch"}\na\nb\n</tool_call>'
)
RESULTS = [
    {"type": "function_call_output", "call_id": "1", "output": "file"},
    {
        "type": "custom_tool_call_output",
        "call_id": "2",
        "output": [{"type": "input_text", "text": "t"}],
    },
]


def test_a_log_of_responses_that_sends_all_items_again(tmp_path: Path) -> None:
    items = [{"type": "message", "role": "user", "content": "q"}]
    first = {"request": {"instructions": "s", "input": items}, "response": {"output": OUTPUT}}
    second = {
        "request": {"instructions": "s", "input": [*items, *OUTPUT, *RESULTS]},
        "response": {"output": [{"type": "message", **ANSWER}]},
    }
    expected = ["system: s", "user: q", WROTE, "tool: file", "tool: t", "*assistant: x"]
    assert read_all(tmp_path, first, second) == [expected]


def test_a_response_that_goes_on_from_an_earlier_one(tmp_path: Path) -> None:
    first = {"request": {"input": "q"}, "response": {"id": "resp_1", "output": OUTPUT}}
    second = {
        "request": {"input": RESULTS, "previous_response_id": "resp_1"},
        "response": {"id": "resp_2", "output": [{"type": "message", **ANSWER}]},
    }
    (session,) = read_all(tmp_path, first, second)
    assert session == ["user: q", WROTE, "tool: file", "tool: t", "*assistant: x"]
    trace = trace_of(tmp_path, {"prompt": "q", "completion": "x"}, second)
    assert "goes on from is missing: resp_1" in trace.problems[0].reason


def test_a_logged_response_object_with_its_input(tmp_path: Path) -> None:
    item = {"object": "response", "instructions": "s", "input": "q", "output": OUTPUT}
    assert read_all(tmp_path, {**item, "text": {"format": {"type": "text"}}}) == [
        ["system: s", "user: q", WROTE]
    ]


def test_items_without_text_and_of_unknown_types_are_reported(tmp_path: Path) -> None:
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "Zm9v"}
    strange = {"type": "hologram", "text": "t"}
    output = [hidden, strange, {"type": "message", **ANSWER, "memo": "m"}]
    trace = trace_of(tmp_path, {"request": {"input": "q"}, "response": {"output": output}})
    assert said(trace.conversations[0]) == ["user: q", "*assistant: x"]
    assert noted(trace) == {
        "item reasoning": 1, "item hologram": 1, "key memo of an item message": 1,
    }  # fmt: skip


def test_other_choices_and_unknown_keys_are_reported(tmp_path: Path) -> None:
    response = {"choices": [{"message": ANSWER, "memo": "m"}, {"message": ANSWER}], "memo": "m"}
    request = {"messages": [ASK], "prediction": {"content": "p"}, "user": "u"}
    trace = trace_of(tmp_path, {"request": request, "response": response, "memo": "m"})
    assert set(noted(trace)) == {
        "choices after the first",
        "key memo of a choice",
        "key memo of a response",
        "key memo of a log's line",
        "key prediction of a request",
    }


def test_a_whole_conversation_with_an_output_beside_it_is_no_log(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, {"messages": [ASK, ANSWER], "output": "p"})
    assert said(trace.conversations[0]) == ["user: q", "*assistant: x"]
    assert noted(trace) == {"key output of an object with messages": 1}


def test_an_instruction_with_its_input_and_earlier_rounds(tmp_path: Path) -> None:
    item = {"instruction": "do", "input": "this", "output": "x", "system": "s"}
    assert read_all(tmp_path, {**item, "history": [["p", "y"]]}) == [
        ["system: s", "user: p", "assistant: y", "user: do\nthis", "*assistant: x"]
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"prompt": [1, 2], "completion": [3]},
        {"prompt": [1, 2], "output_ids": [3]},
        {"prompt_token_ids": [1, 2], "token_ids": [3], "text": "c"},
        {"input_ids": [1, 2], "output_ids": [3]},
        {"request": {"prompt": [1, 2]}, "response": {"choices": [{"text": "c", "token_ids": [3]}]}},
    ],
)
def test_pairs_of_token_ids_need_no_tokenizer(tmp_path: Path, item: dict[str, Any]) -> None:
    trace = trace_of(tmp_path, item)
    assert trace.problems == []
    (request,) = trace.requests
    assert (list(request.read), list(request.written)) == ([1, 2], [3])


def test_token_ids_that_go_on_from_each_other_are_one_session(tmp_path: Path) -> None:
    pairs = [([1, 2], [3]), ([7], [8]), ([1, 2, 3, 4], [5]), ([1, 2, 3], [6])]
    trace = trace_of(tmp_path, *({"prompt": read, "completion": wrote} for read, wrote in pairs))
    assert [request.session[:8] for request in trace.requests] == [
        "00000000", "00000001", "00000000", "00000003",
    ]  # fmt: skip


def test_an_answer_that_is_itself_json_is_text(tmp_path: Path) -> None:
    item = {"request": {"prompt": "q"}, "response": '{"city": "x"}'}
    assert read_all(tmp_path, item, {**item, "response": "42"}) == [
        ["user: q", '*assistant: {"city": "x"}'],
        ["user: q", "*assistant: 42"],
    ]


def test_parts_of_one_item_are_one_message(tmp_path: Path) -> None:
    parts = [{"type": "input_text", "text": text} for text in "qr"]
    item = {"input": [{"role": "user", "content": parts}], "output": OUTPUT}
    assert read_all(tmp_path, item) == [["user: qr", WROTE]]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"prompt": [1], "completion": [-3]}, "int"),
        ({"prompt": [1], "completion": [2**31 - 1]}, "int"),
        ({"prompt": [1, "a"], "completion": [3]}, "int"),
        ({"request": {"prompt": [1]}, "response": {"choices": [{"text": "x"}]}}, "token_ids"),
        ({"prompt": "q", "completion": ""}, "the answer is empty"),
        (
            {"request": {"prompt": ["q", "r"]}, "response": {"choices": [{"text": "x"}]}},
            "2 prompts",
        ),
        ({"request": {"a": 1}, "response": CHOICE}, "the request has no messages"),
        ({"request": {"messages": [ASK]}, "response": {"events": []}}, "it has events"),
    ],
)
def test_logs_that_cannot_be_read(tmp_path: Path, item: dict[str, Any], reason: str) -> None:
    trace = trace_of(tmp_path, {"prompt": "q", "completion": "x"}, item)
    (problem,) = trace.problems
    assert problem.place == "line 2"
    assert reason.lower() in problem.reason.lower()


def test_what_is_not_readable_is_named_beside_what_would_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as failure:
        trace_of(tmp_path, {"alpha": 1, "beta": "text"}, {"alpha": 2})
    assert "it has alpha, beta" in str(failure.value)
    assert KNOWN in str(failure.value)
    path = tmp_path / "notes.md"
    path.write_text("Some notes\nof mine\n")
    with pytest.raises(ConfigError, match=r"it begins with 'Some notes of mine'\): readable are"):
        read_traces([str(path)])


KEYS = st.sampled_from(
    sorted(
        words(
            "messages conversations request response choices prompt completion output input role "
            "content type tool_calls function reasoning history trajectory traj simulations cases "
            "kind source action args observation extras payload sessionId message uuid text id "
            "instruction"
        )
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3)
    | st.sampled_from(["user", "assistant", "message", "text", "tool_use", "response_item"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.dictionaries(KEYS, VALUES, max_size=5), max_size=3))
def test_whatever_a_line_holds_it_is_read_or_reported(items: list[dict[str, Any]]) -> None:
    good = {"prompt": "q", "completion": "x"}
    with TemporaryDirectory() as folder:
        trace = trace_of(Path(folder), *items, good)
    assert trace.num_sessions >= 1
    assert all(problem.reason for problem in trace.problems)
