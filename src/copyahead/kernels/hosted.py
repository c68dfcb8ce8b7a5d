"""A whole step for the rows of a host that owns the loop, in one call.

The host keeps its requests' tokens in rows of its own, and moves them as it likes. `step` looks
whether each of its rows still holds what a row of the pool remembers, settles what came to it,
drafts for all of them, and keeps no drafted token that the host's own row does not explain.

What a row holds is not compared whole: that would be reading 80 long texts a step. Compared are
its length, its end, its beginning, a few places that are others at each step, what was kept of its
draft, and its *marks*: places where it differs from other rows that began alike. A draft is then
compared with the host's row token by token, so whatever those let through is no draft.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from copyahead.kernels.candidates import (
    HAS_SHARED,
    LIMIT,
    NUM_TOKENS,
    ORIGIN,
    ROW,
)
from copyahead.kernels.compiled import (
    BOOL,
    FLOATS,
    INT,
    INTS,
    INTS2,
    LONGS2,
    VOID,
    compiled,
    named,
)
from copyahead.kernels.features import Floats
from copyahead.kernels.index import BARRIER, MAX_COPY, POOL, Ints, Longs, Pool, wide
from copyahead.kernels.priced import (
    DRAFTS,
    REQUESTS,
    TENANTS,
    Drafts,
    Requests,
    Tenants,
    propose,
    settle,
)
from copyahead.kernels.voting import FROM, SCRATCH, TOKEN, Scratch, chosen_at

FINE, UNKNOWN = 0, 1
"""What a row of the host is: the text of a row of the pool, or to be looked for."""

TAIL, HEAD, PROBES = 16, 8, 2
"""Tokens compared at the end and the beginning, and places in between, others each step."""
NUM_MARKS = 4
"""Marks that are kept of a row."""
PROMPT, OUTPUT, FROM_STORE, FROM_MODEL = 0, 1, 2, 3
NUM_SOURCES = 4
DRAFTED, ACCEPTED = 0, 1
BUCKETS = 256
"""Rows are shared out by survival in so many classes."""


class Host(NamedTuple):
    """The rows of the host, as many as `counts` has."""

    tokens: Ints
    """Their tokens; shape `[rows, longest]`."""
    lengths: Ints
    """How many of them there are."""
    counts: Ints
    """How many of these are new; 0: the host is still reading the prompt."""
    rows: Ints
    """The row of the pool; -1 where none is known."""
    status: Ints
    drafted: Ints
    """The length of the draft that was made."""


class Rounds(NamedTuple):
    """What is remembered of each row of the pool from one step to the next."""

    drafted: Ints
    """Tokens of its last draft."""
    drafts: Ints
    """Those tokens; shape `[rows, MAX_COPY]`."""
    sources: Ints
    prompts: Ints
    """Where what the request has written begins."""
    marks: Ints
    """Places to compare; -1 where there is none."""
    worths: Floats
    """Tokens of its draft that are expected to be kept."""
    counters: Longs
    """By source: tokens drafted and accepted."""
    flat: Ints
    """The drafts of the last step, end to end."""


class Sizes(NamedTuple):
    """What limits drafts in one step."""

    vocab_size: int
    max_tokens: int
    """Longest draft."""
    max_length: int
    """Tokens that a row of the host may hold."""
    budget: int
    """Tokens of all drafts together."""
    step: int
    uniform: int
    """Not 0: all rows draft so many tokens, or none drafts any."""


HOST = named(Host, INTS2, INTS, INTS, INTS, INTS, INTS)
ROUNDS = named(Rounds, INTS, INTS2, INTS, INTS, INTS2, FLOATS, LONGS2, INTS)
SIZES = named(Sizes, INT, INT, INT, INT, INT, INT)


def new_rounds(rows: int) -> Rounds:
    """Room for as many rows of the pool."""
    return Rounds(
        np.zeros(rows, dtype=np.int32),
        np.zeros((rows, MAX_COPY), dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
        np.zeros(rows, dtype=np.int32),
        np.full((rows, NUM_MARKS), -1, dtype=np.int32),
        np.zeros(rows),
        np.zeros((NUM_SOURCES, 2), dtype=np.int64),
        np.zeros(rows * MAX_COPY, dtype=np.int32),
    )


@compiled(BOOL(INTS2, INTS, INT, INT, INT))
def same(cells: Ints, tokens: Ints, start: int, end: int, vocab_size: int) -> Any:
    """Whether the tokens from `start` to `end` are equal."""
    for k in range(max(start, 0), end):
        token = tokens[k]
        if cells[k, 0] != (token if 0 <= token < vocab_size else BARRIER):
            return False
    return True


@compiled(BOOL(POOL, INT, HOST, INT, ROUNDS, SIZES))
def continues(pool: Pool, row: int, host: Host, i: int, rounds: Rounds, sizes: Sizes) -> Any:
    """Whether the host's row `i` seems to hold the text of `row`, and what is new."""
    held, count = wide(pool.lengths[row]), wide(host.counts[i])
    if wide(host.lengths[i]) - count != held or count > rounds.drafted[row] + 1:
        return False
    cells, tokens, size = pool.cells[row], host.tokens[i], sizes.vocab_size
    for k in range(count - 1):
        if tokens[held + k] != rounds.drafts[row, k]:
            return False
    if not same(cells, tokens, held - TAIL, held, size):
        return False
    if not same(cells, tokens, 0, min(HEAD, held), size):
        return False
    for m in range(NUM_MARKS):
        mark = wide(rounds.marks[row, m])
        if 0 <= mark < held and not same(cells, tokens, mark, mark + 1, size):
            return False
    if held > HEAD + TAIL:
        for k in range(PROBES):
            place = ((sizes.step * PROBES + k) * 2654435761 + row * 97) % held
            if not same(cells, tokens, place, place + 1, size):
                return False
    return True


