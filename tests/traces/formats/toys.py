"""Files of made-up traffic, and what is read of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from copyahead.traces.formats.conversations import Conversation
from copyahead.traces.formats.importers import Trace, read_traces


def trace_of(folder: Path, *items: Any, document: bool = False) -> Trace:
    """The trace of a file with `items`, an item a line, or with the one item as a document."""
    path = folder / "made-up.json"
    if document:
        path.write_text(json.dumps(items[0], indent=1))
    else:
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
    (trace,) = read_traces([str(path)])
    return trace


def said(conversation: Conversation) -> list[str]:
    """Each message as `role: text`, with a `*` before those that the model wrote."""
    return [f"{'*' * m.written}{m.role}: {m.text}" for m in conversation.messages]


def read_all(folder: Path, *items: Any, document: bool = False) -> list[list[str]]:
    """The same for every session of a file in which there is nothing to report."""
    trace = trace_of(folder, *items, document=document)
    assert trace.problems == []
    return [said(conversation) for conversation in trace.conversations]


def noted(trace: Trace) -> dict[str, int]:
    """What was reported, and how often it occurs."""
    return {problem.place: problem.count for problem in trace.problems}


def call(name: str, arguments: str) -> str:
    """A call as it stands in a message."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
