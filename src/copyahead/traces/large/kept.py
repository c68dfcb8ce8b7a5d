"""What the readers of a file have found, in the order of the file, however much it is."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar, overload

import msgspec
import numpy as np

from copyahead.traces.formats.conversations import Conversation, Message, TokenRequest
from copyahead.traces.large.spool import Spool, in_memory_bytes

T = TypeVar("T")

_MESSAGE_BYTES = 200
"""What a message takes in memory besides its text."""


class Numbered(Sequence[T]):
    """A sequence of items that are made when they are asked for."""

    @abstractmethod
    def _at(self, number: int) -> T:
        """The item of that number, from 0 to `len(self) - 1`."""

    @overload
    def __getitem__(self, number: int) -> T: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[T]: ...
    def __getitem__(self, number: int | slice) -> T | Sequence[T]:
        if isinstance(number, slice):
            return Chosen(self, range(len(self))[number])
        return self._at(range(len(self))[number])

    def __iter__(self) -> Iterator[T]:
        return map(self._at, range(len(self)))


class Chosen(Numbered[T]):
    """Some items of many, in order."""

    def __init__(self, kept: Sequence[T], numbers: Sequence[int]) -> None:
        self._kept, self._numbers = kept, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def _at(self, number: int) -> T:
        return self._kept[self._numbers[number]]


class Joined(Numbered[T]):
    """The items of two sequences, one after the other."""

    def __init__(self, first: Sequence[T], second: Sequence[T]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def _at(self, number: int) -> T:
        size = len(self._first)
        return self._first[number] if number < size else self._second[number - size]


class KeptConversations(Numbered[Conversation]):
    """Conversations by number. Those that were touched last are in memory; others are put away,
    and come back when they are asked for.

    What is asked for is read only: `extend` and `replace_last` change it.
    """

    def __init__(self, in_memory: int | None = None) -> None:
        """`in_memory`: bytes of text, about, that are not put away."""
        self._limit = in_memory_bytes(in_memory)
        self._spool = Spool(in_memory)
        self._places = array("q")
        """Numbers in the spool; -1 for what it does not hold as it is now."""
        self._live: OrderedDict[int, Conversation] = OrderedDict()
        self._sizes: dict[int, int] = {}
        """About how many bytes each of those in memory takes."""
        self._total = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Conversation)

    def __len__(self) -> int:
        return len(self._places)

    def append(self, conversation: Conversation) -> int:
        """Keep `conversation`; its number."""
        self._places.append(-1)
        number = len(self._places) - 1
        self._enter(number, conversation)
        self._make_room()
        return number

    def extend(self, number: int, messages: Sequence[Message]) -> None:
        """Add `messages` to a conversation."""
        self._at(number).messages.extend(messages)
        self._has_grown(number, _size(messages))

    def replace_last(self, number: int, message: Message) -> None:
        """Put `message` in the place of the last one of a conversation."""
        messages = self._at(number).messages
        grown = _size([message]) - _size(messages[-1:])
        messages[-1] = message
        self._has_grown(number, grown)

    def _at(self, number: int) -> Conversation:
        if number not in self._live:
            self._enter(number, self._decoder.decode(self._spool.get(self._places[number])))
        self._live.move_to_end(number)
        self._make_room()
        return self._live[number]

    def _enter(self, number: int, conversation: Conversation) -> None:
        self._live[number] = conversation
        self._sizes[number] = size = _size(conversation.messages)
        self._total += size

    def _has_grown(self, number: int, size: int) -> None:
        self._places[number] = -1
        self._sizes[number] += size
        self._total += size
        self._make_room()

    def _make_room(self) -> None:
        """Put away what was not touched for longest; what was touched last stays."""
        while self._total > self._limit and len(self._live) > 1:
            number, conversation = self._live.popitem(last=False)
            self._total -= self._sizes.pop(number)
            if self._places[number] < 0:
                self._places[number] = self._spool.put(self._encoder.encode(conversation))


class KeptRequests(Numbered[TokenRequest]):
    """Requests of token ids by number; only their sessions are always in memory."""

    def __init__(self, in_memory: int | None = None) -> None:
        self._spool = Spool(in_memory)
        self.sessions: list[str] = []
        """The session of each."""
        self._names: dict[str, str] = {}
        self._num_read, self._vocab_sizes, self._times = array("q"), array("q"), array("d")

    def __len__(self) -> int:
        return len(self.sessions)

    def _at(self, number: int) -> TokenRequest:
        tokens = np.frombuffer(self._spool.get(number), dtype=np.int32).tolist()
        count = self._num_read[number]
        return TokenRequest(
            self.sessions[number],
            tokens[:count],
            tokens[count:],
            self._vocab_sizes[number],
            self._times[number],
        )

    def append(self, request: TokenRequest) -> None:
        """Keep `request`."""
        self.sessions.append(self._names.setdefault(request.session, request.session))
        self._num_read.append(len(request.read))
        self._vocab_sizes.append(request.vocab_size)
        self._times.append(request.time)
        parts = [np.asarray(part, dtype=np.int32) for part in (request.read, request.written)]
        self._spool.put(np.concatenate(parts).tobytes())

    def of_sessions(self, part: slice) -> KeptRequests:
        """Those of some of the sessions, which are counted in order of their first request."""
        wanted = set(list(dict.fromkeys(self.sessions))[part])
        if len(wanted) == len(self._names):
            return self
        chosen = KeptRequests()
        for number, session in enumerate(self.sessions):
            if session in wanted:
                chosen.append(self[number])
        return chosen


def _size(messages: Iterable[Message]) -> int:
    """What messages take in memory, about, in bytes."""
    return sum(len(message.text) + _MESSAGE_BYTES for message in messages)
