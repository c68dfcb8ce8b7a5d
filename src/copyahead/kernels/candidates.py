"""Which places `priced` weighs: the newest ones by key, and those near the last copy's end."""

from __future__ import annotations

from typing import Any, NamedTuple

from copyahead.kernels.compiled import (
    BOOL,
    INT,
    INTS2,
    LONGS,
    TRIPLE,
    VOID,
    compiled,
    named,
)
from copyahead.kernels.features import (
    A_GAP,
    A_NEXT,
    ANCHOR_MAX_GAP,
    B_GAP,
    B_NEXT,
    DISTANCE,
    ECHO,
    MATCH,
    NEAR,
    RANK,
    SOURCE,
    distance_bucket,
    echo_bucket,
    rank_bucket,
)
from copyahead.kernels.index import (
    MAX_MATCH,
    NUM_CHAINS,
    POOL,
    SHARED,
    VIEW,
    Cells,
    Heads,
    Ints,
    Longs,
    Pool,
    View,
    key_slot,
    match_length,
)
from copyahead.kernels.places import age, distance, position_of, text_of

# Columns of a round. Asked: the row, and the most tokens to draft. Found: number of tokens, origin,
# match length, and whether any token was copied from the store. Then a cursor a chain.
ROW, LIMIT, NUM_TOKENS, ORIGIN, MATCH_LENGTH, HAS_SHARED, CURSORS = 0, 1, 2, 3, 4, 5, 6
NUM_ROUND_COLUMNS = CURSORS + NUM_CHAINS

PER_KEY = 8
"""Places that are visited of each key; 4 and 16 are no better (docs/policies.md)."""
PER_ANCHOR = 8
"""Places that are taken near each anchor."""
_NEAR_RANK = 3
"""The rank of those: no chain was walked to them."""
_MAX_ECHO = 16
"""An echo that goes on for longer counts as this long."""
_SHORT_ECHO = 8
"""A shorter echo is looked for with a token skipped as well."""
_NO_ECHO_FROM = 32
"""Matches from here on are long enough without one."""


@compiled(INT(INTS2, INT, INTS2, INT))
def equal_run(text: Cells, earlier: int, cells: Cells, last: int) -> Any:
    """How many tokens are equal going back from both positions, at most 16."""
    run = 0
    while run < _MAX_ECHO and run <= earlier and run <= last:
        token = cells[last - run, 0]
        if token < 0 or text[earlier - run, 0] != token:
            break
        run += 1
    return run


@compiled(INT(INTS2, INT, INTS2, INT, INT))
def echo(text: Cells, earlier: int, cells: Cells, last: int, match: int) -> Any:
    """How far a match goes on past its first error: a replaced, or else a skipped token."""
    if match >= _NO_ECHO_FROM:
        return 0
    earlier -= match
    last -= match
    run = equal_run(text, earlier - 1, cells, last - 1)
    if run < _SHORT_ECHO:
        run = max(
            run,
            equal_run(text, earlier - 1, cells, last),
            equal_run(text, earlier, cells, last - 1),
        )
    return run


@compiled(BOOL(INTS2, INT, INT))
def listed(candidates: Ints, count: int, source: int) -> Any:
    """Whether a candidate has this source."""
    for c in range(count):  # noqa: SIM110 - numba has no any()
        if candidates[SOURCE, c] == source:
            return True
    return False


class Text(NamedTuple):
    """A text to look for places in: a row, or a scope of the store."""

    cells: Cells
    heads: Heads
    base: int
    """The place of its first token."""
    newest: int
    """The position where it goes on."""
    behind: int
    """How far that lies before the row's next token."""


TEXT = named(Text, INTS2, INTS2, INT, INT, INT)


@compiled(INT(INTS2, INT, VIEW, INT, INT, INT, INT, INTS2, INT))
def add(
    text: Cells,
    position: int,
    view: View,
    source: int,
    match: int,
    rank: int,
    back: int,
    candidates: Ints,
    count: int,
) -> Any:
    """Append a candidate whose next token, at `position` of `text`, is a token; returns the
    new count. It lies `back` tokens before the row's next one.
    """
    if text[position, 0] < 0:
        return count
    run = echo(text, position - 1, view.cells, view.length - 1, match)
    candidates[SOURCE, count] = source
    candidates[MATCH, count] = match
    candidates[RANK, count] = rank_bucket(rank)
    candidates[ECHO, count] = echo_bucket(run)
    candidates[DISTANCE, count] = distance_bucket(back)
    return count + 1


