"""Items of OpenAI's Responses API, in logs and in Codex's session files.

Written: messages of the assistant, reasoning, and calls. Read: other messages and outputs of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from copyahead.traces.formats.content import (
    ASSISTANT,
    TOOL,
    Piece,
    call_text,
    joined,
    json_text,
    pieces_of,
    text_of_parts,
    thinking_text,
    tools_text,
)
from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.messages import (
    BOOKKEEPING,
    ROLES,
    context_of,
    messages_from,
    role_of,
)
from copyahead.traces.formats.reading import Item, Notes, Reading, keys_of, text_of, words

_ITEM = BOOKKEEPING | {"role", "content", "phase", "namespace"}


def read_response(reading: Reading, request: Item, response: Item) -> None:
    """A request and its response.

    One that goes on from an earlier response (`previous_response_id`) has read what that one had.
    Raises ValueError where that one is not in the file.
    """
    notes = reading.notes
    earlier = request.get("previous_response_id")
    if earlier and earlier not in reading.responses:
        raise ValueError(f"the response that it goes on from is missing: {earlier}")
    conversation = list(reading.responses[earlier]) if earlier else []
    asked = request.get("input")
    if asked is None:
        raise ValueError(f"the request has no input (it has {keys_of(request)})")
    if isinstance(asked, str):
        conversation.append(Message("user", asked))
    else:
        conversation += items_of(asked, notes, written=False)
    answer = items_of(response["output"], notes, written=True)
    reading.request(reading.place, context_of(request, notes) + conversation, answer)
    if isinstance(response.get("id"), str):
        reading.responses[response["id"]] = conversation + answer


def items_of(items: Any, notes: Notes, *, written: bool) -> list[Message]:
    """The messages that `items` make; neighbours of the assistant are one.

    Raises ValueError naming the first item that cannot be read.
    """
    if not isinstance(items, list):
        raise ValueError("the items are not a list")
    pieces = []
    for number, item in enumerate(items, start=1):
        try:
            pieces += pieces_of_item(item, notes)
        except (ValueError, TypeError, KeyError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"item {number}: {reason}") from None
    return _apart(pieces, written=written)


def pieces_of_item(item: Any, notes: Notes) -> list[Piece]:
    """What one item holds, and whose it is. An item that is not known is noted."""
    if not isinstance(item, dict):
        raise ValueError("not an object")
    kind = item.get("type") or "message"
    known = _KINDS.get(kind)
    if known is None:
        notes.add(f"item {kind}", "of a type that is not known, so not read")
        return []
    read, keys = known
    notes.keys(item, _ITEM | keys, f"an item {kind}")
    return read(item, notes)


def _apart(pieces: list[Piece], *, written: bool) -> list[Message]:
    """Messages of the assistant are joined, as one answer has several items; no others are."""
    messages: list[Message] = []
    run: list[Piece] = []
    for piece in [*pieces, ("", "")]:
        if run and (piece[0] != ASSISTANT or run[-1][0] != ASSISTANT):
            messages += messages_from(run, written=written)
            run = []
        run.append(piece)
    return messages


def _message(item: Item, notes: Notes) -> list[Piece]:
    role = text_of(item["role"], "role")
    if role.lower() not in ROLES:
        notes.role(role)
    return joined(pieces_of(item.get("content"), role_of(item), notes))


def _reasoning(item: Item, notes: Notes) -> list[Piece]:
    """The reasoning itself where it was recorded, or else its summary."""
    found = text_of_parts(item.get("content"), notes) or "\n".join(
        text_of_parts([part], notes) for part in item.get("summary") or ()
    )
    if not found:
        notes.add("item reasoning", "its text was not recorded")
    return [(ASSISTANT, thinking_text(found))]


def _call(item: Item, _: Notes) -> list[Piece]:
    return [(ASSISTANT, call_text(item))]


def _action(item: Item, _: Notes) -> list[Piece]:
    """A call of one of the provider's tools, which goes by the item's own type."""
    name = str(item["type"]).removesuffix("_call")
    if isinstance(item.get("code"), str):
        return [(ASSISTANT, call_text({"name": name, "input": item["code"]}))]
    arguments = item.get("action", {"queries": item.get("queries")})
    return [(ASSISTANT, call_text({"name": name, "arguments": arguments}))]


def _output(item: Item, notes: Notes) -> list[Piece]:
    output = item.get("output")
    if isinstance(output, dict):
        output = output.get("content", output)
    if isinstance(output, dict):
        output = json_text(output)
    return [(TOOL, text_of_parts(output, notes))]


def _remote_call(item: Item, notes: Notes) -> list[Piece]:
    return [*_call(item, notes), (TOOL, text_of(item.get("output"), "output"))]


def _listed(item: Item, _: Notes) -> list[Piece]:
    return [("system", tools_text(item.get("tools")))]


_ARGUMENTS = words("arguments input action queries code")
_Kind = tuple[Callable[[Item, Notes], list[Piece]], frozenset[str]]
_CALL: _Kind = (_call, _ARGUMENTS)
_ACTION: _Kind = (_action, _ARGUMENTS)
_OUTPUT: _Kind = (_output, frozenset({"output"}))
_KINDS: dict[Any, _Kind] = {
    "message": (_message, frozenset()),
    "reasoning": (_reasoning, frozenset({"summary", "encrypted_content"})),
    "function_call": _CALL,
    "function_call_output": _OUTPUT,
    "custom_tool_call": _CALL,
    "custom_tool_call_output": _OUTPUT,
    "local_shell_call": _ACTION,
    "local_shell_call_output": _OUTPUT,
    "shell_call": _ACTION,
    "shell_call_output": _OUTPUT,
    "web_search_call": _ACTION,
    "file_search_call": _ACTION,
    "computer_call": _ACTION,
    "code_interpreter_call": _ACTION,
    "mcp_call": (_remote_call, _ARGUMENTS | {"output", "server_label"}),
    "mcp_list_tools": (_listed, frozenset({"tools", "server_label"})),
}
"""How an item of each type is read, and which keys beside the common ones are no surprise in it."""
