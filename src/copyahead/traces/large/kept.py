"""What the readers of a file have found, in the order of the file, however much it is."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import overload

import msgspec
import numpy as np

from copyahead.traces.formats.conversations import Conversation, TokenRequest
from copyahead.traces.large.spool import Spool, in_memory_bytes

_MESSAGE_BYTES = 200
"""What a message takes in memory besides its text."""


class KeptConversations(Sequence[Conversation]):
    """Conversations by number. Those that were touched last are in memory, and may be added to;
    others are put away, and come back when they are asked for."""

    def __init__(self, in_memory: int | None = None) -> None:
        """`in_memory`: bytes of text, about, that are not put away."""
        self._limit = in_memory_bytes(in_memory)
        self._spool = Spool(in_memory)
        self._places = array("q")
        """Numbers in the spool; -1 for what has never been put away."""
        self._stored = array("q")
        """How much each was when it was."""
        self._live: OrderedDict[int, Conversation] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._total = 0
        self._last: int | None = None
        """What may have grown since it was measured."""
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Conversation)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, number: int) -> Conversation: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Conversation]: ...
    def __getitem__(self, number: int | slice) -> Conversation | Sequence[Conversation]:
        """A conversation, to be added to until another one is asked for; or some of them."""
        if isinstance(number, slice):
            return Chosen(self, range(len(self))[number])
        number = range(len(self))[number]
        if number not in self._live:
            self._live[number] = self._decoder.decode(self._spool.get(self._places[number]))
        self._touch(number)
        return self._live[number]

    def append(self, conversation: Conversation) -> int:
        """Keep `conversation`; its number."""
        self._places.append(-1)
        self._stored.append(-1)
        number = len(self._places) - 1
        self._live[number] = conversation
        self._touch(number)
        return number

    def _touch(self, number: int) -> None:
        for grown in {self._last, number} - {None}:
            assert grown is not None
            self._measure(grown)
        self._last = number
        self._live.move_to_end(number)
        while self._total > self._limit and len(self._live) > 1:
            self._put_away()

    def _measure(self, number: int) -> None:
        if number not in self._live:
            return
        messages = self._live[number].messages
        size = sum(len(message.text) + _MESSAGE_BYTES for message in messages)
        self._total += size - self._sizes.get(number, 0)
        self._sizes[number] = size

    def _put_away(self) -> None:
        number, conversation = self._live.popitem(last=False)
        size = self._sizes.pop(number)
        self._total -= size
        if self._stored[number] != size:
            self._stored[number] = size
            self._places[number] = self._spool.put(self._encoder.encode(conversation))


class Chosen(Sequence[Conversation]):
    """Some conversations of many, in order."""

    def __init__(self, kept: Sequence[Conversation], numbers: Sequence[int]) -> None:
        self._kept, self._numbers = kept, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, number: int) -> Conversation: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Conversation]: ...
    def __getitem__(self, number: int | slice) -> Conversation | Sequence[Conversation]:
        if isinstance(number, slice):
            return Chosen(self._kept, self._numbers[number])
        return self._kept[self._numbers[number]]

    def __iter__(self) -> Iterator[Conversation]:
        return (self._kept[number] for number in self._numbers)


class Joined(Sequence[Conversation]):
    """The conversations of two sequences, one after the other."""

    def __init__(self, first: Sequence[Conversation], second: Sequence[Conversation]) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    @overload
    def __getitem__(self, number: int) -> Conversation: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Conversation]: ...
    def __getitem__(self, number: int | slice) -> Conversation | Sequence[Conversation]:
        if isinstance(number, slice):
            return Chosen(self, range(len(self))[number])
        number = range(len(self))[number]
        size = len(self._first)
        return self._first[number] if number < size else self._second[number - size]


class KeptRequests(Sequence[TokenRequest]):
    """Requests of token ids by number; only their sessions are always in memory."""

    def __init__(self, in_memory: int | None = None) -> None:
        self._spool = Spool(in_memory)
        self.sessions: list[str] = []
        """The session of each."""
        self._names: dict[str, str] = {}
        self._num_read, self._vocab_sizes, self._times = array("q"), array("q"), array("d")

    def __len__(self) -> int:
        return len(self.sessions)

    @overload
    def __getitem__(self, number: int) -> TokenRequest: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[TokenRequest]: ...
    def __getitem__(self, number: int | slice) -> TokenRequest | Sequence[TokenRequest]:
        if isinstance(number, slice):
            return [self[n] for n in range(len(self))[number]]
        number = range(len(self))[number]
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
