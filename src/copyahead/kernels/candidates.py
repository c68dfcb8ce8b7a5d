"""Which places `priced` weighs: the newest ones by key, and those near the last copy's end."""

from __future__ import annotations

from typing import Any

from copyahead.kernels.compiled import compiled
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
    Longs,
    distance_bucket,
    echo_bucket,
    rank_bucket,
)
from copyahead.kernels.index import MAX_MATCH, SHARED, Cells, Heads, Ints, key_slot, match_length
from copyahead.kernels.places import (
    age,
    distance,
    position_of,
    text_of,
)

PER_KEY = 8
CURSORS = 5
NUM_ROUND_COLUMNS = CURSORS + 3
PER_ANCHOR = 8
_NEAR_RANK = 3
_MAX_ECHO = 16
_ECHO_FROM_MATCH = 32


@compiled("int64(int32[:, ::1], int64, int32[:, ::1], int64)")
def equal_run(text: Cells, earlier: int, cells: Cells, last: int) -> Any:
    """How many tokens are equal going back from both positions, at most 16."""
    run = 0
    while run < _MAX_ECHO and run <= earlier and run <= last:
        token = cells[last - run, 0]
        if token < 0 or text[earlier - run, 0] != token:
            break
        run += 1
    return run


@compiled("int64(int32[:, ::1], int64, int32[:, ::1], int64, int64)")
def echo(text: Cells, earlier: int, cells: Cells, last: int, match: int) -> Any:
    """How far a match goes on past its first error: a replaced, or else a skipped token."""
    if match >= _ECHO_FROM_MATCH:
        return 0
    earlier -= match
    last -= match
    run = equal_run(text, earlier - 1, cells, last - 1)
    if run < 8:
        run = max(
            run,
            equal_run(text, earlier - 1, cells, last),
            equal_run(text, earlier, cells, last - 1),
        )
    return run


@compiled("boolean(int32[:, ::1], int64, int64)")
def listed(candidates: Ints, count: int, source: int) -> Any:
    """Whether a candidate has this source."""
    for c in range(count):  # noqa: SIM110 - numba has no any()
        if candidates[SOURCE, c] == source:
            return True
    return False


