"""`priced`: the next token by a weighted vote, the length by what it is worth.

One round, for one row: `draft_row` gathers candidates, lets them vote on the next token, follows
those that agree, and so on; each token has a calibrated probability, and the number of tokens
sent is the one that maximises expected tokens against their price. What was computed stays in
the row's *chain*, one token longer than what is sent, so that `settle` can score what would have
been drafted even in a round that drafted nothing.

docs/policies.md has the method, the meaning of every table, and the proof of the credit bound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from copyahead.kernels.candidates import gather, read_ahead
from copyahead.kernels.compiled import compiled
from copyahead.kernels.features import (
    A_GAP,
    A_RUN,
    CHAIN_LENGTH,
    CONTEXT,
    ESCAPE,
    ESCAPE_STATE,
    MATCH,
    NUM_CANDIDATE_COLUMNS,
    NUM_STATE,
    NUM_TABLES,
    POSITION,
    SCOPE,
    SLOPE,
    SOURCE,
    TENANT,
    Floats,
    Longs,
    Tables,
    copy_state,
    escape_state,
    goes_on,
    hit,
    match_bucket,
    match_group,
    miss,
    mixed,
    position_bucket,
    slot_of,
    weight,
)
from copyahead.kernels.index import MAX_COPY, MAX_MATCH, SHARED, Cells, Heads, Ints, extend_row
from copyahead.kernels.places import position_of, text_of, token_at
from copyahead.kernels.pricing import (
    CAUTION,
    CHEAPEST,
    MAX_DRAFT,
    affordable,
    break_odds,
    charge,
    note_copied,
    note_round,
    running_rate,
)

# One chain position: how many alternatives were scored, which was chosen, and each of them.
NUM_SCORED, CHOSEN, FIRST_SCORED = 0, 1, 2
TOKEN, FROM, FROM_MATCH, CONTEXT_AT, POSITION_AT, SLOTS = 0, 1, 2, 3, 4, 5
SCORED_SIZE = SLOTS + NUM_TABLES
MAX_SCORED = 4
CHAIN_INTS = FIRST_SCORED + MAX_SCORED * SCORED_SIZE
# Its floats: survival, then probability and log odds of the share of each alternative.
SURVIVAL, FIRST_PROBABILITY = 0, 1
CHAIN_FLOATS = FIRST_PROBABILITY + 2 * MAX_SCORED
CHAIN_POSITIONS = MAX_COPY + 1

# Scratch, one row each.
TALLY_TOKEN, TALLY_HEAVIEST, TRIAL = 0, 1, 2
NUM_SCRATCH_INTS = 3
TALLY_VOTES, TALLY_WEIGHT = 0, 1
NUM_SCRATCH_FLOATS = 2

_ONE, _LAST, _PAIR, _REGION = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)

UNPROVEN_MAX_DRAFT = 32
PROVEN_RUN = 16
SELF_EXTENSION_MATCH = 32
MIN_OTHER_SHARE = 0.02
MIN_SHARE = 1e-4
SLOPE_RATE = 0.0005
CONTEXT_RATE = 0.02
POSITION_RATE = 0.01
TABLE_RATE = 1.5
TABLE_RATE_OFFSET = 3.0
TABLE_RATE_FLOOR = 0.03
TABLE_MAX_COUNT = 60.0

_VOTERS = "int32[:, ::1], int32[:, ::1], float64[::1], int64[::1], int32[:, ::1], int64"
_SCRATCH = "int64[:, ::1], float64[:, ::1]"


@compiled(f"int64({_VOTERS}, {_SCRATCH})")
def tally(
    cells: Cells,
    shared: Cells,
    model: Floats,
    state: Longs,
    candidates: Ints,
    count: int,
    ints: Longs,
    floats: Floats,
) -> Any:
    """Sum the candidates' weights by next token; returns the number of different tokens."""
    different = 0
    for c in range(count):
        token = token_at(cells, shared, candidates[SOURCE, c])
        votes = weight(model, state, candidates, c)
        t = 0
        while t < different and ints[TALLY_TOKEN, t] != token:
            t += 1
        if t == different:
            different += 1
            ints[TALLY_TOKEN, t] = token
            floats[TALLY_VOTES, t] = 0.0
            floats[TALLY_WEIGHT, t] = -1.0
        floats[TALLY_VOTES, t] += votes
        if votes > floats[TALLY_WEIGHT, t]:
            floats[TALLY_WEIGHT, t] = votes
            ints[TALLY_HEAVIEST, t] = c
    return different