@compiled(INT(POOL, REQUESTS, TENANTS, FLOATS, HOST, ROUNDS, SIZES))
def catch_up(
    pool: Pool,
    requests: Requests,
    tenants: Tenants,
    prices: Floats,
    host: Host,
    rounds: Rounds,
    sizes: Sizes,
) -> Any:
    """Settle the rows that hold what is remembered; returns how many others there are.

    `prices` are those that the drafts were made at.
    """
    unknown = 0
    for i in range(len(host.counts)):
        row, count = wide(host.rows[i]), wide(host.counts[i])
        if row < 0 or not continues(pool, row, host, i, rounds, sizes):
            host.status[i] = UNKNOWN
            unknown += 1
            continue
        host.status[i] = FINE
        if count > 0:
            held = wide(pool.lengths[row])
            drafted = wide(rounds.drafted[row])
            emitted = host.tokens[i, held : held + count]
            rounds.counters[rounds.sources[row], ACCEPTED] += min(count - 1, drafted)
            if rounds.sources[row] == FROM_MODEL:
                # No copy was tried.
                drafted = 0
            settle(pool, row, sizes.vocab_size, emitted, drafted, 0.0, requests, tenants, prices)
            rounds.drafted[row] = 0
    return unknown


@compiled(INT(POOL, HOST, ROUNDS, SIZES))
def recognise(pool: Pool, host: Host, rounds: Rounds, sizes: Sizes) -> Any:
    """Look at every row without settling it; returns how many are unknown."""
    unknown = 0
    for i in range(len(host.counts)):
        row = wide(host.rows[i])
        host.status[i] = FINE
        if row < 0 or not continues(pool, row, host, i, rounds, sizes):
            host.status[i] = UNKNOWN
            unknown += 1
    return unknown


@compiled(BOOL(POOL, INT, REQUESTS, INT, INTS))
def explained(pool: Pool, row: int, requests: Requests, count: int, tokens: Ints) -> Any:
    """Whether each drafted token stands in the host's row at the place it was copied from."""
    length = wide(pool.lengths[row])
    path = requests.paths[row]
    for k in range(count):
        at = chosen_at(path[k])
        source = wide(path[k, at + FROM])
        if source >= length:
            # In the draft itself, or in the store.
            continue
        if tokens[source] != path[k, at + TOKEN]:
            return False
    return True