@compiled(
    "int64(int32[:, ::1], int64, int32[:, ::1], int64, int64, int64, int64, int64, "
    "int32[:, ::1], int64)"
)
def add(
    text: Cells,
    position: int,
    cells: Cells,
    length: int,
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
    candidates[SOURCE, count] = source
    candidates[MATCH, count] = match
    candidates[RANK, count] = rank_bucket(rank)
    candidates[ECHO, count] = echo_bucket(echo(text, position - 1, cells, length - 1, match))
    candidates[DISTANCE, count] = distance_bucket(back)
    return count + 1


@compiled("void(int32[:, :, ::1], int32[:, :, ::1], int32[::1], int32[:, ::1])")
def read_ahead(cells: Cells, heads: Heads, lengths: Ints, rounds: Ints) -> None:
    """Walk the three chains of every round's row, side by side.

    One row waits for memory at each place. Rows do not wait for each other, so this brings their
    places into the cache in a fraction of the time.
    """
    for q in range(len(rounds)):
        row = rounds[q, 0]
        length = int(lengths[row])
        for chain in range(3):
            slot = key_slot(cells[row], length - 1, chain, heads.shape[2]) if length > 0 else -1
            rounds[q, CURSORS + chain] = heads[row, chain, slot] if slot >= 0 else 0
    for _ in range(PER_KEY):
        for q in range(len(rounds)):
            for chain in range(3):
                place = rounds[q, CURSORS + chain]
                if place > 0:
                    rounds[q, CURSORS + chain] = cells[rounds[q, 0], place - 1, 1 + chain]


_ROW_AND_STORE = "int32[:, ::1], int32[:, ::1], int64, int32[:, ::1], int32[:, ::1], int64"


@compiled(
    "UniTuple(int64, 3)(int32[:, ::1], int32[:, ::1], int64, int64, int64, int32[:, ::1], int64, "
    "int64, int32[:, ::1], int64, int64, int64)"
)
def gather_chain(
    text: Cells,
    heads: Heads,
    base: int,
    newest: int,
    behind: int,
    cells: Cells,
    length: int,
    chain: int,
    candidates: Ints,
    count: int,
    rank: int,
    visits: int,
) -> Any:
    """The newest places of one key in one text; returns the new count, next rank, visits left.

    The text's first place is `base`; it goes on at position `newest`, which lies `behind` tokens
    before the row's next one. A shorter key keeps only matches that the longer one cannot have
    found.
    """
    last, key = length - 1, 4 >> chain
    above = MAX_MATCH + 1 if chain == 0 else 2 * key
    slot = key_slot(cells, last, chain, heads.shape[1])
    if slot < 0:
        return count, rank, visits
    earlier, before = int(heads[chain, slot]) - 1, 0
    while visits > 0 and earlier >= 0:
        # Text that was overwritten may link anywhere; what is not older was not linked from here.
        back = age(earlier, newest, len(text))
        if back <= before:
            break
        before = back
        match = match_length(text, earlier, cells, last)
        if match >= key:
            if match < above:
                source = base + earlier + 1
                count = add(
                    text, earlier + 1, cells, length, source, match, rank, behind + back - 1,
                    candidates, count,
                )  # fmt: skip
            rank += 1
        visits -= 1
        earlier = int(text[earlier, 1 + chain]) - 1
    return count, rank, visits


@compiled(f"int64({_ROW_AND_STORE}, int32[:, ::1], int64)")
def gather_by_key(
    cells: Cells,
    heads: Heads,
    length: int,
    shared: Cells,
    shared_heads: Heads,
    end: int,
    candidates: Ints,
    count: int,
) -> Any:
    """The newest places of the last 4, 2 and 1 tokens: the row's, then the store's."""
    for chain in range(3):
        count, rank, visits = gather_chain(
            cells, heads, 0, length, 0, cells, length, chain, candidates, count, 0, PER_KEY
        )
        if end > 0 and visits > 0:
            count, rank, visits = gather_chain(
                shared, shared_heads, SHARED, end, length, cells, length, chain,
                candidates, count, rank, visits,
            )  # fmt: skip
    return count


@compiled("int64(int32[:, ::1], int64, int32[:, ::1], int64, int64, int64, int32[:, ::1], int64)")
def gather_near(
    cells: Cells,
    length: int,
    shared: Cells,
    end: int,
    after: int,
    gap: int,
    candidates: Ints,
    count: int,
) -> Any:
    """Places around a broken copy's end where the last token occurs."""
    last = length - 1
    token = cells[last, 0]
    if token < 0:
        return count
    text, at = text_of(cells, shared, after), position_of(after)
    base = after - at
    start = count
    final = len(shared) - 2 if base > 0 else length - 2
    for earlier in range(max(at - NEAR, 0), min(at + gap + NEAR, final) + 1):
        if text[earlier, 0] != token:
            continue
        match = match_length(text, earlier, cells, last)
        source = base + earlier + 1
        if match == 1 or not listed(candidates, count, source):
            back = distance(length, shared, end, source)
            count = add(
                text, earlier + 1, cells, length, source, match, _NEAR_RANK, back,
                candidates, count,
            )  # fmt: skip
            if count - start >= PER_ANCHOR:
                break
    return count


@compiled("int64(int32[:, ::1], int64, int32[:, ::1], int64, int64, int64, int32[:, ::1], int64)")
def gather_slot(
    cells: Cells,
    length: int,
    shared: Cells,
    end: int,
    source: int,
    rank: int,
    candidates: Ints,
    count: int,
) -> Any:
    """One place, whatever its match, unless it is listed."""
    text, position = text_of(cells, shared, source), position_of(source)
    inside = position < len(shared) if source >= SHARED else 0 <= source < length
    if not inside or listed(candidates, count, source):
        return count
    match = match_length(text, position - 1, cells, length - 1)
    back = distance(length, shared, end, source)
    return add(text, position, cells, length, source, match, rank, back, candidates, count)


@compiled(f"int64({_ROW_AND_STORE}, int64[::1], int32[:, ::1])")
def gather(
    cells: Cells,
    heads: Heads,
    length: int,
    shared: Cells,
    shared_heads: Heads,
    end: int,
    state: Longs,
    candidates: Ints,
) -> Any:
    """List all candidates for the token after the history; returns how many."""
    if length == 0:
        return 0
    count = gather_by_key(cells, heads, length, shared, shared_heads, end, candidates, 0)
    after, gap = state[A_NEXT], state[A_GAP]
    if after < 0:
        return count
    if gap == 0:
        return gather_slot(cells, length, shared, end, after, 0, candidates, count)
    older, older_gap = state[B_NEXT], state[B_GAP]
    if gap <= ANCHOR_MAX_GAP:
        count = gather_near(cells, length, shared, end, after, gap, candidates, count)
    if older >= 0 and older_gap <= ANCHOR_MAX_GAP:
        count = gather_near(cells, length, shared, end, older, older_gap, candidates, count)
    if gap <= ANCHOR_MAX_GAP:
        rank = _NEAR_RANK
        count = gather_slot(cells, length, shared, end, after + gap, rank, candidates, count)
        count = gather_slot(cells, length, shared, end, after, rank, candidates, count)
    return count
