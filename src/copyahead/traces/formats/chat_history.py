"""Chat histories in markdown: lines of the user begin with `#### `, of tools with `> `."""

from __future__ import annotations

from itertools import groupby

from msgspec.structs import replace

from copyahead.traces.formats.conversations import Conversation, Message

_USER = "####"
_TOOL = ">"
_ROLES = {_USER: "user", _TOOL: "tool", "": "assistant"}
_NEW_CHAT = "# aider chat started at "
"""Begins the line that aider writes whenever it is started."""


def read_chats(text: str, session: str, *, after: int) -> list[Conversation]:
    """Each chat of the file as a session, in turns; the line that says when it began is left out.

    Nothing before the user's first line, and none of the first `after` tokens of a chat, counts as
    written. A chat without a line of the user is left out.
    """
    chats: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.startswith(_NEW_CHAT):
            chats.append([])
        else:
            chats[-1].append(line)
    found = []
    for number, lines in enumerate(chats):
        name = f"{session}, chat {number}"
        chat = read_chat_history("".join(lines), name, stream=False, after=after)
        if chat is not None:
            head = [m.role for m in chat.messages].index("user")
            chat.messages[:head] = [replace(m, written=False) for m in chat.messages[:head]]
            found.append(chat)
    return found


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
