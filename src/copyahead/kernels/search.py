"""The search of the presets: one winning place, and a copy of what followed it."""

from __future__ import annotations

from typing import Any, NamedTuple

from copyahead.kernels.compiled import (
    BOOL,
    INT,
    INTS,
    INTS2,
    PAIR,
    TRIPLE,
    VOID,
    compiled,
    named,
)
from copyahead.kernels.index import (
    MAX_MATCH,
    POOL,
    SHARED,
    VIEW,
    Cells,
    Heads,
    Ints,
    Pool,
    View,
    chain_of,
    key_slot,
    match_length,
    view_of,
    wide,
)

LONGEST, NEWEST, FURTHEST = 0, 1, 2
"""Winners; see `contracts.Winner`."""

KEY_BITS, KEY_MASK = 4, 15
"""Key lengths are packed into one number, the one that is tried first lowest."""

READ_AHEAD = 32
"""Places of each chain that a batch brings into the cache before it searches."""


class Asked(NamedTuple):
    """A query, as kernels read it. `keys` holds key lengths of KEY_BITS each."""

    keys: int
    min_match: int
    winner: int
    max_candidates: int
    max_tokens: int


ASKED = named(Asked, INT, INT, INT, INT, INT)

# Of a batch's queries, whose columns are the fields above.
_KEYS, _MAX_CANDIDATES = 0, 3


@compiled(BOOL(INTS2, INT, INTS2, INT, INT))
def follows(text: Cells, position: int, cells: Cells, start: int, length: int) -> Any:
    """Whether the row's tokens from `start` to `length` equal those of `text` from `position`."""
    if position + length - start > len(text):
        return False
    for k in range(length - start):
        token = cells[start + k, 0]
        if token < 0 or text[position + k, 0] != token:
            return False
    return True


@compiled(PAIR(INTS2, INTS2, INTS2, INT, INT, ASKED))
def find_by_key(
    text: Cells, heads: Heads, cells: Cells, length: int, key: int, asked: Asked
) -> Any:
    """(origin, match length) of the winner among places of the row's last `key` tokens in `text`.

    Origin -1: none. Walks the chain of the longest key that is not longer than `key`.
    """
    chain = chain_of(key)
    last = length - 1
    best, origin = 0, -1
    slot = key_slot(cells, last, chain, heads.shape[1]) if last >= 0 else -1
    if slot < 0:
        return origin, best
    earlier = int(heads[chain, slot]) - 1
    for _ in range(asked.max_candidates):
        if earlier < 0:
            break
        if text[earlier + 1, 0] >= 0:
            found = match_length(text, earlier, cells, last)
            if found >= key and (found > best or asked.winner == FURTHEST):
                best, origin = found, earlier + 1
                if asked.winner == NEWEST or (asked.winner == LONGEST and best == MAX_MATCH):
                    break
        earlier = int(text[earlier, 1 + chain]) - 1
    return origin, best


@compiled(INT(INTS2, INT, INT, INT, INTS, INT))
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


@compiled(TRIPLE(INTS2, INTS2, INT, INTS2, INT, ASKED, INTS, INT))
def search_text(
    text: Cells,
    heads: Heads,
    text_length: int,
    cells: Cells,
    length: int,
    asked: Asked,
    out: Ints,
    start: int,
) -> Any:
    """(tokens copied to `out[start:]`, origin, match length) for one query; 0 tokens: nothing."""
    keys = asked.keys
    while keys > 0:
        origin, found = find_by_key(text, heads, cells, length, keys & KEY_MASK, asked)
        if origin >= 0:
            if found < asked.min_match:
                break
            count = copy_tokens(text, text_length, origin, asked.max_tokens, out, start)
            return count, origin, found
        keys >>= KEY_BITS
    return 0, -1, 0


@compiled(TRIPLE(VIEW, ASKED, INTS, INT))
def search_view(view: View, asked: Asked, out: Ints, start: int) -> Any:
    """The same in a request's own row, and where that has nothing in the store."""
    cells, length = view.cells, view.length
    count, origin, found = search_text(cells, view.heads, length, cells, length, asked, out, start)
    if count == 0 and view.end > 0:
        shared = view.shared
        count, origin, found = search_text(
            shared, view.shared_heads, len(shared), cells, length, asked, out, start
        )
        origin += SHARED
    return count, origin, found


@compiled(INT(POOL, INT, INT, ASKED, INTS))
def search(pool: Pool, row: int, scope: int, asked: Asked, out: Ints) -> Any:
    """One query in one row: `out` gets origin, match length, tokens. Returns how many tokens."""
    count, origin, found = search_view(view_of(pool, row, scope), asked, out, 2)
    out[0] = origin
    out[1] = found
    return count


@compiled(VOID(POOL, INTS, INTS2, INTS2))
def read_ahead(pool: Pool, rows: Ints, queries: Ints, cursors: Ints) -> None:
    """Walk the chain of every query's first key, all rows in step.

    One search waits for memory at each place of its chain. Rows do not wait for each other, so
    walking them side by side brings their places into the cache in a fraction of the time.
    """
    steps = 0
    for q in range(len(rows)):
        row, chain = rows[q], chain_of(queries[q, _KEYS] & KEY_MASK)
        length = int(pool.lengths[row])
        slots = pool.heads.shape[2]
        slot = key_slot(pool.cells[row], length - 1, chain, slots) if length > 0 else -1
        cursors[q, 0] = pool.heads[row, chain, slot] if slot >= 0 else 0
        cursors[q, 1] = 1 + chain
        steps = max(steps, int(queries[q, _MAX_CANDIDATES]))
    for _ in range(min(steps, READ_AHEAD)):
        for q in range(len(rows)):
            if cursors[q, 0] > 0:
                cursors[q, 0] = pool.cells[rows[q], cursors[q, 0] - 1, cursors[q, 1]]


@compiled(INT(POOL, INTS, INTS, INTS2, INTS2, INTS))
def search_batch(
    pool: Pool, rows: Ints, scopes: Ints, queries: Ints, found: Ints, out: Ints
) -> Any:
    """Many queries in one call. Returns how many tokens were written to `out`, end to end.

    queries[q]: the fields of `Asked`. found[q]: number of tokens, origin, match length.
    """
    read_ahead(pool, rows, queries, found)
    total = 0
    for q in range(len(rows)):
        asked = Asked(
            wide(queries[q, 0]),
            wide(queries[q, 1]),
            wide(queries[q, 2]),
            wide(queries[q, 3]),
            wide(queries[q, 4]),
        )
        view = view_of(pool, rows[q], scopes[q])
        count, origin, match = search_view(view, asked, out, total)
        found[q, 0] = count
        found[q, 1] = origin
        found[q, 2] = match
        total += count
    return total
