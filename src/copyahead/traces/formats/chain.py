"""Requests that repeat a conversation so far, joined into one session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from copyahead.traces.formats.conversations import Conversation, Message
from copyahead.traces.large.kept import KeptConversations


class Chain:
    """Joins requests whose prompt repeats an earlier request and its answer into one session.

    Chat clients send the whole conversation every time; only its tail is new.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        """Numbers of conversations, by a hash of what they hold."""
        self.conversations = KeptConversations()

    def add(self, session: str, prompt: Iterable[Message], answer: Iterable[Message]) -> None:
        """A request that read `prompt` and wrote what of `answer` is marked so."""
        messages = list(prompt)
        number = self._longest_known(messages)
        if number is None:
            number = self.conversations.append(Conversation(session, []))
        held = self.conversations[number].messages
        if held:
            self._open.pop(_key(held), None)
        self.conversations.extend(number, [*messages[len(held) :], *answer])
        self._open[_key(self.conversations[number].messages)] = number

    def _longest_known(self, messages: Sequence[Message]) -> int | None:
        key = 0
        found = None
        for count, message in enumerate(messages, start=1):
            key = _next_key(key, message)
            number = self._open.get(key)
            if number is None:
                continue
            if _same(self.conversations[number].messages, messages[:count]):
                found = number
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
