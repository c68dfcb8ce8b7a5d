"""The nouns of recorded traffic, before a tokenizer has seen it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


class Chain:
    """Joins requests whose prompt repeats an earlier request and its answer into one session.

    Chat clients send the whole conversation every time; only its tail is new.
    """

    def __init__(self) -> None:
        self._open: dict[int, Conversation] = {}
        self.conversations: list[Conversation] = []

    def add(self, session: str, prompt: Iterable[Message], answer: Iterable[Message]) -> None:
        """A request that read `prompt` and wrote what of `answer` is marked so."""
        messages = list(prompt)
        found = self._longest_known(messages)
        if found is None:
            found = Conversation(session, messages)
            self.conversations.append(found)
        else:
            self._open.pop(_key(found.messages), None)
            found.messages.extend(messages[len(found.messages) :])
        found.messages.extend(answer)
        self._open[_key(found.messages)] = found

    def _longest_known(self, messages: Sequence[Message]) -> Conversation | None:
        key = 0
        found = None
        for count, message in enumerate(messages, start=1):
            key = _next_key(key, message)
            candidate = self._open.get(key)
            if candidate is not None and _same(candidate.messages, messages[:count]):
                found = candidate
        return found


def _next_key(key: int, message: Message) -> int:
    return hash((key, message.role, message.text))


def _key(messages: Iterable[Message]) -> int:
    key = 0
    for message in messages:
        key = _next_key(key, message)
    return key


def _same(one: Sequence[Message], other: Sequence[Message]) -> bool:
    return len(one) == len(other) and all(
        (a.role, a.text) == (b.role, b.text) for a, b in zip(one, other, strict=True)
    )
