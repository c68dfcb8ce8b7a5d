"""Agents' session files and trajectories, and benchmarks: what was read and what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.traces.formats.toys import call, noted, read_all, said, trace_of

ASK = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "x"}


def claude(kind: str, message: Any = None, **fields: Any) -> dict[str, Any]:
    """A line of a Claude Code session."""
    return {"type": kind, "sessionId": "s", "message": message, "isSidechain": False, **fields}


def part_of_answer(number: int, **part: Any) -> dict[str, Any]:
    """A line with one part of the answer of that number."""
    return claude("assistant", {"id": f"msg_{number}", "role": "assistant", "content": [part]})


def result(text: str) -> dict[str, Any]:
    """A line with the result of a call, which stands once more in `toolUseResult`."""
    content = [{"type": "tool_result", "tool_use_id": "1", "content": text}]
    return claude("user", {"role": "user", "content": content}, toolUseResult={"stdout": text})


def test_a_session_of_claude_code(tmp_path: Path) -> None:
    lines = [
        {"type": "summary", "summary": "A title", "leafUuid": "u"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {"a": "b"}},
        claude("user", {"role": "user", "content": "q"}, uuid="1"),
        claude("user", {"role": "user", "content": "q"}, uuid="1"),
        part_of_answer(1, type="thinking", thinking="hm", signature="c2ln"),
        part_of_answer(1, type="text", text="x"),
        part_of_answer(1, type="tool_use", id="1", name="Read", input={"path": "a"}),
        result("file"),
        part_of_answer(2, type="text", text="y"),
        claude("system", content="notice", subtype="informational"),
        claude("assistant", {"model": "<synthetic>", "content": "API error"}),
    ]
    assert read_all(tmp_path, *lines) == [
        [
            "user: q",
            "*assistant: <think>\nhm\n</think>\nx\n" + call("Read", '{"path":"a"}'),
            "tool: file",
            "*assistant: y",
            "system: notice",
            "assistant: API error",
        ]
    ]


def test_subagents_and_compactions_are_sessions_of_their_own(tmp_path: Path) -> None:
    side = {"isSidechain": True, "agentId": "a1"}
    lines = [
        claude("user", ASK),
        claude("assistant", {"id": "1", **ANSWER}),
        claude("user", {"role": "user", "content": "task"}, **side),
        claude("assistant", {"id": "2", **ANSWER}, **side),
        claude("system", subtype="compact_boundary", content="compacted"),
        claude("user", {"role": "user", "content": "summary"}, isCompactSummary=True),
        claude("assistant", {"id": "3", **ANSWER}),
    ]
    assert read_all(tmp_path, *lines) == [
        ["user: q", "*assistant: x"],
        ["user: task", "*assistant: x"],
        ["system: compacted", "user: summary", "*assistant: x"],
    ]


def test_a_line_of_claude_code_that_is_not_known_is_reported(tmp_path: Path) -> None:
    strange = claude("attachment", attachment={"type": "memo", "content": "m"})
    lines = [claude("user", ASK), strange, strange, claude("assistant", ANSWER)]
    trace = trace_of(tmp_path, *lines)
    assert noted(trace) == {"line of type attachment": 2}


def codex(kind: str, **payload: Any) -> dict[str, Any]:
    """A line of a Codex session."""
    return {"timestamp": "2025-01-01T00:00:00Z", "type": kind, "payload": payload}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    """A line with an item of a response."""
    return codex("response_item", type=kind, **fields)


CODEX = [
    item("message", role="user", content=[{"type": "input_text", "text": "q"}]),
    item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="Zm9v"),
    item("message", role="assistant", content=[{"type": "output_text", "text": "x"}]),
    item("function_call", name="shell", arguments='{"a": 1}', call_id="1"),
    item("function_call_output", call_id="1", output="file"),
    item("message", role="assistant", content=[{"type": "output_text", "text": "y"}]),
]
CODEX_SAID = [
    "user: q",
    "*assistant: <think>\nhm\n</think>\nx\n" + call("shell", '{"a": 1}'),
    "tool: file",
    "*assistant: y",
]


def test_a_session_of_codex(tmp_path: Path) -> None:
    lines = [
        codex("session_meta", id="s", cwd="/", base_instructions={"text": "s"}, instructions=None),
        codex("turn_context", cwd="/", model="m"),
        codex("event_msg", type="user_message", message="q"),
        *CODEX,
        codex("event_msg", type="agent_message", message="y"),
        codex("event_msg", type="token_count", info=None),
    ]
    assert read_all(tmp_path, *lines) == [["system: s", *CODEX_SAID]]


def test_an_older_session_of_codex_has_no_envelopes(tmp_path: Path) -> None:
    head = {"id": "s", "timestamp": "2025-01-01T00:00:00Z", "instructions": "s", "git": {}}
    lines = [head, {"record_type": "state"}, *(line["payload"] for line in CODEX)]
    assert read_all(tmp_path, *lines) == [["system: s", *CODEX_SAID]]


def test_after_a_compaction_codex_has_read_what_replaced_the_history(tmp_path: Path) -> None:
    user = {"type": "message", "role": "user", "content": "kept"}
    for payload, read in ({"message": "sum"}, "sum"), ({"replacement_history": [user]}, "kept"):
        lines = [*CODEX, codex("compacted", **payload), CODEX[-1]]
        assert read_all(tmp_path, *lines) == [CODEX_SAID, [f"user: {read}", "*assistant: y"]]


def test_an_item_of_codex_that_is_not_known_is_reported(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, *CODEX, item("hologram", text="t"), item("ghost_snapshot", id="g"))
    assert noted(trace) == {"item hologram": 1}


def test_the_history_of_swe_agent(tmp_path: Path) -> None:
    history = [
        {"role": "system", "content": "s", "agent": "main", "message_type": "system_prompt"},
        {"role": "assistant", "content": "shown", "is_demo": True},
        {"role": "user", "content": [{"type": "text", "text": "q"}], "message_type": "observation"},
        {**ANSWER, "thought": "x", "action": "ls", "message_type": "action"},
    ]
    steps = [{"action": "ls", "observation": "o", "response": "x", "thought": "x", "state": {}}]
    document = {"trajectory": steps, "history": history, "info": {"submission": "patch"}}
    assert read_all(tmp_path, document, document=True) == [
        ["system: s", "assistant: shown", "user: q", "*assistant: x"]
    ]


def test_steps_of_swe_agent_without_a_history(tmp_path: Path) -> None:
    first = {"response": "x", "observation": "o", "query": [ASK]}
    observed = {"role": "user", "content": "o"}
    second = {"response": "y", "observation": "", "query": [ASK, ANSWER, observed]}
    whole = ["user: q", "*assistant: x", "user: o", "*assistant: y"]
    assert read_all(tmp_path, {"trajectory": [first, second]}, document=True) == [whole]
    bare = [{"response": "x", "observation": "o"}, {"response": "y", "observation": "p"}]
    trace = trace_of(tmp_path, {"trajectory": bare}, document=True)
    assert said(trace.conversations[0]) == ["*assistant: x", "user: o", "*assistant: y", "user: p"]
    assert noted(trace) == {"steps without a query": 1}


def test_results_of_tau_bench(tmp_path: Path) -> None:
    calls = [{"function": {"name": "look", "arguments": "{}"}, "id": "1", "type": "function"}]
    turns = [
        {"role": "system", "content": "policy"},
        ASK,
        {"role": "assistant", "content": None, "tool_calls": calls, "function_call": None},
        {"role": "tool", "tool_call_id": "1", "name": "look", "content": "o"},
        ANSWER,
    ]
    results = [{"task_id": 3, "reward": 1.0, "info": {"task": "t"}, "traj": turns, "trial": 0}]
    trace = trace_of(tmp_path, results, document=True)
    assert [c.session for c in trace.conversations] == ["task 3, trial 0"]
    expected = ["system: policy", "user: q", "*assistant: " + call("look", "{}"), "tool: o"]
    assert read_all(tmp_path, results, document=True) == [[*expected, "*assistant: x"]]


def test_simulations_of_tau2_bench(tmp_path: Path) -> None:
    turns = [
        {**ASK, "turn_idx": 0},
        {"role": "user", "content": None, "tool_calls": [{"name": "toggle", "arguments": {}}]},
        {"role": "tool", "requestor": "user", "content": "toggled"},
        {"role": "tool", "requestor": "assistant", "content": "o"},
        ANSWER,
    ]
    info = {"environment_info": {"domain_name": "d", "policy": "p", "tool_defs": None}}
    document = {"info": info, "tasks": [], "simulations": [{"id": "one", "messages": turns}]}
    trace = trace_of(tmp_path, document, document=True)
    assert said(trace.conversations[0]) == ["system: p", "user: q", "tool: o", "*assistant: x"]
    assert noted(trace) == {"calls and results": 2}


def kept(number: int, **message: Any) -> dict[str, Any]:
    """The answer behind an action of OpenHands."""
    choices = [{"message": {"role": "assistant", **message}}]
    return {"model_response": {"id": f"r{number}", "choices": choices}}


def action(name: str, source: str, metadata: Any = None, **arguments: Any) -> dict[str, Any]:
    """An action of OpenHands' first generation."""
    event = {"id": 1, "source": source, "message": "shown", "action": name, "args": arguments}
    return {**event, **({"tool_call_metadata": metadata} if metadata else {})}