@compiled(VOID(POOL, INTS2))
def read_ahead(pool: Pool, rounds: Ints) -> None:
    """Walk the three chains of every round's row, side by side.

    One row waits for memory at each place. Rows do not wait for each other, so this brings their
    places into the cache in a fraction of the time.
    """
    cells, heads = pool.cells, pool.heads
    for q in range(len(rounds)):
        row = rounds[q, ROW]
        length = int(pool.lengths[row])
        for chain in range(NUM_CHAINS):
            slots = heads.shape[2]
            slot = key_slot(cells[row], length - 1, chain, slots) if length > 0 else -1
            rounds[q, CURSORS + chain] = heads[row, chain, slot] if slot >= 0 else 0
    for _ in range(PER_KEY):
        for q in range(len(rounds)):
            for chain in range(NUM_CHAINS):
                place = rounds[q, CURSORS + chain]
                if place > 0:
                    rounds[q, CURSORS + chain] = cells[rounds[q, ROW], place - 1, 1 + chain]


@compiled(TRIPLE(TEXT, VIEW, INT, INTS2, INT, INT, INT))
def gather_chain(
    text: Text, view: View, chain: int, candidates: Ints, count: int, rank: int, visits: int
) -> Any:
    """The newest places of one key in one text; returns the new count, next rank, visits left.

    A shorter key keeps only matches that the longer one cannot have found.
    """
    last, key = view.length - 1, 4 >> chain
    above = MAX_MATCH + 1 if chain == 0 else 2 * key
    slot = key_slot(view.cells, last, chain, text.heads.shape[1])
    if slot < 0:
        return count, rank, visits
    earlier, before = int(text.heads[chain, slot]) - 1, 0
    while visits > 0 and earlier >= 0:
        # Text that was overwritten may link anywhere; what is not older was not linked from here.
        back = age(earlier, text.newest, len(text.cells))
        if back <= before:
            break
        before = back
        match = match_length(text.cells, earlier, view.cells, last)
        if match >= key:
            if match < above:
                source, back = text.base + earlier + 1, text.behind + back - 1
                count = add(
                    text.cells, earlier + 1, view, source, match, rank, back, candidates, count
                )
            rank += 1
        visits -= 1
        earlier = int(text.cells[earlier, 1 + chain]) - 1
    return count, rank, visits


@compiled(INT(VIEW, INTS2, INT))
def gather_by_key(view: View, candidates: Ints, count: int) -> Any:
    """The newest places of the last 4, 2 and 1 tokens: the row's, then the store's."""
    row = Text(view.cells, view.heads, 0, view.length, 0)
    store = Text(view.shared, view.shared_heads, SHARED, view.end, view.length)
    for chain in range(NUM_CHAINS):
        count, rank, visits = gather_chain(row, view, chain, candidates, count, 0, PER_KEY)
        if view.end > 0 and visits > 0:
            count, rank, visits = gather_chain(store, view, chain, candidates, count, rank, visits)
    return count


@compiled(INT(VIEW, INT, INT, INTS2, INT))
def gather_near(view: View, after: int, gap: int, candidates: Ints, count: int) -> Any:
    """Places around a broken copy's end where the last token occurs."""
    last = view.length - 1
    token = view.cells[last, 0]
    if token < 0:
        return count
    text, at = text_of(view.cells, view.shared, after), position_of(after)
    base = after - at
    start = count
    final = len(view.shared) - 2 if base > 0 else view.length - 2
    for earlier in range(max(at - NEAR, 0), min(at + gap + NEAR, final) + 1):
        if text[earlier, 0] != token:
            continue
        match = match_length(text, earlier, view.cells, last)
        source = base + earlier + 1
        if match == 1 or not listed(candidates, count, source):
            back = distance(view, source)
            count = add(text, earlier + 1, view, source, match, _NEAR_RANK, back, candidates, count)
            if count - start >= PER_ANCHOR:
                break
    return count


@compiled(INT(VIEW, INT, INT, INTS2, INT))
def gather_slot(view: View, source: int, rank: int, candidates: Ints, count: int) -> Any:
    """One place, whatever its match, unless it is listed."""
    text, position = text_of(view.cells, view.shared, source), position_of(source)
    inside = position < len(view.shared) if source >= SHARED else 0 <= source < view.length
    if not inside or listed(candidates, count, source):
        return count
    match = match_length(text, position - 1, view.cells, view.length - 1)
    back = distance(view, source)
    return add(text, position, view, source, match, rank, back, candidates, count)


@compiled(INT(VIEW, LONGS, INTS2))
def gather(view: View, state: Longs, candidates: Ints) -> Any:
    """List all candidates for the token after the history; returns how many."""
    if view.length == 0:
        return 0
    count = gather_by_key(view, candidates, 0)
    after, gap = state[A_NEXT], state[A_GAP]
    if after < 0:
        return count
    if gap == 0:
        return gather_slot(view, after, 0, candidates, count)
    older, older_gap = state[B_NEXT], state[B_GAP]
    if gap <= ANCHOR_MAX_GAP:
        count = gather_near(view, after, gap, candidates, count)
    if older >= 0 and older_gap <= ANCHOR_MAX_GAP:
        count = gather_near(view, older, older_gap, candidates, count)
    if gap <= ANCHOR_MAX_GAP:
        count = gather_slot(view, after + gap, _NEAR_RANK, candidates, count)
        count = gather_slot(view, after, _NEAR_RANK, candidates, count)
    return count
