"""Chat histories in markdown: lines of the user begin with `#### `, of tools with `> `."""

from __future__ import annotations

from itertools import groupby

from copyahead.traces.formats.conversations import Conversation, Message

_USER = "####"
_TOOL = ">"
_ROLES = {_USER: "user", _TOOL: "tool", "": "assistant"}


def read_chat_history(text: str, session: str, *, stream: bool, after: int) -> Conversation | None:
    """The whole file as one session; None where no line is the user's.

    In turns, what is neither the user's nor a tool's line the model wrote. As a stream, all of
    it counts as written, whoever wrote it. The first `after` tokens are only read.
    """
    lines = text.splitlines(keepends=True)
    kinds = [_kind(line) for line in lines]
    if _USER not in kinds:
        return None
    if stream:
        messages = [Message("", text, written=True)]
        return Conversation(session, messages, framed=False, only_read=after)
    messages = []
    for kind, group in groupby(zip(kinds, lines, strict=True), key=lambda pair: pair[0]):
        body = "".join(line for _, line in group)
        role = _ROLES[kind]
        messages.append(Message(role, body, role == "assistant" and bool(body.strip())))
    return Conversation(session, messages, framed=False, only_read=after)


def _kind(line: str) -> str:
    if line.startswith("#### ") or line.strip() == _USER:
        return _USER
    return _TOOL if line.startswith("> ") or line.strip() == _TOOL else ""
