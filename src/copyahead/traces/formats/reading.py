"""What the readers of all formats put their finds into, and what they could not use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any

import msgspec

from copyahead.traces.formats.chain import Chain
from copyahead.traces.formats.conversations import Conversation, Message, Problem, TokenRequest
from copyahead.traces.large.kept import Chosen, Joined, KeptConversations, KeptRequests
from copyahead.traces.record import RecordReader

Item = Mapping[str, Any]
"""A JSON object."""

_RECENT = 64
"""Sessions of token ids that a later request may go on from."""
_UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
NOTHING_WRITTEN = "no message of the assistant: there is nothing to replay"
EMPTY_ANSWER = "the answer is empty: there is nothing to replay"

Ids = list[Annotated[int, msgspec.Meta(ge=0, lt=2**31 - 1)]]


class Notes:
    """Counts, over a whole file, what its readers do not know."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, bool], int] = {}

    def add(self, place: str, reason: str, *, skipped: bool = True) -> None:
        """Something that occurs at many places; `skipped`: its text was not read."""
        key = (place, reason, skipped)
        self._counts[key] = self._counts.get(key, 0) + 1

    def role(self, role: str) -> None:
        """A role of which it is not known whether the model read or wrote its text."""
        self.add(f"role {role}", "not known, so taken as read by the model", skipped=False)

    def keys(self, item: Item, known: AbstractSet[str], owner: str) -> None:
        """Note the keys of `item` that hold text and are not `known`."""
        for key, value in item.items():
            if key not in known and has_text(value):
                self.add(f"key {key} of {owner}", "not known, so its text is not read")

    def problems(self, file: str) -> list[Problem]:
        """All that was noted."""
        return [
            Problem(file, place, f"{reason} ({_times(count)})", count, skipped)
            for (place, reason, skipped), count in self._counts.items()
        ]


class Reading:
    """Takes what a file's readers find."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.conversations: Sequence[Conversation] = ()
        """All of them, once the file has been read; see `finish`."""
        self.requests = KeptRequests()
        self.problems: list[Problem] = []
        self.notes = Notes()
        self.place = ""
        """Where in the file the object stands that is read now."""
        self.category: str | None = None
        """What the file is called where it does not go by its name."""
        self.responses: dict[str, list[Message]] = {}
        """Conversations up to an answer, by the answer's id."""
        self._kept = KeptConversations()
        self._chain = Chain()
        self._records = RecordReader()
        self._streams: dict[str, int] = {}
        """The numbers of the sessions that come in pieces."""
        self._last_part: dict[str, str] = {}
        self._recent: dict[str, list[int]] = {}
        self._seen: set[Any] = set()

    def attempt(self, place: str, read: Callable[[Reading, Any], None], item: Any) -> None:
        """Have `read` read the item at `place`; where it cannot, that is a problem."""
        before, self.place = self.place, place
        try:
            read(self, item)
        except _UNREADABLE as error:
            missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            self.skip(place, " ".join(missing.split()) or type(error).__name__)
        finally:
            self.place = before

    def session(self, name: str, messages: list[Message]) -> None:
        """A whole session. Raises ValueError where none of it was written by the model."""
        if not any(message.written for message in messages):
            raise ValueError(NOTHING_WRITTEN)
        self._kept.append(Conversation(name, messages))

    def request(self, name: str, prompt: Sequence[Message], answer: Sequence[Message]) -> None:
        """One request; it joins the session that its prompt repeats.

        Raises ValueError where the answer is empty.
        """
        if not any(message.written for message in answer):
            raise ValueError(EMPTY_ANSWER)
        self._chain.add(name, prompt, answer)

    def append(self, session: str, messages: Sequence[Message], *, part_of: str = "") -> None:
        """The next messages of a session that comes in pieces.

        Neighbours of which the model wrote both, and of the same `part_of`, are one answer.
        """
        if session not in self._streams:
            self._streams[session] = self._kept.append(Conversation(session, []))
        number = self._streams[session]
        for message in messages:
            if not message.text:
                continue
            held = self._kept[number].messages
            goes_on = part_of and part_of == self._last_part.get(session)
            if held and goes_on and held[-1].written and message.written:
                whole = Message(message.role, _joined(held[-1].text, message.text), True)
                self._kept.replace_last(number, whole)
            else:
                self._kept.extend(number, [message])
            self._last_part[session] = part_of

    def restart(self, session: str) -> None:
        """What comes next in `session` no longer follows what was there before."""
        self._streams.pop(session, None)

    def seen(self, key: Any) -> bool:
        """Whether `key` was asked for before, so that its line comes twice; None never was."""
        known = key in self._seen
        self._seen.add(key)
        return known and key is not None

    def record(self, item: Item) -> None:
        """A request as copyahead itself recorded it."""
        record, prompt = self._records.read(item)
        came = max(0.0, record.time - record.seconds)
        read = TokenRequest(record.session, prompt, record.output, record.vocab_size, came)
        self.requests.append(read)

    def tokens(self, session: str, read: Any, written: Any) -> None:
        """A request of token ids; it joins the recent session that its prompt goes on from.

        Raises ValueError where they are no token ids.
        """
        prompt, answer = (msgspec.convert(part, Ids) for part in (read, written))
        if not answer:
            raise ValueError(EMPTY_ANSWER)
        # The numbers keep sessions in the file's order.
        name = f"{len(self.requests):08} {session}"
        for known, held in self._recent.items():
            if prompt[: len(held)] == held:
                name = known
        self._recent.pop(name, None)
        self._recent[name] = prompt + answer
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        self.requests.append(TokenRequest(name, prompt, answer, 0))

    def skip(self, place: str, reason: str) -> None:
        """A part that was not read."""
        self.problems.append(Problem(self.file, place, reason))

    def finish(self) -> None:
        """Put together what went over several objects, once all were read."""
        kept = []
        for number, conversation in enumerate(self._kept):
            if any(message.written for message in conversation.messages):
                kept.append(number)
            else:
                self.skip(f"session {conversation.session}", NOTHING_WRITTEN)
        self.conversations = Joined(Chosen(self._kept, kept), self._chain.conversations)
        self.problems.extend(self.notes.problems(self.file))


def words(text: str) -> frozenset[str]:
    """The words of `text`, as a set."""
    return frozenset(text.split())


def has_text(value: Any) -> bool:
    """Whether a JSON value holds any text but the names of its keys."""
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list):
        return False
    return any(has_text(part) for part in value)


def text_of(value: Any, name: str) -> str:
    """`value` where it is text, empty where it is null. Raises ValueError naming it otherwise."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    return value


def keys_of(item: Item) -> str:
    """The first keys of an object, for an error."""
    return ", ".join(list(item)[:8]) or "nothing"


def _joined(one: str, other: str) -> str:
    return f"{one}{'' if one.endswith(chr(10)) else chr(10)}{other}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