@compiled(VOID(INTS2, FLOATS, INT, INT, INT, FLOATS, FLOATS))
def share_out(
    rounds: Ints,
    survivals: Floats,
    num_rounds: int,
    base_rows: int,
    budget: int,
    curve: Floats,
    scratch: Floats,
) -> None:
    """Cut the drafts of a step to what is worth its rows, the highest survival first.

    `curve` is T. `scratch` has a count and a sum for each class of survival. As survivals fall
    along a draft, those above any bound are its first ones.
    """
    for k in range(2 * BUCKETS):
        scratch[k] = 0.0
    total = 0
    for q in range(num_rounds):
        for k in range(rounds[q, NUM_TOKENS]):
            bucket = min(int(survivals[total + k] * BUCKETS), BUCKETS - 1)
            scratch[bucket] += 1.0
            scratch[BUCKETS + bucket] += survivals[total + k]
        total += rounds[q, NUM_TOKENS]
    rows, expected = base_rows, float(num_rounds)
    best, bound = expected / curve[min(rows, len(curve) - 1)], BUCKETS
    for back in range(BUCKETS):
        bucket = BUCKETS - 1 - back
        rows += int(scratch[bucket])
        expected += scratch[BUCKETS + bucket]
        if rows - base_rows > budget:
            break
        rate = expected / curve[min(rows, len(curve) - 1)]
        if scratch[bucket] > 0.0 and rate > best:
            best, bound = rate, bucket
    start = 0
    for q in range(num_rounds):
        count = rounds[q, NUM_TOKENS]
        kept = 0
        while kept < count and min(int(survivals[start + kept] * BUCKETS), BUCKETS - 1) >= bound:
            kept += 1
        rounds[q, LIMIT] = kept
        start += count


@compiled(INT(INTS2, FLOATS, INT, INT, FLOATS, SIZES))
def all_or_none(
    rounds: Ints, survivals: Floats, num_rounds: int, base_rows: int, curve: Floats, sizes: Sizes
) -> Any:
    """The length that all drafts of a step shall have, or 0 and no drafts at all.

    `sizes.uniform`, if that many rows more for everybody are worth what they cost.
    """
    expected, start, room = float(num_rounds), 0, num_rounds == len(rounds) == base_rows
    for q in range(num_rounds):
        for k in range(min(wide(rounds[q, NUM_TOKENS]), sizes.uniform)):
            expected += survivals[start + k]
        start += rounds[q, NUM_TOKENS]
        rounds[q, LIMIT] = min(wide(rounds[q, NUM_TOKENS]), sizes.uniform)
    last = len(curve) - 1
    before = num_rounds / curve[min(base_rows, last)]
    if room and expected / curve[min(base_rows + num_rounds * sizes.uniform, last)] > before:
        return sizes.uniform
    for q in range(num_rounds):
        rounds[q, LIMIT] = 0
    return 0