def observation(name: str, content: str, **extras: Any) -> dict[str, Any]:
    """An observation of the same."""
    event = {"id": 2, "source": "agent", "message": "shown", "cause": 1}
    return {**event, "observation": name, "content": content, "extras": extras}


EVENTS = [
    action("system", "agent", content="s", tools=[{"name": "run"}]),
    action("message", "user", content="q"),
    action("recall", "user", query="q"),
    observation("recall", "Added", repo_instructions="rules", microagent_knowledge=[]),
    action("run", "agent", kept(1, content="x", tool_calls=[{"name": "run", "arguments": "{}"}])),
    action("run", "agent", kept(1, content="x", tool_calls=[{"name": "run", "arguments": "{}"}])),
    observation("run", "out", command="ls", exit_code=0),
    action("change_agent_state", "agent", agent_state="running"),
    observation("agent_state_changed", "", agent_state="running"),
    action("run", "agent", command="ls", thought="look", hidden=False),
    observation("run", "more"),
    action("message", "agent", content="done"),
]
EVENTS_SAID = [
    "system: s",
    'system: <tools>\n{"name":"run"}\n</tools>',
    "user: q",
    "tool: Added\nrules",
    "*assistant: x\n" + call("run", "{}"),
    "tool: out",
    "*assistant: look\n" + call("run", '{"command":"ls"}'),
    "tool: more",
    "*assistant: done",
]


