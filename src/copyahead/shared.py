"""Text of other requests to copy from: a bounded ring of documents for each scope.

A scope is whatever may see its own text again and nobody else's: a tenant. Scopes never read each
other, because even how fast a request goes tells what it copied. A document is what a finished
request read and wrote; of one that goes on from an earlier one, what is new.

Memory: 16 bytes a token of `capacity` and up to 12 bytes a slot of the heads, for each scope in
use; the scope longest unused makes room for a new one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from copyahead.errors import ConfigError
from copyahead.kernels import index, places
from copyahead.memory import untouched

MIN_DOCUMENT = 16
"""Shorter texts are not worth a place."""
MAX_CAPACITY = 2**26
_KEPT = 64
"""Of a text that is there already, as many tokens come again before what is new: its context."""

Text = npt.NDArray[np.int32]


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
        # One more than there are: it stays empty, for whoever finds no place.
        self.cells = untouched((num_scopes + 1, capacity, index.NUM_COLUMNS))
        self.heads = untouched((num_scopes + 1, index.NUM_CHAINS, slots))
        self.ends = np.zeros(num_scopes + 1, dtype=np.int64)
        self._nobodys = num_scopes
        self._users = [0] * num_scopes
        self._filled = [0] * num_scopes
        # By name, the one used last at the end: its number.
        self._scopes: dict[str, int] = {}
        # Of each scope: the first tokens of a document, and where it was put.
        self._starts: list[dict[bytes, int]] = [{} for _ in range(num_scopes)]

    def num_tokens(self, name: str) -> int:
        """Tokens that a scope holds, barriers included."""
        scope = self._scopes.get(name)
        return 0 if scope is None else self._filled[scope]

    def enter(self, name: str) -> int:
        """The scope's number, to be left again; an empty scope where all are in use by others."""
        scope = self._scopes.pop(name, None)
        if scope is None:
            scope = self._place_for_another()
            if scope is None:
                return self._nobodys
        self._scopes[name] = scope
        self._users[scope] += 1
        return scope

    def leave(self, scope: int) -> None:
        """Undo one `enter`; the text stays."""
        if scope != self._nobodys:
            self._users[scope] -= 1

    def add(self, name: str, tokens: Text) -> None:
        """Put a document into a scope, over its oldest ones.

        Of one that goes on from a document that is still there only the new part is kept, and
        of one that is too long its end.
        """
        if len(tokens) < MIN_DOCUMENT:
            return
        scope = self.enter(name)
        if scope == self._nobodys:
            return
        starts, cells = self._starts[scope], self.cells[scope]
        start = tokens[:MIN_DOCUMENT].tobytes()
        position = starts.get(start)
        known = 0 if position is None else places.common_run(cells, position, tokens)
        if known < MIN_DOCUMENT:
            known = 0
        if len(tokens) - known >= MIN_DOCUMENT:
            part = tokens[max(known - _KEPT, 0) :][2 - self.capacity :]
            end = places.append_document(
                cells, self.heads[scope], self.ends[scope], self._vocab_size, part
            )
            self.ends[scope] = end
            self._filled[scope] = max(self._filled[scope], int(end))
            if known == 0 and len(part) == len(tokens):
                starts.pop(start, None)
                starts[start] = int(end) - 1 - len(part)
                if len(starts) > self.capacity // 256 + 1:
                    del starts[next(iter(starts))]
        self.leave(scope)

    def forget(self, name: str) -> None:
        """Drop a scope's text."""
        scope = self._scopes.get(name)
        if scope is not None:
            self._clear(scope)

    def _place_for_another(self) -> int | None:
        used = set(self._scopes.values())
        for scope in range(len(self._users)):
            if scope not in used:
                return scope
        for name, scope in self._scopes.items():
            if self._users[scope] == 0:
                del self._scopes[name]
                self._clear(scope)
                return scope
        return None

    def _clear(self, scope: int) -> None:
        self.cells[scope, : self._filled[scope]] = 0
        self.heads[scope] = 0
        self.ends[scope] = self._filled[scope] = 0
        self._starts[scope].clear()


class NoStore:
    """Stands for a store where nothing is shared: empty arrays that kernels can be given."""

    def __init__(self) -> None:
        self.cells = np.zeros((1, 1, index.NUM_COLUMNS), dtype=np.int32)
        self.heads = np.zeros((1, index.NUM_CHAINS, 1), dtype=np.int32)
        self.ends = np.zeros(1, dtype=np.int64)
