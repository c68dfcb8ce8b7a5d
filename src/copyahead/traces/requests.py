"""Recorded requests as they can be sent again: what was read, and how much was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from copyahead.traces.formats.conversations import Conversation, Message, TokenRequest
from copyahead.traces.formats.importers import Trace

ROLES = frozenset({"system", "user", "assistant"})
"""Roles that every server takes; messages of others are sent as the user's."""


class RecordedRequest(msgspec.Struct, frozen=True):
    """One request. Exactly one of `messages`, `text` and `tokens` is there."""

    session: str
    """Requests of one conversation share it."""
    messages: tuple[Message, ...] = ()
    text: str = ""
    tokens: Sequence[int] = ()
    num_written: int | None = None
    """Tokens of the recorded answer; None where only its text is known."""
    time: float = 0.0
    """When it came, in seconds since 1970; 0: not known."""


def requests_of(traces: Sequence[Trace]) -> list[RecordedRequest]:
    """Every request of `traces`, in order; those with times by time.

    Requests that read nothing are left out.
    """
    found = [request for trace in traces for request in _of_trace(trace)]
    if all(request.time for request in found):
        found.sort(key=lambda request: request.time)
    return found


def _of_trace(trace: Trace) -> Iterator[RecordedRequest]:
    for number, conversation in enumerate(trace.conversations):
        # Files may name different sessions alike.
        yield from _of_conversation(conversation, f"{trace.path}:{number}")
    for request in trace.requests:
        if request.read:
            yield _of_tokens(request, f"{trace.path}:{request.session}")


def _of_conversation(conversation: Conversation, session: str) -> Iterator[RecordedRequest]:
    """A request for each answer; messages of the model that follow one another are one answer."""
    before: list[Message] = []
    for message in conversation.messages:
        is_answer = message.written and not (before and before[-1].written)
        if is_answer and any(each.text for each in before):
            if conversation.framed:
                yield RecordedRequest(session, messages=chat_messages(before))
            else:
                yield RecordedRequest(session, text="".join(each.text for each in before))
        before.append(message)


def _of_tokens(request: TokenRequest, session: str) -> RecordedRequest:
    return RecordedRequest(
        session, tokens=request.read, num_written=len(request.written), time=request.time
    )


def chat_messages(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` as every chat template takes them: roles in turn, a system message first only, and
    none empty."""
    found: list[Message] = []
    for message in messages:
        if not message.text:
            continue
        role = message.role if message.role in ROLES else "user"
        if role == "system" and any(each.role != role for each in found):
            role = "user"
        if found and found[-1].role == role:
            found[-1] = Message(role, f"{found[-1].text}\n\n{message.text}", message.written)
        else:
            found.append(Message(role, message.text, message.written))
    return tuple(found)


def as_text(messages: Sequence[Message]) -> str:
    """A conversation as a text to be continued with the next answer."""
    turns = [f"{message.role}: {message.text}\n\n" for message in messages]
    return "".join([*turns, "assistant:"])
