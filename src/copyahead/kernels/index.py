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

from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.kernels.compiled import compiled

Cells = npt.NDArray[np.int32]
Heads = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int32]

HASH_BITS = 18
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

READ_AHEAD = 32
"""Places of each chain that a batch brings into the cache before it searches."""

LONGEST, NEWEST, FURTHEST = 0, 1, 2

_MIX_A = np.uint64(0x9E3779B97F4A7C15)
_MIX_B = np.uint64(0xD6E8FEB86659FD93)
_CLEAR_FROM = 1 << 16


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


@compiled("int64(int32[:, ::1], int64, int64, int64)")
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


@compiled("void(int32[:, ::1], int32[:, ::1], int64)")
def insert_keys(cells: Cells, heads: Heads, end: int) -> None:
    """Make the keys that end at token `end` findable."""
    for chain in range(NUM_CHAINS):
        slot = key_slot(cells, end, chain, heads.shape[1])
        if slot >= 0:
            cells[end, 1 + chain] = heads[chain, slot]
            heads[chain, slot] = end + 1


@compiled("void(int32[:, ::1], int32[:, ::1], int64)")
def remove_keys(cells: Cells, heads: Heads, end: int) -> None:
    """Undo `insert_keys`. Exact when later insertions have been undone before."""
    for chain in range(NUM_CHAINS):
        slot = key_slot(cells, end, chain, heads.shape[1])
        if slot >= 0:
            heads[chain, slot] = cells[end, 1 + chain]


@compiled("void(int32[:, :, ::1], int32[:, :, ::1], int32[::1], int64, int64, int32[::1])")
def extend_row(
    cells: Cells, heads: Heads, lengths: Ints, row: int, vocab_size: int, tokens: Ints
) -> None:
    """Append `tokens` to a row that has room for them, and index what they make findable."""
    row_cells = cells[row]
    row_heads = heads[row]
    length = lengths[row]
    for k in range(len(tokens)):
        if length > 0:
            insert_keys(row_cells, row_heads, length - 1)
        token = tokens[k]
        row_cells[length, 0] = token if 0 <= token < vocab_size else BARRIER
        length += 1
    lengths[row] = length


@compiled("void(int32[:, :, ::1], int32[:, :, ::1], int32[::1], int64, int64)")
def truncate_row(cells: Cells, heads: Heads, lengths: Ints, row: int, length: int) -> None:
    """Cut a row to its first `length` tokens; its index is then as it was at that length."""
    old = int(lengths[row])
    if length >= old:
        return
    lengths[row] = length
    if length == 0 and old > _CLEAR_FROM:
        for chain in range(NUM_CHAINS):
            for slot in range(heads.shape[2]):
                heads[row, chain, slot] = 0
        return
    row_cells = cells[row]
    row_heads = heads[row]
    for end in range(old - 2, max(length - 1, 0) - 1, -1):
        remove_keys(row_cells, row_heads, end)


@compiled("int64(int32[:, :, ::1], int32[::1], int64, int64, int32[::1])")
def common_prefix(cells: Cells, lengths: Ints, row: int, vocab_size: int, tokens: Ints) -> Any:
    """How many tokens at the start of `tokens` the row holds as well."""
    row_cells = cells[row]
    limit = min(int(lengths[row]), len(tokens))
    for k in range(limit):
        token = tokens[k]
        if row_cells[k, 0] != (token if 0 <= token < vocab_size else BARRIER):
            return k
    return limit


@compiled("boolean(int32[:, ::1], int64, int32[:, ::1], int64, int64)")
def follows(text: Cells, position: int, cells: Cells, start: int, length: int) -> Any:
    """Whether the row's tokens from `start` to `length` equal those of `text` from `position`."""
    if position + length - start > len(text):
        return False
    for k in range(length - start):
        token = cells[start + k, 0]
        if token < 0 or text[position + k, 0] != token:
            return False
    return True


@compiled("int64(int32[:, ::1], int64, int32[:, ::1], int64)")
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


@compiled(
    "UniTuple(int64, 2)(int32[:, ::1], int32[:, ::1], int32[:, ::1], int64, int64, int64, int64)"
)
def find_by_key(
    text: Cells,
    heads: Heads,
    cells: Cells,
    length: int,
    key: int,
    winner: int,
    max_candidates: int,
) -> Any:
    """(origin, match length) of the winner among places of the row's last `key` tokens in `text`.

    Origin -1: none. Walks the chain of the longest key that is not longer than `key`.
    """
    chain = 0 if key >= 4 else (1 if key >= 2 else 2)
    last = length - 1
    best, origin = 0, -1
    slot = key_slot(cells, last, chain, heads.shape[1]) if last >= 0 else -1
    if slot < 0:
        return origin, best
    earlier = int(heads[chain, slot]) - 1
    for _ in range(max_candidates):
        if earlier < 0:
            break
        if text[earlier + 1, 0] >= 0:
            found = match_length(text, earlier, cells, last)
            if found >= key and (found > best or winner == FURTHEST):
                best, origin = found, earlier + 1
                if winner == NEWEST or (winner == LONGEST and best == MAX_MATCH):
                    break
        earlier = int(text[earlier, 1 + chain]) - 1
    return origin, best


@compiled("int64(int32[:, ::1], int64, int64, int64, int32[::1], int64)")
def copy_tokens(
    text: Cells, length: int, origin: int, max_tokens: int, out: Ints, start: int
) -> Any:
    """Write what follows `origin` to `out[start:]`; returns how many tokens.

    Past the end of `text`, at `length`, it reads its own copy, so that a period goes on.
    """
    for k in range(max_tokens):
        position = origin + k
        token = text[position, 0] if position < length else out[start + position - length]
        if token < 0:
            return k
        out[start + k] = token
    return max_tokens


