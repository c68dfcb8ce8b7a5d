"""What requests have read and written, and where parts of it occurred before.

A pool of rows of equal capacity, one row a request. This module knows no policy: it answers a
`Query`. Every row costs 16 bytes a token it holds and 3 MiB; untouched memory is not used (in
pages of 2 MiB, where the system has them).

A pool is used by one thread at a time.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from copyahead.contracts import Query
from copyahead.errors import ConfigError, RequestError
from copyahead.history.pages import untouched
from copyahead.history.store import NoStore, SharedStore
from copyahead.kernels import index, search
from copyahead.kernels.compiled import entry_point
from copyahead.types import NO_DRAFT, Draft, Source, Token

Tokens = Sequence[Token] | npt.NDArray[np.integer]
"""Token ids; an int32 array is the fastest to read."""

BARRIER = index.BARRIER
"""What `HistoryPool.tokens` shows for a token outside the vocabulary."""

_Packed = tuple[Query, search.Asked, bytes]
"""A query, and the same as kernels read it, one by one and in a batch."""

_search, _search_batch = entry_point(search.search), entry_point(search.search_batch)

_WINNERS = {"longest": search.LONGEST, "newest": search.NEWEST, "furthest": search.FURTHEST}
_MAX_KEYS = 7
_MAX_KEY = search.KEY_MASK
_SLACK = index.MAX_COPY + 1
_MAX_CAPACITY = index.SHARED - _SLACK

MAX_TOUCHED_BYTES = 64 << 20
"""Most memory that `HistoryPool.touch` takes unless it is told otherwise."""
TOUCHED_TOKENS = 1 << 14
"""Tokens of each row that it takes memory for: 16 bytes each."""


class HistoryPool:
    """Rows of tokens with an index of the places where their last tokens occurred before."""

    def __init__(
        self, num_rows: int, capacity: int, vocab_size: int, store: SharedStore | None = None
    ) -> None:
        """Room for `capacity` tokens in each of `num_rows` rows.

        `capacity` is the longest prompt and answer together. Tokens below 0, or not below
        `vocab_size`, are barriers: kept in place, never matched, never proposed.

        `store` gets what finished requests leave, and is searched where a row has nothing itself.
        """
        for name, value, high in (
            ("num_rows", num_rows, 2**20),
            ("capacity", capacity, _MAX_CAPACITY),
            ("vocab_size", vocab_size, 2**31 - 1),
        ):
            if not 1 <= value <= high:
                raise ConfigError(f"{name} must be from 1 to {high}, not {value}")
        self.num_rows = num_rows
        self.capacity = capacity
        self.vocab_size = vocab_size
        self.cells = untouched((num_rows, capacity + _SLACK, index.NUM_COLUMNS))
        self.heads = untouched((num_rows, index.NUM_CHAINS, 1 << index.HASH_BITS))
        self.lengths = np.zeros(num_rows, dtype=np.int32)
        self._store = store
        self.shared: SharedStore | NoStore = store or NoStore()
        """The store, or empty arrays in its place."""
        self.arrays = index.Pool(
            self.cells,
            self.heads,
            self.lengths,
            self.shared.cells,
            self.shared.heads,
            self.shared.ends,
        )
        """The same, for kernels."""
        # Whose text each row holds, and the scope it may copy from while a request is in it.
        self._tenants = [""] * num_rows
        self._scopes: list[int | None] = [None] * num_rows
        self._prompt_lengths = [0] * num_rows
        self._prompt_starts = [0] * num_rows
        self._out = np.zeros(2 + index.MAX_COPY, dtype=np.int32)
        self._batch_out = np.zeros(0, dtype=np.int32)
        self._batch_found = np.zeros((0, 3), dtype=np.int32)
        # By id, with the query held so that its id stays its own: policies ask for the same
        # few objects every round, and hashing one costs as much as the search.
        self._packed: dict[int, _Packed] = {}

    def touch(self, num_bytes: int = MAX_TOUCHED_BYTES) -> None:
        """Have memory for the first rows now, at most `num_bytes`, and not in their first request.

        Of each row its index, and room for the first tokens of a text. Rows in use are left alone.
        """
        room = self.cells[0, :TOUCHED_TOKENS].nbytes + self.heads[0].nbytes
        for row in range(min(self.num_rows, num_bytes // room)):
            if not self.lengths[row]:
                self.heads[row] = 0
                self.cells[row, :TOUCHED_TOKENS] = 0

    def length(self, row: int) -> int:
        """How many tokens the row holds."""
        return int(self.lengths[row])

    def prompt_length(self, row: int) -> int:
        """How many of them come before what the request has written."""
        return self._prompt_lengths[row]

    def prompt_start(self, row: int) -> int:
        """Where the request's own tokens begin: behind its prediction, where it has one."""
        return self._prompt_starts[row]

    def source(self, row: int, origin: int) -> Source:
        """What kind of text place `origin` belongs to."""
        if origin >= index.SHARED:
            return Source.SHARED
        if origin < self._prompt_starts[row]:
            return Source.PREDICTION
        return Source.PROMPT if origin < self._prompt_lengths[row] else Source.OUTPUT

    def tokens(self, row: int) -> list[Token]:
        """The row's tokens, barriers as BARRIER."""
        held: list[Token] = self.cells[row, : self.length(row), 0].tolist()
        return held

    def num_shared(self, row: int, tokens: Tokens) -> int:
        """How many tokens at the beginning of `tokens` the row begins with as well."""
        given = self._as_tokens(tokens)
        return int(index.common_prefix(self.arrays, row, self.vocab_size, given))

    def attach(self, row: int, prompt: Tokens, prediction: Tokens = (), tenant: str = "") -> int:
        """Make the row hold exactly `prompt`; returns how many of its tokens it held already.

        Only what comes after those is indexed. From the store it may copy what `tenant` left
        there, until `release`. `prediction` is text that the request expects to
        write: it stands before the prompt, between barriers, so that it is found like any other
        text and no match runs from one into the other.
        """
        if not 0 <= row < self.num_rows:
            raise ValueError(f"row (slot) must be from 0 to {self.num_rows - 1}, not {row}")
        tokens = self._as_tokens(prompt)
        start = 0
        if len(prediction):
            barrier = np.array([BARRIER], dtype=np.int32)
            tokens = np.concatenate([barrier, self._as_tokens(prediction), barrier, tokens])
            start = len(prediction) + 2
        if len(tokens) > self.capacity:
            raise self._overflow(len(tokens))
        kept = self.num_shared(row, tokens)
        if self._store is not None:
            self.release(row)
            self._tenants[row], self._scopes[row] = tenant, self._store.enter(tenant)
        index.truncate_row(self.arrays, row, kept)
        index.extend_row(self.arrays, row, self.vocab_size, tokens[kept:])
        self._prompt_lengths[row] = len(tokens)
        self._prompt_starts[row] = start
        return max(0, kept - start)

    def scope(self, row: int) -> int:
        """Which scope of the store the row's request may copy from; without one, the empty one."""
        scope = self._scopes[row]
        return self.shared.empty_scope if scope is None else scope

    def forget(self) -> None:
        """Empty all rows and the store. No request may be in a row."""
        for row in range(self.num_rows):
            index.truncate_row(self.arrays, row, 0)
            self._prompt_lengths[row] = self._prompt_starts[row] = 0
        if self._store is not None:
            self._store.clear()

    def release(self, row: int) -> None:
        """The row's request has ended: what is new in the row goes to its tenant's scope of the
        store, and nothing is copied from there any more. Idempotent.
        """
        scope, self._scopes[row] = self._scopes[row], None
        if self._store is not None and scope is not None:
            self._store.leave(scope)
            text = self.cells[row, self._prompt_starts[row] : self.length(row), 0]
            self._store.add(self._tenants[row], np.ascontiguousarray(text))

    def extend(self, row: int, tokens: Tokens) -> None:
        """Append `tokens`, as written by the request.

        Raises RequestError, and changes nothing, where they do not fit.
        """
        added = self.fitting(row, tokens)
        index.extend_row(self.arrays, row, self.vocab_size, added)

    def fitting(self, row: int, tokens: Tokens) -> npt.NDArray[np.int32]:
        """`tokens` as a kernel reads them. Raises RequestError where the row has no room."""
        added = self._as_tokens(tokens)
        length = int(self.lengths[row]) + len(added)
        if length > self.capacity:
            raise self._overflow(length)
        return added

    def truncate(self, row: int, length: int) -> None:
        """Forget the row from token `length` on. Idempotent. Later searches are as if it had
        never been longer.
        """
        if length < 0:
            raise ValueError(f"length must be at least 0, not {length}")
        index.truncate_row(self.arrays, row, length)
        self._prompt_lengths[row] = min(self._prompt_lengths[row], length)

    def follows(self, row: int, position: int, start: int) -> bool:
        """Whether the tokens from `start` to the end equal those from place `position` on."""
        text = self.cells[row]
        if position >= index.SHARED:
            text, position = self.shared.cells[self.scope(row)], position - index.SHARED
        return bool(search.follows(text, position, self.cells[row], start, self.length(row)))

    def search(self, row: int, query: Query) -> Draft:
        """What followed the winning earlier place of the row's last tokens; or the empty draft.

        Keys are tried in order, and the first with a match decides: a chosen winner that is
        shorter than `min_match` is dropped, and no further key is tried. A place whose next
        token is a barrier has no continuation and is passed over. A copy that reaches the end
        of the history goes on in its own tokens.
        """
        _, asked, _ = self._packed.get(id(query)) or self._pack(query)
        out = self._out
        count = _search(self.arrays, row, self.scope(row), asked, out)
        if count == 0:
            return NO_DRAFT
        origin, match, *tokens = out[: count + 2].tolist()
        return self._draft(row, origin, match, tuple(tokens))

    def search_batch(self, rows: Sequence[int], queries: Sequence[Query]) -> list[Draft]:
        """`[search(row, query) for ...]` in one kernel call."""
        if not rows:
            return []
        packed = self._packed
        fields = [(packed.get(id(query)) or self._pack(query))[2] for query in queries]
        self._reserve(len(rows))
        found, out = self._batch_found, self._batch_out
        total = _search_batch(
            self.arrays,
            np.array(rows, dtype=np.int32),
            np.array([self.scope(row) for row in rows], dtype=np.int32),
            np.frombuffer(bytearray().join(fields), dtype=np.int32).reshape(-1, 5),
            found,
            out,
        )
        tokens = tuple(out[:total].tolist())
        drafts = []
        start = 0
        for row, (count, origin, match) in zip(rows, found[: len(rows)].tolist(), strict=True):
            if count == 0:
                drafts.append(NO_DRAFT)
                continue
            drafts.append(self._draft(row, origin, match, tokens[start : start + count]))
            start += count
        return drafts

    def check(self) -> None:
        """Raise AssertionError unless the books agree, the store's included. For tests.

        A store belongs to one pool: its users are this pool's rows.
        """
        for row in range(self.num_rows):
            self._check_lengths(row)
            self._check_index(row)
        if self._store is not None:
            self._store.check([scope for scope in self._scopes if scope is not None])

    def _check_lengths(self, row: int) -> None:
        length, start = self.length(row), self._prompt_starts[row]
        assert 0 <= length <= self.capacity, f"row {row} holds {length} of {self.capacity} tokens"
        written = self._prompt_lengths[row]
        assert start <= written <= length, (
            f"row {row} holds {length} tokens, and its prompt is from {start} to {written}"
        )
        tokens = self.cells[row, :length, 0]
        assert ((tokens >= BARRIER) & (tokens < self.vocab_size)).all(), (
            f"row {row} holds what is no token"
        )
        barriers = tokens[[0, start - 1]] if start else tokens[:0]
        assert (barriers == BARRIER).all(), f"row {row}: no barriers around its prediction"

    def _check_index(self, row: int) -> None:
        """Links are positions plus 1, and 0 for none."""
        length = self.length(row)
        links = self.cells[row, :length, 1:]
        places = np.arange(length)[:, None]
        assert ((links >= 0) & (links <= places)).all(), f"row {row}: a chain points forwards"
        heads = self.heads[row]
        # The newest token has no key yet.
        assert 0 <= heads.min() <= heads.max() < max(1, length), (
            f"row {row}: a chain begins past its {length} tokens"
        )

    def _draft(self, row: int, origin: int, match: int, tokens: tuple[Token, ...]) -> Draft:
        return Draft(tokens, self.source(row, origin), match, (), origin)

    def _reserve(self, num_queries: int) -> None:
        if len(self._batch_found) < num_queries:
            self._batch_found = np.zeros((num_queries, 3), dtype=np.int32)
            self._batch_out = np.zeros(num_queries * index.MAX_COPY, dtype=np.int32)

    def _pack(self, query: Query) -> _Packed:
        keys = query.keys
        if not 1 <= len(keys) <= _MAX_KEYS or not all(1 <= key <= _MAX_KEY for key in keys):
            raise ConfigError(
                f"keys must be 1 to {_MAX_KEYS} lengths from 1 to {_MAX_KEY}, not {keys!r}"
            )
        if query.max_tokens < 1 or query.max_candidates < 1:
            raise ConfigError("max_tokens and max_candidates of a query must be at least 1")
        asked = search.Asked(
            sum(key << (search.KEY_BITS * place) for place, key in enumerate(keys)),
            query.min_match,
            _WINNERS[query.winner],
            query.max_candidates,
            min(query.max_tokens, index.MAX_COPY),
        )
        if len(self._packed) >= 4096:
            self._packed.clear()
        packed = (query, asked, struct.pack("5i", *asked))
        self._packed[id(query)] = packed
        return packed

    def _as_tokens(self, tokens: Tokens) -> npt.NDArray[np.int32]:
        """As a writable int32 array, with ids that do not fit 32 bits made barriers."""
        if isinstance(tokens, np.ndarray):
            if tokens.dtype != np.int32:
                if tokens.dtype.kind not in "iu":
                    raise TypeError(f"tokens must be whole numbers, not {tokens.dtype}")
                outside = (tokens < 0) | (tokens >= self.vocab_size)
                return np.where(outside, BARRIER, tokens).astype(np.int32)
            given: npt.NDArray[np.int32] = tokens.astype(np.int32, copy=False)
            return given if given.flags.c_contiguous and given.flags.writeable else given.copy()
        try:
            # A number that is not whole is a TypeError here; numpy would cut it.
            packed = array("i", tokens)
        except OverflowError:
            high = self.vocab_size
            packed = array("i", [t if 0 <= t < high else BARRIER for t in tokens])
        return np.frombuffer(packed, dtype=np.int32)

    def _overflow(self, length: int) -> RequestError:
        return RequestError(
            f"a history of {length} tokens does not fit a row of {self.capacity}: "
            "open the pool with a larger capacity",
            field="prompt",
        )
