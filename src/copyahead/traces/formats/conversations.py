"""The nouns of recorded traffic, before a tokenizer has seen it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation, as text."""

    role: str
    text: str
    written: bool = False
    """Whether the model wrote it in the recorded run; all else it only read."""


class Conversation(msgspec.Struct):
    """The messages of one session, in order. Each written one is a request."""

    session: str
    messages: list[Message]
    framed: bool = True
    """Whether messages stand between turn marks; not so for one running text."""
    only_read: int = 0
    """How many tokens at its start are read and not scored, whoever wrote them."""


class TokenRequest(msgspec.Struct, frozen=True):
    """A request whose token ids were recorded: no tokenizer is needed."""

    session: str
    read: Sequence[int]
    written: Sequence[int]
    vocab_size: int
    """Size of the vocabulary the ids belong to; 0 where the record does not say."""
    time: float = 0.0
    """When it came, in seconds since 1970; 0 where the record does not say."""


class Problem(msgspec.Struct, frozen=True):
    """A part of a file that was not read, or of which it is not known how to, and why."""

    file: str
    place: str
    """`line 12`, or `item 3` of a list; or what occurs in many places, such as `role critic`."""
    reason: str
    count: int = 1
    """How often it occurs."""
    skipped: bool = True
    """False where the text was read all the same."""

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: {self.reason}"
