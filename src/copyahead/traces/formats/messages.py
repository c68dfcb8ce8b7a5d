"""Messages of a conversation, of OpenAI's kind, Anthropic's and ShareGPT's, and text beside them.

What the model wrote is the assistant's text, thinking, and calls. All else it read: other
messages, results of tools, and what a client sends beside the messages (`CONTEXT`).
"""

from __future__ import annotations

from typing import Any

from copyahead.traces.formats.content import (
    ASSISTANT,
    Piece,
    call_text,
    joined,
    pieces_of,
    text_of_parts,
    thinking_text,
    tools_text,
)
from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.reading import Item, Notes, Reading, has_text, text_of, words

_READ = (
    "system developer user tool function environment observation ipython tool_response tool_result "
    "function_response function_result exit"
)
_WRITTEN = "assistant gpt model ai bot chatgpt bing bard claude function_call tool_call"
ROLES = {
    **{role: role for role in _READ.split()},
    **dict.fromkeys(_WRITTEN.split(), ASSISTANT),
    "human": "user",
}
"""Every role that is known, and what it is called in a template."""

_THINKING = ("reasoning_content", "reasoning", "thinking")
_THINKING_PARTS = ("thinking_blocks", "reasoning_details")
_CALLS = ("tool_calls", "function_call")
CONTEXT = frozenset({"system", "system_prompt", "instructions", "tools", "functions"})
"""Keys beside the messages whose text the model has read before them."""
BOOKKEEPING = words(
    "id uuid object type index created created_at timestamp model model_name name agent user_id "
    "session_id conversation_id instance_id task_id custom_id tool_call_id tool_use_id call_id "
    "finish_reason stop_reason stop_sequence status usage metrics info metadata extra logprobs "
    "cache_control provider_specific_fields annotations"
)
"""Keys that hold no text a model has read or written: names, times, counts and settings."""
_MESSAGE = (
    BOOKKEEPING
    | {"role", "content", "refusal", "is_demo", "message_type"}
    | {*_THINKING, *_THINKING_PARTS, *_CALLS}
)


def is_message(item: Item) -> bool:
    """Whether an object is one message, and no more."""
    return isinstance(item.get("role"), str) and ("content" in item or "tool_calls" in item)


def role_of(item: Any) -> str:
    """What a message's role is called in a template; empty where it has none."""
    role = item.get("role") if isinstance(item, dict) else None
    return ROLES.get(role.lower(), role) if isinstance(role, str) else ""


def messages_of(
    items: Any, notes: Notes, *, written: bool, known: frozenset[str] = frozenset()
) -> list[Message]:
    """All of `items`; `written`: whether those of the assistant were written in this run.

    `known`: further keys of a message to say nothing of. Raises ValueError naming the first
    message that cannot be read.
    """
    if not isinstance(items, list):
        raise ValueError("messages is not a list")
    messages = []
    for number, item in enumerate(items, start=1):
        try:
            messages.extend(read_message(item, notes, written=written, known=known))
        except (ValueError, TypeError, KeyError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"message {number}: {reason}") from None
    return messages


def read_message(
    item: Any, notes: Notes, *, written: bool, known: frozenset[str] = frozenset()
) -> list[Message]:
    """One message: its text, the thinking before it and the calls after it.

    Several where it holds results of tools.
    """
    if not isinstance(item, dict):
        raise ValueError("not an object")
    role = item["role"]
    if not isinstance(role, str):
        raise ValueError("role is not text")
    if role.lower() not in ROLES:
        notes.role(role)
    role = role_of(item)
    notes.keys(item, _MESSAGE | known, "a message")
    pieces = pieces_of(item.get("content"), role, notes)
    if role == ASSISTANT:
        pieces = [*thinking_of(item, notes), *pieces, *_calls(item)]
    else:
        for key in (*_THINKING, *_THINKING_PARTS, *_CALLS):
            if has_text(item.get(key)):
                notes.add(f"key {key} of a message of role {role}", "only the assistant's is read")
    wrote = written and not item.get("is_demo")
    return messages_from(pieces, written=wrote) or [Message(role, "")]


def messages_from(pieces: list[Piece], *, written: bool) -> list[Message]:
    """A message for each run of pieces of one role; `written` if they are the assistant's."""
    return [
        Message(role, text, written and role == ASSISTANT and bool(text))
        for role, text in joined(pieces)
    ]


def context_of(item: Item, notes: Notes) -> list[Message]:
    """What stands beside the messages and was read before them, as messages of the system."""
    texts = [
        text_of_parts(item.get(key), notes) for key in ("system", "system_prompt", "instructions")
    ]
    texts += [tools_text(item.get(key)) for key in ("tools", "functions")]
    return [Message("system", text) for text in texts if text]


def read_messages(reading: Reading, item: Item) -> None:
    """A session that holds its `messages`; what is beside them may be in its `request`."""
    notes = reading.notes
    request = item.get("request")
    request = request if isinstance(request, dict) else {}
    notes.keys(item, CONTEXT | BOOKKEEPING | _AROUND, "an object with messages")
    notes.keys(request, CONTEXT | BOOKKEEPING, "a request")
    messages = context_of(item, notes) + context_of(request, notes)
    messages += messages_of(item["messages"], notes, written=True)
    reading.session(name_of(item, reading.place), messages)


def read_single_message(reading: Reading, item: Item) -> None:
    """One message of a file that is itself a conversation."""
    reading.append(reading.file, read_message(item, reading.notes, written=True))


def read_share_gpt(reading: Reading, item: Item) -> None:
    """A session of turns: `from` and `value`, or `role` and `content`."""
    key = "conversations" if "conversations" in item else "conversation"
    turns = []
    for number, turn in enumerate(item[key], start=1):
        if not isinstance(turn, dict):
            raise ValueError(f"turn {number} is not an object (it is {type(turn).__name__})")
        names = {"from": "role", "value": "content"}
        turns.append({names.get(name, name): value for name, value in turn.items()})
    rest = {name: value for name, value in item.items() if name != key}
    read_messages(reading, {**rest, "messages": turns})


def name_of(item: Item, place: str) -> str:
    """What a session is called: its id, or else its place in the file."""
    return str(item.get("id") or item.get("instance_id") or item.get("session_id") or place)


_AROUND = frozenset({"messages", "request", "trajectory_format"})


def thinking_of(item: Item, notes: Notes) -> list[Piece]:
    """The first of the keys for it that has any; others mostly repeat it."""
    found = ""
    for key in (*_THINKING, *_THINKING_PARTS):
        value = item.get(key) or ""
        if key in _THINKING_PARTS:
            value = "" if found else _details(value)
        text = text_of(value, key)
        if found and text and text != found:
            notes.add(f"key {key} of a message", "the thinking was taken from another key")
        found = found or text
    return [(ASSISTANT, thinking_text(found))] if found else []


def _details(parts: Any) -> str:
    """The text of LiteLLM's `thinking_blocks`, or of OpenRouter's `reasoning_details`."""
    fields = ("thinking", "text", "summary")
    found = [p.get(f) for p in parts or () if isinstance(p, dict) for f in fields]
    return "".join(text for text in found if isinstance(text, str))


def _calls(item: Item) -> list[Piece]:
    found = [] if item.get("refusal") is None else [text_of(item["refusal"], "refusal")]
    found += [call_text(call) for call in item.get("tool_calls") or ()]
    if item.get("function_call"):
        found.append(call_text(item["function_call"]))
    return [(ASSISTANT, text) for text in found if text]