@compiled(
    "UniTuple(int64, 3)(int32[:, ::1], int32[:, ::1], int64, int32[:, ::1], int64, "
    "int64, int64, int64, int64, int64, int32[::1], int64)"
)
def search_text(
    text: Cells,
    heads: Heads,
    text_length: int,
    cells: Cells,
    length: int,
    keys: int,
    min_match: int,
    winner: int,
    max_candidates: int,
    max_tokens: int,
    out: Ints,
    start: int,
) -> Any:
    """(tokens copied to `out[start:]`, origin, match length) for one query; 0 tokens: nothing.

    `keys` holds key lengths of 4 bits each, the first one lowest.
    """
    while keys > 0:
        key = keys & 15
        origin, found = find_by_key(text, heads, cells, length, key, winner, max_candidates)
        if origin >= 0:
            if found < min_match:
                break
            return copy_tokens(text, text_length, origin, max_tokens, out, start), origin, found
        keys >>= 4
    return 0, -1, 0


_POOL_AND_STORE = (
    "int32[:, :, ::1], int32[:, :, ::1], int32[::1], int32[:, :, ::1], int32[:, :, ::1], int64[::1]"
)


@compiled(
    f"UniTuple(int64, 3)({_POOL_AND_STORE}, "
    "int64, int64, int64, int64, int64, int64, int64, int32[::1], int64)"
)
def search_row(
    cells: Cells,
    heads: Heads,
    lengths: Ints,
    shared: Cells,
    shared_heads: Heads,
    shared_ends: Any,
    row: int,
    scope: int,
    keys: int,
    min_match: int,
    winner: int,
    max_candidates: int,
    max_tokens: int,
    out: Ints,
    start: int,
) -> Any:
    """The same in one row, and where it has nothing in one scope of the shared store."""
    length = int(lengths[row])
    count, origin, found = search_text(
        cells[row],
        heads[row],
        length,
        cells[row],
        length,
        keys,
        min_match,
        winner,
        max_candidates,
        max_tokens,
        out,
        start,
    )
    if count == 0 and shared_ends[scope] > 0:
        count, origin, found = search_text(
            shared[scope],
            shared_heads[scope],
            shared.shape[1],
            cells[row],
            length,
            keys,
            min_match,
            winner,
            max_candidates,
            max_tokens,
            out,
            start,
        )
        origin += SHARED
    return count, origin, found


@compiled(f"int64({_POOL_AND_STORE}, int64, int64, int64, int64, int64, int64, int64, int32[::1])")
def search(
    cells: Cells,
    heads: Heads,
    lengths: Ints,
    shared: Cells,
    shared_heads: Heads,
    shared_ends: Any,
    row: int,
    scope: int,
    keys: int,
    min_match: int,
    winner: int,
    max_candidates: int,
    max_tokens: int,
    out: Ints,
) -> Any:
    """One query in one row: `out` gets origin, match length, tokens. Returns how many tokens."""
    count, origin, found = search_row(
        cells,
        heads,
        lengths,
        shared,
        shared_heads,
        shared_ends,
        row,
        scope,
        keys,
        min_match,
        winner,
        max_candidates,
        max_tokens,
        out,
        2,
    )
    out[0] = origin
    out[1] = found
    return count


@compiled(
    "void(int32[:, :, ::1], int32[:, :, ::1], int32[::1], int32[::1], int32[::1], int32[:, ::1])"
)
def read_ahead(
    cells: Cells, heads: Heads, lengths: Ints, rows: Ints, queries: Ints, cursors: Ints
) -> None:
    """Walk the chain of every query's first key, all rows in step.

    One search waits for memory at each place of its chain. Rows do not wait for each other, so
    walking them side by side brings their places into the cache in a fraction of the time.
    """
    steps = 0
    for q in range(len(rows)):
        row, key = rows[q], queries[5 * q] & 15
        chain = 0 if key >= 4 else (1 if key >= 2 else 2)
        length = int(lengths[row])
        slot = key_slot(cells[row], length - 1, chain, heads.shape[2]) if length > 0 else -1
        cursors[q, 0] = heads[row, chain, slot] if slot >= 0 else 0
        cursors[q, 1] = 1 + chain
        steps = max(steps, int(queries[5 * q + 3]))
    for _ in range(min(steps, READ_AHEAD)):
        for q in range(len(rows)):
            if cursors[q, 0] > 0:
                cursors[q, 0] = cells[rows[q], cursors[q, 0] - 1, cursors[q, 1]]


@compiled(
    f"int64({_POOL_AND_STORE}, int32[::1], int32[::1], int32[::1], int32[:, ::1], int32[::1])"
)
def search_batch(
    cells: Cells,
    heads: Heads,
    lengths: Ints,
    shared: Cells,
    shared_heads: Heads,
    shared_ends: Any,
    rows: Ints,
    scopes: Ints,
    queries: Ints,
    found: Ints,
    out: Ints,
) -> Any:
    """Many queries in one call. Returns how many tokens were written to `out`, end to end.

    queries: keys, min_match, winner, max_candidates, max_tokens of each row, end to end.
    found[q]: number of tokens, origin, match length.
    """
    read_ahead(cells, heads, lengths, rows, queries, found)
    total = 0
    for q in range(len(rows)):
        count, origin, match = search_row(
            cells,
            heads,
            lengths,
            shared,
            shared_heads,
            shared_ends,
            rows[q],
            scopes[q],
            int(queries[5 * q]),
            int(queries[5 * q + 1]),
            int(queries[5 * q + 2]),
            int(queries[5 * q + 3]),
            int(queries[5 * q + 4]),
            out,
            total,
        )
        found[q, 0] = count
        found[q, 1] = origin
        found[q, 2] = match
        total += count
    return total