def test_events_of_openhands(tmp_path: Path) -> None:
    assert read_all(tmp_path, EVENTS, document=True) == [EVENTS_SAID]
    run = {"instance_id": "i", "instruction": "q", "history": EVENTS, "git_patch": "p"}
    assert read_all(tmp_path, run, run) == [EVENTS_SAID, EVENTS_SAID]
    paired = {**run, "history": [EVENTS[:2], EVENTS[2:]]}
    assert read_all(tmp_path, paired) == [EVENTS_SAID]


def test_an_event_of_openhands_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    run = {"history": [*EVENTS, {"strange": 1}]}
    trace = trace_of(tmp_path, run)
    assert [problem.place for problem in trace.problems] == ["line 1, event 13"]
    assert said(trace.conversations[0]) == EVENTS_SAID


def text(value: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": value}]


def test_events_of_openhands_second_generation(tmp_path: Path) -> None:
    answer = {"kind": "ActionEvent", "source": "agent", "llm_response_id": "r1"}
    events: list[dict[str, Any]] = [
        {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": text("s")[0]},
        {"kind": "MessageEvent", "source": "user", "llm_message": {**ASK, "content": text("q")}},
        {
            **answer, "thought": text("x"), "reasoning_content": "hm",
            "tool_call": {"id": "1", "name": "run", "arguments": "{}", "origin": "completion"},
        },
        {**answer, "thought": [], "tool_call": {"name": "look", "arguments": "{}"}},
        {"kind": "ConversationStateUpdateEvent", "source": "environment", "value": "running"},
        {"kind": "ObservationEvent", "source": "agent", "observation": {"content": text("o")}},
        {"kind": "AgentErrorEvent", "source": "agent", "error": "broken"},
        {"kind": "MessageEvent", "source": "agent", "llm_message": {**ANSWER}},
    ]  # fmt: skip
    expected = [
        "system: s",
        "user: q",
        "*assistant: <think>\nhm\n</think>\nx\n" + call("run", "{}") + "\n" + call("look", "{}"),
        "tool: o",
        "tool: broken",
        "*assistant: x",
    ]
    assert read_all(tmp_path, events, document=True) == [expected]
    strange = {"kind": "HologramEvent", "source": "agent", "picture": "p"}
    assert noted(trace_of(tmp_path, [*events, strange], document=True)) == {
        "event HologramEvent": 1
    }
