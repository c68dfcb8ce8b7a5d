"""Contents of messages as the text that a model reads and writes: parts, calls, thinking, tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from copyahead.traces.formats.reading import Item, Notes, text_of

ASSISTANT = "assistant"
TOOL = "tool"

Piece = tuple[str, str]
"""Whose text it is, and the text."""


def pieces_of(content: Any, role: str, notes: Notes) -> list[Piece]:
    """A message's content, given as text or as parts; results of tools are pieces of their own.

    Raises ValueError for a part that has no text, such as an image.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [(role, content)]
    if not isinstance(content, list):
        raise ValueError("content is neither text nor a list of parts")
    return [piece for part in content for piece in _part(part, role, notes)]


def text_of_parts(content: Any, notes: Notes) -> str:
    """The same as one text."""
    return "".join(text for _, text in pieces_of(content, "", notes))


def thinking_text(thinking: str) -> str:
    """Thinking as common chat templates write it."""
    return f"<think>\n{thinking}\n</think>\n" if thinking else ""


def call_text(call: Any) -> str:
    """A call as common chat templates write it; the arguments are the model's own text.

    It is `{"name", "arguments"}`, `{"name", "input"}`, or one of them under `function` or `custom`.
    """
    call = (call.get("function") or call.get("custom") or call) if isinstance(call, dict) else None
    if not isinstance(call, dict):
        raise ValueError("a tool call is not an object")
    name = json_text(str(call["name"]))
    if "arguments" not in call and isinstance(call.get("input"), str):
        # A free-form tool: its input is no JSON.
        return f'\n<tool_call>\n{{"name": {name}}}\n{call["input"]}\n</tool_call>'
    arguments = call.get("arguments", call.get("input", "{}"))
    if not isinstance(arguments, str):
        arguments = json_text(arguments)
    return f'\n<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def tools_text(tools: Any) -> str:
    """Definitions of tools as common chat templates list them: one a line, in JSON."""
    if isinstance(tools, dict):
        tools = list(tools.values())
    if isinstance(tools, list):
        tools = "\n".join(t if isinstance(t, str) else json_text(t) for t in tools)
    tools = text_of(tools, "tools")
    return f"<tools>\n{tools}\n</tools>" if tools.strip() else ""


def json_text(value: Any) -> str:
    """JSON without spaces."""
    return msgspec.json.encode(value).decode()


def joined(pieces: list[Piece]) -> list[Piece]:
    """Neighbours of one role as one, without empty ones; a call at the start loses its line end."""
    found: list[Piece] = []
    for role, text in pieces:
        if not text:
            continue
        if found and found[-1][0] == role:
            found[-1] = (role, found[-1][1] + text)
        elif text.startswith("\n<tool_call>"):
            found.append((role, text[1:]))
        else:
            found.append((role, text))
    return found


def _part(part: Any, role: str, notes: Notes) -> list[Piece]:
    if isinstance(part, str):
        return [(role, part)]
    kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
    if isinstance(kind, str) and (kind == "tool_result" or kind.endswith("_tool_result")):
        return [(TOOL, text_of_parts(_result(part), notes))]
    read = _PARTS.get(kind)
    if read is None or not isinstance(part, dict):
        raise ValueError(f"a part of type {kind}, which has no text")
    return [(role, read(part, notes))]


def _result(part: Item) -> Any:
    """The content of a tool's result; what is no text and no list stands as JSON."""
    content = part.get("content")
    return json_text(content) if isinstance(content, dict) else content


def _text(part: Item, _: Notes) -> str:
    return text_of(part["text"], "text")


def _thinking(part: Item, _: Notes) -> str:
    return thinking_text(text_of(part["thinking"], "thinking"))


def _call(part: Item, _: Notes) -> str:
    return call_text(part)


def _without_text(part: Item, notes: Notes) -> str:
    notes.add(f"part {part.get('type')}", "its text was not recorded")
    return ""


def _document(part: Item, notes: Notes) -> str:
    source = part.get("source", part.get("content"))
    if isinstance(source, dict):
        if source.get("type") not in ("text", "content"):
            raise ValueError(f"a document of type {source.get('type')}, which has no text")
        source = source.get("data", source.get("content"))
    heads = "".join(f"{part[key]}\n" for key in ("title", "context") if part.get(key))
    return heads + text_of_parts(source, notes)


_PARTS: dict[Any, Callable[[Item, Notes], str]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text"), _text),
    "refusal": lambda part, _: text_of(part["refusal"], "refusal"),
    "thinking": _thinking,
    "redacted_thinking": _without_text,
    "tool_use": _call,
    "server_tool_use": _call,
    "mcp_tool_use": _call,
    "document": _document,
    "search_result": _document,
    "web_search_result": _without_text,
}
