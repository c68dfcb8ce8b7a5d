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
from copyahead.kernels.index import Cells, Heads, Ints, key_slot, match_length

PER_KEY = 8
CURSORS = 5
NUM_ROUND_COLUMNS = CURSORS + 3
PER_ANCHOR = 8
_NEAR_RANK = 3
_MAX_ECHO = 16
_ECHO_FROM_MATCH = 32


@compiled("int64(int32[:, ::1], int64, int64)")
def equal_run(cells: Cells, earlier: int, last: int) -> Any:
    """How many tokens are equal going back from both positions, at most 16."""
    run = 0
    while run < _MAX_ECHO and run <= earlier and run <= last:
        token = cells[last - run, 0]
        if token < 0 or cells[earlier - run, 0] != token:
            break
        run += 1
    return run


@compiled("int64(int32[:, ::1], int64, int64, int64)")
def echo(cells: Cells, earlier: int, last: int, match: int) -> Any:
    """How far a match goes on past its first error: a replaced, or else a skipped token."""
    if match >= _ECHO_FROM_MATCH:
        return 0
    earlier -= match
    last -= match
    run = equal_run(cells, earlier - 1, last - 1)
    if run < 8:
        run = max(run, equal_run(cells, earlier - 1, last), equal_run(cells, earlier, last - 1))
    return run


@compiled("boolean(int32[:, ::1], int64, int64)")
def listed(candidates: Ints, count: int, source: int) -> Any:
    """Whether a candidate has this source."""
    for c in range(count):  # noqa: SIM110 - numba has no any()
        if candidates[SOURCE, c] == source:
            return True
    return False


@compiled("int64(int32[:, ::1], int64, int32[:, ::1], int64, int64, int64, int64)")
def add(
    cells: Cells, length: int, candidates: Ints, count: int, source: int, match: int, rank: int
) -> Any:
    """Append a candidate whose next token is a token; returns the new count."""
    if cells[source, 0] < 0:
        return count
    candidates[SOURCE, count] = source
    candidates[MATCH, count] = match
    candidates[RANK, count] = rank_bucket(rank)
    candidates[ECHO, count] = echo_bucket(echo(cells, source - 1, length - 1, match))
    candidates[DISTANCE, count] = distance_bucket(length - source)
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
            slot = key_slot(cells[row], length - 1, chain) if length > 0 else -1
            rounds[q, CURSORS + chain] = heads[row, chain, slot] if slot >= 0 else 0
    for _ in range(PER_KEY):
        for q in range(len(rounds)):
            for chain in range(3):
                place = rounds[q, CURSORS + chain]
                if place > 0:
                    rounds[q, CURSORS + chain] = cells[rounds[q, 0], place - 1, 1 + chain]


@compiled("int64(int32[:, ::1], int32[:, ::1], int64, int32[:, ::1], int64)")
def gather_by_key(cells: Cells, heads: Heads, length: int, candidates: Ints, count: int) -> Any:
    """The newest places of the last 4, 2 and 1 tokens.

    A shorter key keeps only matches that the longer one cannot have found.
    """
    last = length - 1
    for chain in range(3):
        slot = key_slot(cells, last, chain)
        if slot < 0:
            continue
        key = 4 >> chain
        above = 65 if chain == 0 else 2 * key
        rank = 0
        earlier = int(heads[chain, slot]) - 1
        for _ in range(PER_KEY):
            if earlier < 0:
                break
            match = match_length(cells, earlier, last)
            if match >= key:
                if match < above:
                    count = add(cells, length, candidates, count, earlier + 1, match, rank)
                rank += 1
            earlier = int(cells[earlier, 1 + chain]) - 1
    return count


@compiled("int64(int32[:, ::1], int64, int64, int64, int32[:, ::1], int64)")
def gather_near(
    cells: Cells, length: int, after: int, gap: int, candidates: Ints, count: int
) -> Any:
    """Places around a broken copy's end where the last token occurs."""
    last = length - 1
    token = cells[last, 0]
    if token < 0:
        return count
    start = count
    for earlier in range(max(after - NEAR, 0), min(after + gap + NEAR, length - 2) + 1):
        if cells[earlier, 0] != token:
            continue
        match = match_length(cells, earlier, last)
        if match == 1 or not listed(candidates, count, earlier + 1):
            count = add(cells, length, candidates, count, earlier + 1, match, _NEAR_RANK)
            if count - start >= PER_ANCHOR:
                break
    return count


@compiled("int64(int32[:, ::1], int64, int64, int32[:, ::1], int64, int64)")
def gather_slot(
    cells: Cells, length: int, source: int, candidates: Ints, count: int, rank: int
) -> Any:
    """One place, whatever its match, unless it is listed."""
    if source < 0 or source >= length or listed(candidates, count, source):
        return count
    match = match_length(cells, source - 1, length - 1)
    return add(cells, length, candidates, count, source, match, rank)


@compiled("int64(int32[:, ::1], int32[:, ::1], int64, int64[::1], int32[:, ::1])")
def gather(cells: Cells, heads: Heads, length: int, state: Longs, candidates: Ints) -> Any:
    """List all candidates for the token after the history; returns how many."""
    if length == 0:
        return 0
    count = gather_by_key(cells, heads, length, candidates, 0)
    after, gap = state[A_NEXT], state[A_GAP]
    if after < 0:
        return count
    if gap == 0:
        return gather_slot(cells, length, after, candidates, count, 0)
    if gap <= ANCHOR_MAX_GAP:
        count = gather_near(cells, length, after, gap, candidates, count)
    if state[B_NEXT] >= 0 and state[B_GAP] <= ANCHOR_MAX_GAP:
        count = gather_near(cells, length, state[B_NEXT], state[B_GAP], candidates, count)
    if gap <= ANCHOR_MAX_GAP:
        count = gather_slot(cells, length, after + gap, candidates, count, _NEAR_RANK)
        count = gather_slot(cells, length, after, candidates, count, _NEAR_RANK)
    return count
