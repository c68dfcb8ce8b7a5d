"""SWE-agent's trajectories: `history`, or the steps of `trajectory` with their queries.

Written: answers of the model. Read: all other messages, demonstrations too. A step's `thought` and
`action` are parts of its `response`, and the history holds the text of the steps.
"""

from __future__ import annotations

from typing import Any

from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.messages import BOOKKEEPING, is_message, messages_of, name_of
from copyahead.traces.formats.reading import Item, Notes, Reading, text_of

_PARTS = frozenset({"thought", "action", "tags", "cache_control"})
_STEP = (
    BOOKKEEPING
    | _PARTS
    | {"response", "observation", "state", "query", "messages", "execution_time", "extra_info"}
)
_DOCUMENT = BOOKKEEPING | {"history", "trajectory", "environment", "replay_config"}


def is_swe_agent(item: Item) -> bool:
    """Whether an object is a trajectory."""
    steps = item.get("trajectory")
    return _messages(item.get("history")) or (
        isinstance(steps, list)
        and bool(steps)
        and isinstance(steps[0], dict)
        and "response" in steps[0]
    )


def read_swe_agent(reading: Reading, item: Item) -> None:
    """One run; requests of their own where each step has its query."""
    notes = reading.notes
    notes.keys(item, _DOCUMENT, "a trajectory")
    if _messages(item.get("history")):
        messages = messages_of(item["history"], notes, written=True, known=_PARTS)
        reading.session(name_of(item, reading.place), messages)
        return
    steps = item["trajectory"]
    for step in steps:
        notes.keys(step, _STEP, "a step")
    if all(_messages(step.get("query")) for step in steps):
        for step in steps:
            prompt = messages_of(step["query"], notes, written=False, known=_PARTS)
            reading.request(name_of(item, reading.place), prompt, [_answer(step)])
    else:
        reading.session(name_of(item, reading.place), _steps(steps, notes))


def _messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(entry, dict) and is_message(entry) for entry in value)
    )


def _answer(step: Item) -> Message:
    text = text_of(step["response"], "response")
    return Message("assistant", text, written=bool(text))


def _steps(steps: list[Any], notes: Notes) -> list[Message]:
    notes.add("steps without a query", "what was read before the first answer was not recorded")
    found = []
    for step in steps:
        found.append(_answer(step))
        found.append(Message("user", text_of(step.get("observation"), "observation")))
    return found