@compiled("float64(float64[::1], int64[::1], int32[:, ::1], int64, int64)")
def escape(model: Floats, state: Longs, candidates: Ints, count: int, different: int) -> Any:
    """The weight of "none of them"."""
    longest = 0
    for c in range(count):
        longest = max(longest, int(candidates[MATCH, c]))
    row = ESCAPE + 5 * match_bucket(longest)
    return model[row + min(different, 5) - 1] * model[ESCAPE_STATE + escape_state(state)]


@compiled("void(int32[::1], int64, int64, int64, uint64, uint64)")
def find_slots(chain: Ints, at: int, token: int, source: int, last: Any, pair: Any) -> None:
    """Slots of the six token statistics for `token`, after the keys of the last and last two."""
    chain[at] = slot_of(mixed(_ONE, token))
    chain[at + 1] = slot_of(last)
    chain[at + 2] = slot_of(mixed(last, token))
    chain[at + 3] = slot_of(pair)
    chain[at + 4] = slot_of(mixed(_REGION, source >> 5))
    chain[at + 5] = slot_of(mixed(pair, token))


@compiled("float64(float64[::1], float32[:, :, ::1], int32[::1], int64, float64)")
def probability(model: Floats, tables: Tables, chain: Ints, at: int, log_odds: float) -> Any:
    """Calibrated probability of one scored token."""
    logit = model[SLOPE] * log_odds + model[chain[at + CONTEXT_AT]] + model[chain[at + POSITION_AT]]
    for table in range(NUM_TABLES):
        logit += tables[table, chain[at + SLOTS + table], 0]
    return 1.0 / (1.0 + math.exp(-logit))


@compiled(
    f"boolean({_VOTERS}, int64, int64, float32[:, :, ::1], {_SCRATCH}, int32[::1], float64[::1])"
)
def vote(
    cells: Cells,
    shared: Cells,
    model: Floats,
    state: Longs,
    candidates: Ints,
    count: int,
    length: int,
    position: int,
    tables: Tables,
    ints: Longs,
    floats: Floats,
    chain: Ints,
    chances: Floats,
) -> Any:
    """Choose the token at `length`, the one with the largest probability among the top shares.

    Writes the scored tokens to `chain` and `chances`; False where there is no candidate.
    """
    different = tally(cells, shared, model, state, candidates, count, ints, floats)
    if different == 0:
        return False
    total = escape(model, state, candidates, count, different)
    for t in range(different):
        total += floats[TALLY_VOTES, t]
    last = mixed(_LAST, cells[length - 1, 0])
    pair = mixed(mixed(_PAIR, cells[length - 2, 0] if length >= 2 else -1), cells[length - 1, 0])
    copying = copy_state(state)
    scored, chosen, best = 0, 0, -1.0
    while scored < min(different, MAX_SCORED):
        top = 0
        for t in range(1, different):
            if floats[TALLY_VOTES, t] > floats[TALLY_VOTES, top]:
                top = t
        share = floats[TALLY_VOTES, top] / total
        if scored > 0 and share < MIN_OTHER_SHARE:
            break
        floats[TALLY_VOTES, top] = -1.0
        share = min(max(share, MIN_SHARE), 1.0 - MIN_SHARE)
        log_odds = math.log(share / (1.0 - share))
        at = FIRST_SCORED + SCORED_SIZE * scored
        heaviest = ints[TALLY_HEAVIEST, top]
        token, source = ints[TALLY_TOKEN, top], candidates[SOURCE, heaviest]
        match = candidates[MATCH, heaviest]
        chain[at + TOKEN] = token
        chain[at + FROM] = source
        chain[at + FROM_MATCH] = match
        context = CONTEXT + 8 * match_bucket(match) + copying
        chain[at + CONTEXT_AT] = context + (13 * 8 if scored > 0 else 0)
        chain[at + POSITION_AT] = POSITION + 11 * match_group(match) + position_bucket(position)
        find_slots(chain, at + SLOTS, token, source, last, pair)
        chance = probability(model, tables, chain, at, log_odds)
        chances[FIRST_PROBABILITY + 2 * scored] = chance
        chances[FIRST_PROBABILITY + 2 * scored + 1] = log_odds
        if chance > best:
            best, chosen = chance, scored
        scored += 1
    chain[NUM_SCORED] = scored
    chain[CHOSEN] = chosen
    return True


@compiled("int64(int32[:, ::1], int32[:, ::1], int32[:, ::1], int64, int64)")
def keep_agreeing(cells: Cells, shared: Cells, candidates: Ints, count: int, token: int) -> Any:
    """Keep the candidates whose next token is `token`, each moved on by one."""
    kept = 0
    for c in range(count):
        source = candidates[SOURCE, c]
        text, position = text_of(cells, shared, source), position_of(source)
        if text[position, 0] != token or text[position + 1, 0] < 0:
            continue
        for column in range(NUM_CANDIDATE_COLUMNS):
            candidates[column, kept] = candidates[column, c]
        candidates[SOURCE, kept] = source + 1
        candidates[MATCH, kept] = min(candidates[MATCH, c] + 1, MAX_MATCH)
        kept += 1
    return kept


