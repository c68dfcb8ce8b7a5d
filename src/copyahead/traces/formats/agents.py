"""Session files of coding agents, an event a line: Claude Code's and Codex's.

Written: the assistant's text, thinking and calls; the events of one answer are one request. Read:
the user's messages, results of tools, instructions. Events that only repeat others for the screen,
or only keep the books, are left out.
"""

from __future__ import annotations

from typing import Any

from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.messages import context_of, messages_from, read_message
from copyahead.traces.formats.reading import Item, Reading, text_of, words
from copyahead.traces.formats.responses import items_of, pieces_of_item

_CLAUDE_BOOKS = words(
    "summary file-history-snapshot progress queue-operation result last-prompt custom-title "
    "ai-title agent-name permission-mode pr-link rate_limit_event stream_event"
)
_CLAUDE_IDS = ("sessionId", "session_id", "leafUuid", "messageId")
_CLAUDE_MESSAGE = frozenset({"container", "context_management", "stop_details"})
_CODEX = frozenset({"session_meta", "response_item", "event_msg", "turn_context", "compacted"})
_CODEX_ITEMS = words(
    "message reasoning function_call function_call_output local_shell_call custom_tool_call "
    "custom_tool_call_output web_search_call"
)
_REQUESTS = words("messages conversations request prompt input output")
"""Keys of objects that are no event of a session."""
_CODEX_BOOKS = frozenset({"ghost_snapshot", "other"})


def is_claude_code(item: Item) -> bool:
    """Whether an object is a line of a Claude Code session, or of its `stream-json` output."""
    named = isinstance(item.get("type"), str) and any(key in item for key in _CLAUDE_IDS)
    return named and not _REQUESTS & item.keys()


def read_claude_code(reading: Reading, item: Item) -> None:
    """A line. What a subagent did is a session of its own, and so is what follows a compaction."""
    kind = item["type"]
    session = _claude_session(item)
    if kind in _CLAUDE_BOOKS or reading.seen(item.get("uuid")):
        return
    if kind in ("user", "assistant"):
        message = item["message"]
        # An error that the program put in the model's place has this model's name.
        wrote = kind == "assistant" and message.get("model") != "<synthetic>"
        found = read_message(
            {"role": kind, **message}, reading.notes, written=wrote, known=_CLAUDE_MESSAGE
        )
        reading.append(session, found, part_of=str(message.get("id") or ""))
    elif kind == "system":
        if item.get("subtype") == "compact_boundary":
            reading.restart(session)
        reading.append(session, [Message("system", text_of(item.get("content"), "content"))])
    else:
        reading.notes.add(f"line of type {kind}", "not known, so its text is not read")


def is_codex(item: Item) -> bool:
    """Whether an object is a line of a Codex session; older ones have no envelope."""
    kind = item.get("type")
    if isinstance(item.get("payload"), dict):
        return kind in _CODEX
    return (
        (kind in _CODEX_ITEMS and "messages" not in item)
        or item.get("record_type") == "state"
        or _old_head(item)
    )


def read_codex(reading: Reading, item: Item) -> None:
    """A line of the file's one session."""
    if _old_head(item):
        reading.append(reading.file, context_of(item, reading.notes))
    elif "payload" not in item:
        if "record_type" not in item:
            _codex_item(reading, item)
    elif item["type"] == "session_meta":
        _codex_head(reading, item["payload"])
    elif item["type"] == "response_item":
        _codex_item(reading, item["payload"])
    elif item["type"] == "compacted":
        _codex_restart(reading, item["payload"])


def _claude_session(item: Item) -> str:
    name = str(item.get("sessionId") or item.get("session_id") or "")
    if item.get("isSidechain") or item.get("agentId") or item.get("parent_tool_use_id"):
        return f"{name}/{item.get('agentId') or item.get('parent_tool_use_id') or 'subagent'}"
    return name


def _old_head(item: Item) -> bool:
    head = {"instructions", "timestamp", "id"} <= item.keys()
    return head and not ("type" in item or _REQUESTS & item.keys())


def _codex_head(reading: Reading, payload: Item) -> None:
    head = dict(payload)
    base = payload.get("base_instructions")
    head["system"] = base.get("text") if isinstance(base, dict) else base
    head["tools"] = payload.get("dynamic_tools")
    reading.append(reading.file, context_of(head, reading.notes))


def _codex_item(reading: Reading, item: Item) -> None:
    if item.get("type") not in _CODEX_BOOKS:
        messages = messages_from(pieces_of_item(item, reading.notes), written=True)
        reading.append(reading.file, messages, part_of="answer")


def _codex_restart(reading: Reading, payload: Item) -> None:
    """After a compaction the model has read what replaced the history."""
    reading.restart(reading.file)
    history: Any = payload.get("replacement_history")
    if history:
        messages = items_of(history, reading.notes, written=False)
    else:
        messages = [Message("user", text_of(payload.get("message"), "message"))]
    reading.append(reading.file, messages)
