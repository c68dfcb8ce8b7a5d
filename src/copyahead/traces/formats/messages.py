"""Messages of the OpenAI kind, as the text that a model reads and writes."""

from __future__ import annotations

from typing import Any

import msgspec

from copyahead.traces.formats.conversations import Message

ASSISTANT = "assistant"


def messages_of(items: Any, *, written: bool) -> list[Message]:
    """All of `items`; `written`: whether those of the assistant were written in this run.

    Raises ValueError naming the first message that cannot be read.
    """
    if not isinstance(items, list):
        raise ValueError("messages is not a list")
    messages = []
    for number, item in enumerate(items, start=1):
        try:
            messages.append(message_of(item, written=written))
        except (ValueError, TypeError, KeyError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"message {number}: {reason}") from None
    return messages


def message_of(item: Any, *, written: bool) -> Message:
    """One message: its text, the thinking before it and the tool calls after it."""
    if not isinstance(item, dict):
        raise ValueError("not an object")
    role = item["role"]
    if not isinstance(role, str):
        raise ValueError("role is not text")
    thinking = item.get("reasoning_content") or ""
    if not isinstance(thinking, str):
        raise ValueError("reasoning_content is not text")
    text = f"<think>\n{thinking}\n</think>\n" if thinking and role == ASSISTANT else ""
    text += _content(item.get("content"))
    if role == ASSISTANT:
        calls = "".join(_call(call) for call in item.get("tool_calls") or ())
        text += calls if text else calls.lstrip("\n")
    return Message(role, text, written and role == ASSISTANT and bool(text))


def _content(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError("content is neither text nor a list of parts")
    pieces = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in ("text", "input_text", "output_text"):
            raise ValueError(f"a part of type {kind}, which has no text")
        pieces.append(part["text"])
    return "".join(pieces)


def _call(call: Any) -> str:
    """A call as common chat templates write it; the arguments are the model's own text."""
    function = (call.get("function") or call) if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise ValueError("a tool call is not an object")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = msgspec.json.encode(arguments).decode()
    name = msgspec.json.encode(str(function["name"])).decode()
    return f'\n<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
