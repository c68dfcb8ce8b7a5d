"""llama.cpp's n-gram modes, as peers: rules that we read from its source and wrote down anew.

Read in its `common/ngram-map.cpp` and `common/speculative.cpp` of 2026. Two things are left out:
two n-grams never share a place of a hash table, and a client that takes the reasoning out of an
earlier answer has all forgotten, not a part. Times of these mean nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from peers.adapters import MAX_DRAFT, Buffered, Tokens

MOST_VALUES = 4
CLEARLY = 3
"""A continuation is used that was seen so many times as often as all others together."""
LAG = 32
"""`ngram-mod` takes in new tokens by so many."""
LOW_SHARE, MOST_LOW = 0.25, 5
"""`ngram-mod` forgets all when so many drafts in a row were kept for a smaller part than this."""


class Rule(Buffered):
    """A history, and what a rule remembers of it while requests go on from each other."""

    def start(self, prompt: Tokens) -> None:
        known = min(self.length, len(prompt))
        if known < self.length or not np.array_equal(self.held[:known], prompt[:known]):
            self.forget()
        super().start(prompt)
        self.begin()

    def forget(self) -> None:
        """Another history follows."""

    def begin(self) -> None:
        """A request has been read."""

    def gram(self, size: int, end: int) -> bytes:
        """The `size` tokens before place `end`."""
        return self.held[end - size : end].tobytes()

    def accepted(self, count: int) -> None:
        """So many tokens of the last draft, which was not empty, were right."""

    def cut(self, place: int, count: int) -> list[int]:
        """`count` tokens from `place` on."""
        tokens: list[int] = self.held[place : place + count].tolist()
        return tokens


class Simple(Rule):
    """`ngram-simple`: what followed the newest place of the last `size` tokens, up to `copied`.

    Nothing where fewer than `size` tokens follow that place. A server cuts a draft to `most`.
    """

    def __init__(self, capacity: int, size: int, copied: int, most: int) -> None:
        super().__init__(capacity)
        self._size, self._copied, self._most = size, copied, most
        self.forget()

    def forget(self) -> None:
        self._newest: dict[bytes, int] = {}
        self._indexed = self._size

    def propose(self) -> Sequence[int]:
        # The token sampled last is not yet part of what is searched.
        searched = self.length - 1
        for end in range(self._indexed + 1, searched):
            self._newest[self.gram(self._size, end)] = end
        self._indexed = max(self._indexed, searched - 1)
        if searched <= self._size + self._copied + 1:
            return ()
        place = self._newest.get(self.gram(self._size, self.length))
        if place is None:
            return ()
        count = min(self._copied, searched - place)
        return self.cut(place, min(count, self._most)) if count >= self._size else ()


@dataclass
class Key:
    """What `ngram-map` knows of an n-gram that it has looked for."""

    hits: int = 0
    counted_from: int = 0
    values: dict[bytes, int] = field(default_factory=dict)
    """How often each of the first four continuations was counted."""
    lengths: dict[bytes, int] = field(default_factory=dict)
    """How much of each was right when it was drafted last."""


class Map(Rule):
    """`ngram-map-k` and, with `choose`, `ngram-map-k4v`.

    Looks for the last `size` tokens where `copied` more follow, at the place that was the newest
    when a request was read that had it first. It drafts what followed, and no more of it than was
    right the last time. With `choose` only where one of up to four continuations is clearly the
    most frequent, after `hits` searches.
    """

    def __init__(
        self, capacity: int, size: int, copied: int, most: int, *, choose: bool, hits: int = 1
    ) -> None:
        super().__init__(capacity)
        self._size, self._copied, self._most = size, copied, most
        self._choose, self._hits = choose, hits
        self.forget()

    def forget(self) -> None:
        self._place: dict[bytes, int] = {}
        self._all: dict[bytes, list[int]] = {}
        self._keys: dict[bytes, Key] = {}
        self._indexed = self._size
        self._last: tuple[Key, bytes] | None = None

    def propose(self) -> Sequence[int]:
        searched = self.length - 1
        last = searched - self._copied - 1
        if searched < 2 * self._size + self._copied:
            return ()
        wanted = self.gram(self._size, self.length)
        # The place of a gram stays that of the first search after it came.
        for end in range(last, self._indexed, -1):
            self._place.setdefault(self.gram(self._size, end), end)
        if self._choose:
            for end in range(self._indexed + 1, last + 1):
                self._all.setdefault(self.gram(self._size, end), []).append(end)
        self._indexed = max(self._indexed, last)
        place = self._place.get(wanted)
        if place is None:
            return ()
        key = self._keys.setdefault(wanted, Key())
        key.hits += 1
        value = self._value(key, wanted, place)
        if value is None:
            return ()
        self._last = (key, value)
        length = min(key.lengths.get(value, self._copied), self._most)
        return self.cut(place, length)

    def _value(self, key: Key, wanted: bytes, place: int) -> bytes | None:
        if not self._choose:
            return b""
        if key.hits < self._hits:
            return None
        for end in self._all[wanted]:
            if key.counted_from <= end <= place:
                value = self.held[end : end + self._copied].tobytes()
                if value in key.values or len(key.values) < MOST_VALUES:
                    key.values[value] = key.values.get(value, 0) + 1
        key.counted_from = place
        best = max(key.values, key=lambda value: key.values[value])
        others = sum(key.values.values()) - key.values[best]
        return best if key.values[best] >= CLEARLY * others else None

    def accepted(self, count: int) -> None:
        if self._last is not None:
            key, value = self._last
            key.lengths[value] = count
            self._last = None


class Mod(Rule):
    """`ngram-mod`: the next token of every n-gram of all requests, chained.

    A draft is of `least` to `most` tokens, or empty.
    """

    def __init__(self, capacity: int, size: int, least: int, most: int) -> None:
        super().__init__(capacity)
        self._size, self._least, self._most = size, least, most
        self._next: dict[bytes, int] = {}
        self._taken = self._low = self._drafted = 0

    def forget(self) -> None:
        # The table outlives requests; only the place in this history is another.
        self._taken = 0

    def begin(self) -> None:
        self._take(self.length)
        self._drafted = 0

    def _take(self, end: int) -> None:
        for place in range(max(self._taken, self._size), end):
            self._next[self.gram(self._size, place)] = int(self.held[place])
        self._taken = max(self._taken, end)

    def propose(self) -> Sequence[int]:
        searched = self.length - 1
        self._drafted = 0
        if searched < self._size:
            return ()
        if self._taken - self._size + LAG < searched:
            self._take(searched)
        window = self.held[self.length - self._size : self.length].tolist()
        draft: list[int] = []
        while len(draft) < min(self._most, MAX_DRAFT):
            token = self._next.get(np.array(window[-self._size :], dtype=np.int32).tobytes())
            if token is None:
                break
            draft.append(token)
            window.append(token)
        if len(draft) < self._least:
            return ()
        self._drafted = len(draft)
        return draft

    def accepted(self, count: int) -> None:
        if not self._drafted:
            return
        self._low = self._low + 1 if count < LOW_SHARE * self._drafted else 0
        if self._low >= MOST_LOW:
            self._next.clear()
            self._low = self._taken = 0