@compiled(INT(POOL, REQUESTS, TENANTS, INTS, SCRATCH, DRAFTS, FLOATS, FLOATS, HOST, ROUNDS, SIZES))
def draft(
    pool: Pool,
    requests: Requests,
    tenants: Tenants,
    ends: Ints,
    scratch: Scratch,
    drafts: Drafts,
    prices: Floats,
    curve: Floats,
    host: Host,
    rounds: Rounds,
    sizes: Sizes,
) -> Any:
    """Draft for all rows that have written something; returns how many do.

    `rounds.drafted` and `rounds.drafts` have the result. `curve`: T of the host's whole pass, and
    behind it room to work in.
    """
    num_asked = 0
    base_rows = 0
    for i in range(len(host.counts)):
        row = wide(host.rows[i])
        host.drafted[i] = 0
        if row >= 0:
            rounds.drafted[row] = 0
        limit = min(sizes.max_tokens, sizes.max_length - wide(host.lengths[i]) - 1)
        if row < 0 or host.counts[i] == 0:
            continue
        base_rows += 1
        if limit > 0 and limit >= sizes.uniform:
            drafts.rounds[num_asked, ROW] = row
            drafts.rounds[num_asked, LIMIT] = limit
            # Which row of the host it is; `propose` writes over it.
            host.status[num_asked] = i
            num_asked += 1
    asked = Drafts(drafts.rounds[:num_asked], drafts.tokens, drafts.survivals)
    if num_asked == 0:
        return 0
    propose(pool, requests, tenants, ends, scratch, asked, prices)
    limits = curve[: len(curve) - 2 * BUCKETS]
    if num_asked > 1 or sizes.budget < MAX_COPY:
        room = curve[len(curve) - 2 * BUCKETS :]
        share_out(asked.rounds, asked.survivals, num_asked, base_rows, sizes.budget, limits, room)
    else:
        asked.rounds[0, LIMIT] = asked.rounds[0, NUM_TOKENS]
    padded = 0
    if sizes.uniform > 0:
        padded = all_or_none(asked.rounds, asked.survivals, num_asked, base_rows, limits, sizes)
    start, end = 0, 0
    for q in range(num_asked):
        row, i = wide(asked.rounds[q, ROW]), wide(host.status[q])
        count = wide(asked.rounds[q, LIMIT])
        if count + padded > 0 and explained(pool, row, requests, count, host.tokens[i]):
            rounds.worths[row] = 0.0
            for k in range(count):
                rounds.drafts[row, k] = asked.tokens[start + k]
                rounds.worths[row] += asked.survivals[start + k]
            for k in range(count, padded):
                # Any token will do, and this one is the request's own.
                rounds.drafts[row, k] = host.tokens[i, wide(host.lengths[i]) - 1]
            count = max(count, padded)
            rounds.drafted[row] = count
            host.drafted[i] = count
            for k in range(count):
                rounds.flat[end + k] = rounds.drafts[row, k]
            end += count
            origin = wide(asked.rounds[q, ORIGIN])
            source = PROMPT if origin < rounds.prompts[row] else OUTPUT
            if asked.rounds[q, HAS_SHARED]:
                source = FROM_STORE
            rounds.sources[row] = source
            rounds.counters[source, DRAFTED] += count
        elif count > 0:
            # Some other text: it is looked for in the next step.
            host.rows[i] = -1
        start += wide(asked.rounds[q, NUM_TOKENS])
    return num_asked


@compiled(
    INT(POOL, REQUESTS, TENANTS, INTS, SCRATCH, DRAFTS, FLOATS, FLOATS, FLOATS, HOST, ROUNDS, SIZES)
)
def step(
    pool: Pool,
    requests: Requests,
    tenants: Tenants,
    ends: Ints,
    scratch: Scratch,
    drafts: Drafts,
    prices_before: Floats,
    prices: Floats,
    curve: Floats,
    host: Host,
    rounds: Rounds,
    sizes: Sizes,
) -> Any:
    """Settle all rows; where none is unknown, draft for them. Returns how many are unknown."""
    unknown = catch_up(pool, requests, tenants, prices_before, host, rounds, sizes)
    if unknown == 0:
        draft(pool, requests, tenants, ends, scratch, drafts, prices, curve, host, rounds, sizes)
    return unknown


@compiled(VOID(POOL, INTS, INT, INTS, INTS))
def prefixes(pool: Pool, rows: Ints, vocab_size: int, tokens: Ints, found: Ints) -> None:
    """How many tokens at the start of `tokens` each of `rows` holds as well."""
    for r in range(len(rows)):
        row = wide(rows[r])
        cells = pool.cells[row]
        limit = min(wide(pool.lengths[row]), len(tokens))
        k = 0
        while k < limit and same(cells, tokens, k, k + 1, vocab_size):
            k += 1
        found[r] = k
