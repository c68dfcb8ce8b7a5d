"""Text of other requests to copy from: a bounded ring of documents for each scope.

A scope is whatever may see its own text again and nobody else's: a tenant. Scopes never read each
other, because even how fast a request goes tells what it copied. A document is what a finished
request read and wrote; of one that goes on from a text that was added before, what is new.

Memory: 16 bytes a token of `capacity` and up to 12 bytes a slot of the heads, for each scope in
use; the scope longest unused makes room for a new one.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from copyahead.errors import ConfigError
from copyahead.history.pages import untouched
from copyahead.kernels import index, places

MIN_DOCUMENT = 16
"""Shorter texts are not worth a place."""
MAX_CAPACITY = 2**26
CONTEXT = 64
"""Of a text that is there already, as many tokens come again before what is new."""
_KNOWN_LENGTHS = 16

Text = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Known:
    """A text that was added whole, in one part or several."""

    length: int
    digest: bytes
    written: int
    """Tokens that its scope had taken in when its last part was there."""


@dataclass(slots=True)
class _Scope:
    """What is known of a ring beside its arrays."""

    users: int = 0
    filled: int = 0
    """Cells that were ever written."""
    written: int = 0
    """Tokens taken in, barriers included."""
    known: dict[bytes, deque[_Known]] = field(default_factory=dict)
    """By their first tokens: texts that were added, oldest first."""


class SharedStore:
    """Rings of documents with one index each. Used by one thread at a time."""

    def __init__(self, num_scopes: int, capacity: int, vocab_size: int) -> None:
        """`capacity`: tokens a scope keeps; the newest documents stay.

        Tokens outside `vocab_size` are barriers.
        """
        for name, value, low, high in (
            ("num_scopes", num_scopes, 1, 4096),
            ("capacity", capacity, 256, MAX_CAPACITY),
        ):
            if not low <= value <= high:
                raise ConfigError(
                    f"{name} of the shared store must be from {low} to {high}, not {value}"
                )
        self.capacity = capacity
        self._vocab_size = vocab_size
        slots = 1 << max(12, min(22, (capacity - 1).bit_length()))
        # One more than there are: it stays empty, for whoever may copy from nobody.
        self.cells = untouched((num_scopes + 1, capacity, index.NUM_COLUMNS))
        self.heads = untouched((num_scopes + 1, index.NUM_CHAINS, slots))
        self.ends = np.zeros(num_scopes + 1, dtype=np.int64)
        self.empty_scope = num_scopes
        """The number of the scope that is always empty."""
        self._scopes = [_Scope() for _ in range(num_scopes)]
        # By name, the one used last at the end.
        self._numbers: dict[str, int] = {}

    def num_tokens(self, name: str) -> int:
        """Tokens that a scope holds, barriers included."""
        number = self._numbers.get(name)
        return 0 if number is None else self._scopes[number].filled

    def enter(self, name: str) -> int:
        """The scope's number, to be left again; `empty_scope` where all are in use by others."""
        number = self._numbers.pop(name, None)
        if number is None:
            number = self._place_for_another()
            if number is None:
                return self.empty_scope
        self._numbers[name] = number
        self._scopes[number].users += 1
        return number

    def leave(self, number: int) -> None:
        """Undo one `enter`; the text stays."""
        if number != self.empty_scope:
            self._scopes[number].users -= 1

    def add(self, name: str, tokens: Text) -> None:
        """Put a text into a scope, over its oldest ones.

        Of one that goes on from a text that is still there only the new part is kept, and of one
        that is too long its end.
        """
        if len(tokens) < MIN_DOCUMENT:
            return
        number = self.enter(name)
        if number != self.empty_scope:
            scope = self._scopes[number]
            known = self._known_length(scope, tokens)
            part = tokens[max(known - CONTEXT, 0) :] if known < len(tokens) else tokens[:0]
            if len(part):
                self._append(number, part[2 - self.capacity :])
                self._remember(scope, tokens)
        self.leave(number)

    def clear(self) -> None:
        """Drop all text."""
        for number in range(len(self._scopes)):
            self._clear(number)

    def check(self, entered: Sequence[int]) -> None:
        """Raise AssertionError unless the books agree. For tests.

        `entered`: the numbers that were entered and not left yet, each as often.
        """
        numbers = list(self._numbers.values())
        assert len(set(numbers)) == len(numbers), "two names share a scope"
        users = Counter(number for number in entered if number != self.empty_scope)
        for number, scope in enumerate(self._scopes):
            assert scope.users == users[number], (
                f"scope {number} counts {scope.users} users and has {users[number]}"
            )
            if number in numbers:
                self._check_ring(number)
            else:
                assert scope.filled == scope.users == 0, f"scope {number} is nobody's and in use"
        assert self.ends[self.empty_scope] == 0, "the empty scope holds text"

    def _check_ring(self, number: int) -> None:
        scope, end = self._scopes[number], int(self.ends[number])
        assert 0 <= end <= scope.filled <= self.capacity, (
            f"scope {number} ends at {end} of {scope.filled} cells"
        )
        assert scope.filled <= scope.written, f"scope {number} took in less than it holds"
        cells = self.cells[number, : scope.filled]
        assert ((cells[:, 0] >= index.BARRIER) & (cells[:, 0] < self._vocab_size)).all(), (
            f"scope {number} holds what is no token"
        )
        assert (cells[[0, end - 1] if end else [], 0] == index.BARRIER).all(), (
            f"scope {number}: a document runs out of the ring"
        )
        # After a round of the ring a chain may point forwards, to older text.
        for links in (cells[:, 1:], self.heads[number]):
            assert 0 <= links.min(initial=0) <= links.max(initial=0) <= scope.filled, (
                f"scope {number}: a chain leaves the ring"
            )
        for texts in scope.known.values():
            assert all(known.written <= scope.written for known in texts), (
                f"scope {number} remembers a text that it has not taken in"
            )

    def _append(self, number: int, part: Text) -> None:
        scope = self._scopes[number]
        before = int(self.ends[number])
        end = places.append_document(
            self.cells[number], self.heads[number], before, scope.filled, self._vocab_size, part
        )
        self.ends[number] = end
        scope.filled = max(scope.filled, int(end))
        scope.written += len(part) + 2

    def _known_length(self, scope: _Scope, tokens: Text) -> int:
        """How many of the first tokens are a text that was added and has not been overwritten."""
        for known in reversed(scope.known.get(_start_of(tokens), ())):
            here = scope.written - known.written < self.capacity // 2
            fits = here and known.length <= len(tokens)
            if fits and known.digest == _digest(tokens[: known.length]):
                return known.length
        return 0

    def _remember(self, scope: _Scope, tokens: Text) -> None:
        start = _start_of(tokens)
        texts = scope.known.pop(start, None) or deque(maxlen=_KNOWN_LENGTHS)
        texts.append(_Known(len(tokens), _digest(tokens), scope.written))
        scope.known[start] = texts
        if len(scope.known) > self.capacity // 256 + 1:
            del scope.known[next(iter(scope.known))]

    def _place_for_another(self) -> int | None:
        used = set(self._numbers.values())
        for number in range(len(self._scopes)):
            if number not in used:
                return number
        for name, number in self._numbers.items():
            if self._scopes[number].users == 0:
                del self._numbers[name]
                self._clear(number)
                return number
        return None

    def _clear(self, number: int) -> None:
        scope = self._scopes[number]
        self.cells[number, : scope.filled] = 0
        self.cells[number, : scope.filled, 0] = index.BARRIER
        self.heads[number] = 0
        self.ends[number] = scope.filled = scope.written = 0
        scope.known.clear()


class NoStore:
    """Stands for a store where nothing is shared: empty arrays that kernels can be given."""

    empty_scope = 0

    def __init__(self) -> None:
        self.cells = np.zeros((1, 1, index.NUM_COLUMNS), dtype=np.int32)
        self.heads = np.zeros((1, index.NUM_CHAINS, 1), dtype=np.int32)
        self.ends = np.zeros(1, dtype=np.int64)


def _start_of(tokens: Text) -> bytes:
    return tokens[:MIN_DOCUMENT].tobytes()


def _digest(tokens: Text) -> bytes:
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