@compiled("boolean(int32[::1], int64)")
def holds(tokens: Ints, token: int) -> Any:
    """Whether `token` is one of `tokens`."""
    for k in range(len(tokens)):  # noqa: SIM110 - numba has no any()
        if tokens[k] == token:
            return True
    return False


@compiled(
    "int64(int32[:, ::1], int32[:, ::1], int64, int32[:, ::1], int32[:, ::1], int64, "
    "int64, int64[::1], float64, float64[::1], "
    "int32[:, ::1], float64[:, ::1], float64[::1], float32[:, :, ::1], float64[::1], int32[::1], "
    f"int32[:, ::1], {_SCRATCH})"
)
def draft_row(
    cells: Cells,
    heads: Heads,
    length: int,
    shared: Cells,
    shared_heads: Heads,
    end: int,
    limit: int,
    state: Longs,
    credit: float,
    own: Floats,
    chain: Ints,
    chances: Floats,
    model: Floats,
    tables: Tables,
    prices: Floats,
    ends: Ints,
    candidates: Ints,
    ints: Longs,
    floats: Floats,
) -> Any:
    """Fill the chain of one row; returns how many of its tokens to send.

    Drafted tokens are written behind the history for the time of the call, so that a copy can
    go on in them.
    """
    trial = ints[TRIAL]
    for k in range(NUM_STATE):
        trial[k] = state[k]
    proven = state[A_GAP] == 0 and state[A_RUN] >= PROVEN_RUN
    cap = min(limit, int(prices[MAX_DRAFT]), MAX_COPY if proven else UNPROVEN_MAX_DRAFT)
    rate, odds = running_rate(model, own, prices), break_odds(model)
    survival, worth, best, count, position = 1.0, 0.0, 0.0, 0, 0
    voters = gather(cells, heads, length, shared, shared_heads, end, trial, candidates)
    while vote(
        cells,
        shared,
        model,
        trial,
        candidates,
        voters,
        length + position,
        position,
        tables,
        ints,
        floats,
        chain[position],
        chances[position],
    ):
        at = FIRST_SCORED + SCORED_SIZE * chain[position, CHOSEN]
        token, source = chain[position, at + TOKEN], chain[position, at + FROM]
        if length <= source < SHARED and chain[position, at + FROM_MATCH] < SELF_EXTENSION_MATCH:
            break
        chance = chances[position, FIRST_PROBABILITY + 2 * chain[position, CHOSEN]]
        if goes_on(trial, source):
            chance /= chance + odds * (1.0 - chance)
        survival *= chance
        chances[position, SURVIVAL] = survival
        position += 1
        if position > cap:
            break
        # What one token more a step is worth here; dearer where the copy may have broken.
        asked = rate * (1.0 + prices[CAUTION] * (1.0 - survival))
        worth += survival - asked * (prices[1 + position] - prices[position])
        if worth > best:
            best, count = worth, position
        if survival < asked * prices[CHEAPEST + position - 1] or holds(ends, token):
            break
        hit(trial, source)
        cells[length + position - 1, 0] = token
        voters = keep_agreeing(cells, shared, candidates, voters, token)
    state[CHAIN_LENGTH] = position
    return affordable(count, credit, prices)


