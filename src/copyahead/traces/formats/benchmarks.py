"""Results of benchmarks that hold whole conversations: lucebench, tau-bench and tau2-bench.

Written: every message of the assistant. Read: all else, but for what only a simulated user saw.
"""

from __future__ import annotations

from typing import Any

from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.messages import BOOKKEEPING, CONTEXT, context_of, messages_of
from copyahead.traces.formats.reading import Item, Reading, text_of

_LUCEBENCH = BOOKKEEPING | {"schema", "cases"}
_CASE = BOOKKEEPING | {"messages", "reference_response", "source_session_id"}
_TAU = BOOKKEEPING | {"traj", "trial", "reward"}
_TAU2 = frozenset({"requestor", "turn_idx", "raw_data", "error", "cost", "generation_time_seconds"})
_NOTE = "of the simulated user, so not read"


def is_lucebench(item: Item) -> bool:
    """Whether an object holds lucebench's cases."""
    return isinstance(item.get("cases"), list)


def read_lucebench(reading: Reading, item: Item) -> None:
    """Cases are cuts of a few sessions: the longest cut of each holds all the others."""
    reading.notes.keys(item, _LUCEBENCH, "a document")
    longest: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(item["cases"], start=1):
        if not isinstance(case, dict) or not isinstance(case.get("messages"), list):
            reading.skip(f"case {number}", "it has no messages")
            continue
        session = str(case.get("source_session_id") or case.get("id") or number)
        held = longest.get(session)
        if held is None or len(case["messages"]) > len(held["messages"]):
            longest[session] = case
    reading.category = "lucebench"
    for session, case in longest.items():
        reading.notes.keys(case, _CASE | CONTEXT, "a case")
        messages = context_of(case, reading.notes)
        messages += messages_of(case["messages"], reading.notes, written=True)
        if case.get("reference_response"):
            answer = text_of(case["reference_response"], "reference_response")
            messages.append(Message("assistant", answer, written=True))
        reading.session(session, messages)


def is_tau_bench(item: Item) -> bool:
    """Whether an object is one result of tau-bench, or all of tau2-bench's."""
    return isinstance(item.get("traj"), list) or isinstance(item.get("simulations"), list)


def read_tau_bench(reading: Reading, item: Item) -> None:
    """One result is one session."""
    if "traj" in item:
        reading.notes.keys(item, _TAU, "a result")
        messages = messages_of(item["traj"], reading.notes, written=True)
        name = f"task {item.get('task_id')}, trial {item.get('trial', 0)}"
        reading.session(name, messages)
        return
    context = _environment(reading, item.get("info"))
    for number, run in enumerate(item["simulations"], start=1):
        turns = [turn for turn in run["messages"] if _seen_by_agent(reading, turn)]
        messages = messages_of(turns, reading.notes, written=True, known=_TAU2)
        reading.session(str(run.get("id") or f"simulation {number}"), context + messages)


def _environment(reading: Reading, info: Any) -> list[Message]:
    """The policy and the tools of the domain, which the agent has read."""
    environment = info.get("environment_info") if isinstance(info, dict) else None
    if not isinstance(environment, dict):
        return []
    context = {"system": environment.get("policy"), "tools": environment.get("tool_defs")}
    return context_of(context, reading.notes)


def _seen_by_agent(reading: Reading, turn: Any) -> bool:
    """Calls that the simulated user makes, and their results, are not the agent's."""
    if not isinstance(turn, dict):
        return True
    of_user = turn.get("role") == "user" and bool(turn.get("tool_calls"))
    if of_user or (turn.get("role") == "tool" and turn.get("requestor") == "user"):
        reading.notes.add("calls and results", _NOTE)
        return False
    return True
