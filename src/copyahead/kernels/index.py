"""The token index: chains of earlier positions for keys of 4, 2 and 1 tokens.

A pool holds rows. `cells[row, i]` is one token and its three links:

    column 0      the token, or BARRIER
    column 1..3   the previous position whose last 4, 2, 1 tokens have the same hash, plus 1

`heads[row, c, hash]` is the newest position of chain c (0: 4 tokens, 1: 2, 2: 1), plus 1. With
0 for "none", both arrays can be zero pages that the system hands out when they are touched.
One cell is 16 bytes, so that a step along a chain and the token there are one cache line.

The key that ends at token i is inserted when token i + 1 arrives, so that the history's tail
never finds itself. Every hit is compared token by token: hash collisions cost time only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from copyahead.kernels.compiled import (
    INT,
    INTS,
    INTS2,
    INTS3,
    LONGS,
    VOID,
    compiled,
    named,
)

Cells = npt.NDArray[np.int32]
Heads = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


class Pool(NamedTuple):
    """Rows of text with their index, and the scopes of the shared store with theirs."""

    cells: Cells
    heads: Heads
    lengths: Ints
    shared: Cells
    shared_heads: Heads
    shared_ends: Longs


class View(NamedTuple):
    """What one request may copy from: its row, and one scope of the store."""

    cells: Cells
    heads: Heads
    length: int
    shared: Cells
    shared_heads: Heads
    end: int


POOL = named(Pool, INTS3, INTS3, INTS, INTS3, INTS3, LONGS)
VIEW = named(View, INTS2, INTS2, INT, INTS2, INTS2, INT)

HASH_BITS = 18
"""2^18 slots a chain: 3 MiB a row."""
NUM_CHAINS = 3
NUM_COLUMNS = 4
MAX_MATCH = 64
"""Matches are extended backwards over at most this many tokens."""
MAX_COPY = 64
"""No copy is longer."""
BARRIER = -1
"""Stands for a token outside the vocabulary: no key, match or copy goes across it."""

SHARED = 1 << 30
"""From here on places are positions of the shared store, below it of the row; see `places`."""

_MIX_A = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio (Knuth's multiplicative hashing)."""
_MIX_B = np.uint64(0xD6E8FEB86659FD93)
"""An odd number with its bits well spread, so that all four tokens reach the upper bits."""
_CLEAR_FROM = 1 << 16
"""A longer row is emptied by clearing its heads: less work than undoing its keys one by one."""


@compiled("uint64(int64, int64)")
def hash_pair(older: int, newer: int) -> Any:
    """Of a 2-token key; its upper bits are the good ones."""
    packed = (np.uint64(older) << np.uint64(32)) | np.uint64(newer)
    return packed * _MIX_A


@compiled("uint64(int64, int64, int64, int64)")
def hash_four(first: int, second: int, third: int, fourth: int) -> Any:
    """Of a 4-token key, oldest token first."""
    older = (np.uint64(first) << np.uint64(32)) | np.uint64(second)
    newer = (np.uint64(third) << np.uint64(32)) | np.uint64(fourth)
    return (older * _MIX_A + newer) * _MIX_B


@compiled("int64(uint64, int64)")
def slot_of_hash(hashed: Any, num_slots: int) -> Any:
    """One of `num_slots`, by the upper bits of a hash."""
    upper = hashed >> np.uint64(32)
    return np.int64((upper * np.uint64(num_slots)) >> np.uint64(32))


@compiled(INT(INT))
def chain_of(key: int) -> Any:
    """The chain of the longest key that is not longer than `key` tokens."""
    return 0 if key >= 4 else (1 if key >= 2 else 2)