@compiled(
    "int64(int32[:, :, ::1], int32[:, :, ::1], int32[::1], "
    "int32[:, :, ::1], int32[:, :, ::1], int64[::1], int64[:, ::1], float64[::1], "
    "float64[:, ::1], int32[:, :, ::1], float64[:, :, ::1], float64[:, ::1], "
    "float32[:, :, :, ::1], int32[::1], int32[:, ::1], int64[:, ::1], float64[:, ::1], "
    "int32[::1], float64[::1], float64[::1], int32[:, ::1])"
)
def propose(
    cells: Cells,
    heads: Heads,
    lengths: Ints,
    shared: Cells,
    shared_heads: Heads,
    shared_ends: Longs,
    states: Longs,
    credits_: Floats,
    owns: Floats,
    chains: Ints,
    chances: Floats,
    models: Floats,
    tables: Tables,
    ends: Ints,
    candidates: Ints,
    ints: Longs,
    floats: Floats,
    tokens: Ints,
    survivals: Floats,
    prices: Floats,
    rounds: Ints,
) -> Any:
    """Draft for many rows in one call; returns how many tokens in all.

    rounds[q]: row and limit, read; number of tokens, origin, match length, written; the rest is
    scratch. The drafts go to `tokens` and `survivals`, end to end.
    """
    if len(rounds) > 1:
        read_ahead(cells, heads, lengths, rounds)
    total = 0
    for q in range(len(rounds)):
        row = rounds[q, 0]
        tenant, scope = states[row, TENANT], states[row, SCOPE]
        count = draft_row(
            cells[row],
            heads[row],
            int(lengths[row]),
            shared[scope],
            shared_heads[scope],
            shared_ends[scope],
            max(int(rounds[q, 1]), 0),
            states[row],
            credits_[row],
            owns[row],
            chains[row],
            chances[row],
            models[tenant],
            tables[tenant],
            prices,
            ends,
            candidates,
            ints,
            floats,
        )
        rounds[q, 2] = count
        for k in range(count):
            at = FIRST_SCORED + SCORED_SIZE * chains[row, k, CHOSEN]
            tokens[total + k] = chains[row, k, at + TOKEN]
            survivals[total + k] = chances[row, k, SURVIVAL]
        if count > 0:
            first = FIRST_SCORED + SCORED_SIZE * chains[row, 0, CHOSEN]
            rounds[q, 3] = chains[row, 0, first + FROM]
            rounds[q, 4] = chains[row, 0, first + FROM_MATCH]
        total += count
    return total


@compiled("void(int32[::1], float64[::1], int64, float64[::1], float32[:, :, ::1])")
def learn(chain: Ints, chances: Floats, token: int, model: Floats, tables: Tables) -> None:
    """Move the calibration and the token statistics by what the scored tokens were worth."""
    for scored in range(chain[NUM_SCORED]):
        at = FIRST_SCORED + SCORED_SIZE * scored
        outcome = 1.0 if chain[at + TOKEN] == token else 0.0
        error = outcome - chances[FIRST_PROBABILITY + 2 * scored]
        model[chain[at + CONTEXT_AT]] += CONTEXT_RATE * error
        model[chain[at + POSITION_AT]] += POSITION_RATE * error
        if scored == chain[CHOSEN]:
            model[SLOPE] += SLOPE_RATE * error * chances[FIRST_PROBABILITY + 2 * scored + 1]
        for table in range(NUM_TABLES):
            slot = chain[at + SLOTS + table]
            seen = min(tables[table, slot, 1] + 1.0, TABLE_MAX_COUNT)
            tables[table, slot, 1] = seen
            step = TABLE_RATE / (seen + TABLE_RATE_OFFSET) + TABLE_RATE_FLOOR
            tables[table, slot, 0] += error * step


@compiled(
    "void(int32[:, :, ::1], int32[:, :, ::1], int32[::1], int64, int64, int32[::1], int64, "
    "int64[:, ::1], float64[::1], float64[:, ::1], int32[:, :, ::1], float64[:, :, ::1], "
    "float64[:, ::1], float32[:, :, :, ::1], float64[::1])"
)
def settle(
    cells: Cells,
    heads: Heads,
    lengths: Ints,
    row: int,
    vocab_size: int,
    emitted: Ints,
    num_draft_tokens: int,
    states: Longs,
    credits_: Floats,
    owns: Floats,
    chains: Ints,
    chances: Floats,
    models: Floats,
    tables: Tables,
    prices: Floats,
) -> None:
    """Close a round: learn from the chain, move the anchors, charge the credit, extend the row."""
    state = states[row]
    tenant = state[TENANT]
    model = models[tenant]
    # Tokens that no round of this session accounts for came one a step.
    unaccounted = max(len(emitted) - 1 - num_draft_tokens, 0)
    cost = prices[1 + num_draft_tokens] + unaccounted
    note_round(model, owns[row], len(emitted), cost)
    credits_[row] = charge(credits_[row], len(emitted), cost, prices)
    foretold = True
    for k in range(len(emitted)):
        foretold = foretold and k < state[CHAIN_LENGTH]
        if foretold:
            chain = chains[row, k]
            learn(chain, chances[row, k], emitted[k], model, tables[tenant])
            at = FIRST_SCORED + SCORED_SIZE * chain[CHOSEN]
            foretold = chain[at + TOKEN] == emitted[k]
            if goes_on(state, chain[at + FROM]):
                chance = chances[row, k, FIRST_PROBABILITY + 2 * chain[CHOSEN]]
                note_copied(model, chance, not foretold)
            if foretold:
                hit(state, chain[at + FROM])
                continue
        miss(state)
    state[CHAIN_LENGTH] = 0
    extend_row(cells, heads, lengths, row, vocab_size, emitted)
