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
from typing import Any, NamedTuple

import numpy as np

from copyahead.kernels.candidates import gather, read_ahead
from copyahead.kernels.compiled import (
    BOOL,
    FLOAT,
    FLOATS,
    FLOATS2,
    FLOATS3,
    INT,
    INTS,
    INTS2,
    INTS3,
    LONGS,
    LONGS2,
    SINGLES3,
    SINGLES4,
    VOID,
    compiled,
    named,
)
from copyahead.kernels.features import (
    A_GAP,
    A_RUN,
    CHAIN_LENGTH,
    CONTEXT,
    ESCAPE,
    ESCAPE_STATE,
    MATCH,
    MAX_CANDIDATES,
    NUM_CANDIDATE_COLUMNS,
    NUM_STATE,
    NUM_TABLES,
    POSITION,
    SCOPE,
    SLOPE,
    SOURCE,
    TENANT,
    Floats,
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
from copyahead.kernels.index import (
    MAX_COPY,
    MAX_MATCH,
    POOL,
    SHARED,
    VIEW,
    Ints,
    Longs,
    Pool,
    View,
    extend_row,
    view_of,
    wide,
)
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


class Requests(NamedTuple):
    """What is kept of the requests, one row each: anchors, money, and the chain of the round."""

    states: Longs
    credits: Floats
    owns: Floats
    chains: Ints
    chances: Floats


class Request(NamedTuple):
    """The same of one request."""

    state: Longs
    credit: float
    own: Floats
    chain: Ints
    chances: Floats


class Tenants(NamedTuple):
    """What is learnt, one row a tenant: the model, and the token statistics."""

    models: Floats
    tables: Tables


class Learned(NamedTuple):
    """The same of one tenant."""

    model: Floats
    tables: Tables


class Scratch(NamedTuple):
    """Room to work in, for the time of a call."""

    candidates: Ints
    ints: Longs
    floats: Floats


class Drafts(NamedTuple):
    """What a call is asked and what it answers.

    rounds[q]: row and limit, read; number of tokens, origin, match length, written; the rest is
    scratch. The drafts stand in `tokens` and `survivals`, end to end.
    """

    rounds: Ints
    tokens: Ints
    survivals: Floats


REQUESTS = named(Requests, LONGS2, FLOATS, FLOATS2, INTS3, FLOATS3)
REQUEST = named(Request, LONGS, FLOAT, FLOATS, INTS2, FLOATS2)
TENANTS = named(Tenants, FLOATS2, SINGLES4)
LEARNED = named(Learned, FLOATS, SINGLES3)
SCRATCH = named(Scratch, INTS2, LONGS2, FLOATS2)
DRAFTS = named(Drafts, INTS2, INTS, FLOATS)

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


def new_scratch() -> Scratch:
    """Room for one call."""
    return Scratch(
        np.zeros((NUM_CANDIDATE_COLUMNS, MAX_CANDIDATES), dtype=np.int32),
        np.zeros((NUM_SCRATCH_INTS, MAX_CANDIDATES), dtype=np.int64),
        np.zeros((NUM_SCRATCH_FLOATS, MAX_CANDIDATES)),
    )


@compiled(INT(VIEW, FLOATS, LONGS, INT, SCRATCH))
def tally(view: View, model: Floats, state: Longs, count: int, scratch: Scratch) -> Any:
    """Sum the candidates' weights by next token; returns the number of different tokens."""
    candidates, ints, floats = scratch.candidates, scratch.ints, scratch.floats
    different = 0
    for c in range(count):
        token = token_at(view, candidates[SOURCE, c])
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


@compiled(FLOAT(FLOATS, LONGS, INTS2, INT, INT))
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


@compiled(FLOAT(LEARNED, INTS, INT, FLOAT))
def probability(learned: Learned, chain: Ints, at: int, log_odds: float) -> Any:
    """Calibrated probability of one scored token."""
    model, tables = learned.model, learned.tables
    logit = model[SLOPE] * log_odds + model[chain[at + CONTEXT_AT]] + model[chain[at + POSITION_AT]]
    for table in range(NUM_TABLES):
        logit += tables[table, chain[at + SLOTS + table], 0]
    return 1.0 / (1.0 + math.exp(-logit))


@compiled(BOOL(VIEW, LEARNED, LONGS, INT, INT, SCRATCH, INTS, FLOATS))
def vote(
    view: View,
    learned: Learned,
    state: Longs,
    count: int,
    position: int,
    scratch: Scratch,
    chain: Ints,
    chances: Floats,
) -> Any:
    """Choose the token `position` places on, the likeliest of those with the top shares.

    Writes the scored tokens to `chain` and `chances`; False where there is no candidate.
    """
    cells, length = view.cells, view.length + position
    candidates, ints, floats = scratch.candidates, scratch.ints, scratch.floats
    different = tally(view, learned.model, state, count, scratch)
    if different == 0:
        return False
    total = escape(learned.model, state, candidates, count, different)
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
        chance = probability(learned, chain, at, log_odds)
        chances[FIRST_PROBABILITY + 2 * scored] = chance
        chances[FIRST_PROBABILITY + 2 * scored + 1] = log_odds
        if chance > best:
            best, chosen = chance, scored
        scored += 1
    chain[NUM_SCORED] = scored
    chain[CHOSEN] = chosen
    return True


@compiled(INT(VIEW, INTS2, INT, INT))
def keep_agreeing(view: View, candidates: Ints, count: int, token: int) -> Any:
    """Keep the candidates whose next token is `token`, each moved on by one."""
    kept = 0
    for c in range(count):
        source = candidates[SOURCE, c]
        text, position = text_of(view.cells, view.shared, source), position_of(source)
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


@compiled(INT(VIEW, INT, REQUEST, LEARNED, FLOATS, INTS, SCRATCH))
def draft_row(
    view: View,
    limit: int,
    request: Request,
    learned: Learned,
    prices: Floats,
    ends: Ints,
    scratch: Scratch,
) -> Any:
    """Fill the chain of one row; returns how many of its tokens to send.

    Drafted tokens are written behind the history for the time of the call, so that a copy can
    go on in them.
    """
    state, chain, chances, length = request.state, request.chain, request.chances, view.length
    candidates, trial = scratch.candidates, scratch.ints[TRIAL]
    for k in range(NUM_STATE):
        trial[k] = state[k]
    proven = state[A_GAP] == 0 and state[A_RUN] >= PROVEN_RUN
    cap = min(limit, int(prices[MAX_DRAFT]), MAX_COPY if proven else UNPROVEN_MAX_DRAFT)
    rate, odds = running_rate(learned.model, request.own, prices), break_odds(learned.model)
    survival, worth, best, count, position = 1.0, 0.0, 0.0, 0, 0
    voters = gather(view, trial, candidates)
    while vote(view, learned, trial, voters, position, scratch, chain[position], chances[position]):
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
        view.cells[length + position - 1, 0] = token
        voters = keep_agreeing(view, candidates, voters, token)
    state[CHAIN_LENGTH] = position
    return affordable(count, request.credit, prices)


@compiled(REQUEST(REQUESTS, INT))
def request_of(requests: Requests, row: int) -> Any:
    """One request's part."""
    return Request(
        requests.states[row],
        requests.credits[row],
        requests.owns[row],
        requests.chains[row],
        requests.chances[row],
    )


@compiled(LEARNED(TENANTS, INT))
def learned_of(tenants: Tenants, tenant: int) -> Any:
    """One tenant's part."""
    return Learned(tenants.models[tenant], tenants.tables[tenant])


@compiled(INT(POOL, REQUESTS, TENANTS, INTS, SCRATCH, DRAFTS, FLOATS))
def propose(
    pool: Pool,
    requests: Requests,
    tenants: Tenants,
    ends: Ints,
    scratch: Scratch,
    drafts: Drafts,
    prices: Floats,
) -> Any:
    """Draft for many rows in one call; returns how many tokens in all."""
    rounds = drafts.rounds
    if len(rounds) > 1:
        read_ahead(pool, rounds)
    total = 0
    for q in range(len(rounds)):
        row = wide(rounds[q, 0])
        request = request_of(requests, row)
        chain, chances = request.chain, request.chances
        count = draft_row(
            view_of(pool, row, request.state[SCOPE]),
            max(wide(rounds[q, 1]), 0),
            request,
            learned_of(tenants, request.state[TENANT]),
            prices,
            ends,
            scratch,
        )
        rounds[q, 2] = count
        for k in range(count):
            at = FIRST_SCORED + SCORED_SIZE * chain[k, CHOSEN]
            drafts.tokens[total + k] = chain[k, at + TOKEN]
            drafts.survivals[total + k] = chances[k, SURVIVAL]
        if count > 0:
            first = FIRST_SCORED + SCORED_SIZE * chain[0, CHOSEN]
            rounds[q, 3] = chain[0, first + FROM]
            rounds[q, 4] = chain[0, first + FROM_MATCH]
        total += count
    return total


@compiled(VOID(INTS, FLOATS, INT, LEARNED))
def learn(chain: Ints, chances: Floats, token: int, learned: Learned) -> None:
    """Move the calibration and the token statistics by what the scored tokens were worth."""
    model, tables = learned.model, learned.tables
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


@compiled(VOID(POOL, INT, INT, INTS, INT, REQUESTS, TENANTS, FLOATS))
def settle(
    pool: Pool,
    row: int,
    vocab_size: int,
    emitted: Ints,
    num_draft_tokens: int,
    requests: Requests,
    tenants: Tenants,
    prices: Floats,
) -> None:
    """Close a round: learn from the chain, move the anchors, charge the credit, extend the row."""
    request = request_of(requests, row)
    state, chains, chances = request.state, request.chain, request.chances
    learned = learned_of(tenants, state[TENANT])
    # Tokens that no round of this session accounts for came one a step.
    unaccounted = max(len(emitted) - 1 - num_draft_tokens, 0)
    cost = prices[1 + num_draft_tokens] + unaccounted
    note_round(learned.model, request.own, len(emitted), cost)
    requests.credits[row] = charge(request.credit, len(emitted), cost, prices)
    foretold = True
    for k in range(len(emitted)):
        foretold = foretold and k < state[CHAIN_LENGTH]
        if foretold:
            chain = chains[k]
            learn(chain, chances[k], emitted[k], learned)
            at = FIRST_SCORED + SCORED_SIZE * chain[CHOSEN]
            foretold = chain[at + TOKEN] == emitted[k]
            if goes_on(state, chain[at + FROM]):
                chance = chances[k, FIRST_PROBABILITY + 2 * chain[CHOSEN]]
                note_copied(learned.model, chance, not foretold)
            if foretold:
                hit(state, chain[at + FROM])
                continue
        miss(state)
    state[CHAIN_LENGTH] = 0
    extend_row(pool, row, vocab_size, emitted)