@compiled(INT(INTS2, INT, INT, INT))
def key_slot(cells: Cells, end: int, chain: int, num_slots: int) -> Any:
    """Slot of the key of `chain` that ends at token `end`; -1 where there is no such key.

    `num_slots`, a power of two up to 2^30, is how many the chain has.
    """
    newest = cells[end, 0]
    if newest < 0:
        return -1
    if chain == 2:
        return newest & (num_slots - 1)
    if end < 1 or cells[end - 1, 0] < 0:
        return -1
    if chain == 1:
        return slot_of_hash(hash_pair(cells[end - 1, 0], newest), num_slots)
    if end < 3 or cells[end - 2, 0] < 0 or cells[end - 3, 0] < 0:
        return -1
    four = hash_four(cells[end - 3, 0], cells[end - 2, 0], cells[end - 1, 0], newest)
    return slot_of_hash(four, num_slots)


@compiled(VOID(INTS2, INTS2, INT))
def insert_keys(cells: Cells, heads: Heads, end: int) -> None:
    """Make the keys that end at token `end` findable."""
    for chain in range(NUM_CHAINS):
        slot = key_slot(cells, end, chain, heads.shape[1])
        if slot >= 0:
            cells[end, 1 + chain] = heads[chain, slot]
            heads[chain, slot] = end + 1


@compiled(VOID(INTS2, INTS2, INT))
def remove_keys(cells: Cells, heads: Heads, end: int) -> None:
    """Undo `insert_keys`. Exact when later insertions have been undone before."""
    for chain in range(NUM_CHAINS):
        slot = key_slot(cells, end, chain, heads.shape[1])
        if slot >= 0:
            heads[chain, slot] = cells[end, 1 + chain]


@compiled("int64(int32)")
def wide(value: int) -> Any:
    """A 32-bit number as the number that named tuples hold."""
    return value


@compiled(VIEW(POOL, INT, INT))
def view_of(pool: Pool, row: int, scope: int) -> Any:
    """One row, and one scope of the store."""
    return View(
        pool.cells[row],
        pool.heads[row],
        wide(pool.lengths[row]),
        pool.shared[scope],
        pool.shared_heads[scope],
        pool.shared_ends[scope],
    )


@compiled(VOID(POOL, INT, INT, INTS))
def extend_row(pool: Pool, row: int, vocab_size: int, tokens: Ints) -> None:
    """Append `tokens` to a row that has room for them, and index what they make findable."""
    cells, heads = pool.cells[row], pool.heads[row]
    length = pool.lengths[row]
    for k in range(len(tokens)):
        if length > 0:
            insert_keys(cells, heads, length - 1)
        token = tokens[k]
        cells[length, 0] = token if 0 <= token < vocab_size else BARRIER
        length += 1
    pool.lengths[row] = length


@compiled(VOID(POOL, INT, INT))
def truncate_row(pool: Pool, row: int, length: int) -> None:
    """Cut a row to its first `length` tokens; its index is then as it was at that length."""
    old = int(pool.lengths[row])
    if length >= old:
        return
    pool.lengths[row] = length
    cells, heads = pool.cells[row], pool.heads[row]
    if length == 0 and old > _CLEAR_FROM:
        for chain in range(NUM_CHAINS):
            for slot in range(heads.shape[1]):
                heads[chain, slot] = 0
        return
    for end in range(old - 2, max(length - 1, 0) - 1, -1):
        remove_keys(cells, heads, end)


@compiled(INT(POOL, INT, INT, INTS))
def common_prefix(pool: Pool, row: int, vocab_size: int, tokens: Ints) -> Any:
    """How many tokens at the start of `tokens` the row holds as well."""
    cells = pool.cells[row]
    limit = min(int(pool.lengths[row]), len(tokens))
    for k in range(limit):
        token = tokens[k]
        if cells[k, 0] != (token if 0 <= token < vocab_size else BARRIER):
            return k
    return limit


@compiled(INT(INTS2, INT, INTS2, INT))
def match_length(text: Cells, earlier: int, cells: Cells, last: int) -> Any:
    """How many tokens of `text` going back from `earlier` equal those going back from `last`."""
    limit = min(MAX_MATCH, earlier + 1, last + 1)
    length = 0
    while length < limit:
        token = cells[last - length, 0]
        if token < 0 or text[earlier - length, 0] != token:
            break
        length += 1
    return length
