"""`priced`: the next token by a weighted vote, the length by what it is worth.

One round, for one row: `draft_row` gathers candidates, lets them vote on the next token, follows
those that agree, and so on; each token has a calibrated probability, and the number of tokens
sent is the one that maximises expected tokens against their price. What was computed stays in
the row's *path*, one token longer than what is sent, so that `settle` can score what would have
been drafted even in a round that drafted nothing.

docs/policies.md has the method, the meaning of every table, and the proof of the credit bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from copyahead.kernels.candidates import (
    HAS_SHARED,
    LIMIT,
    MATCH_LENGTH,
    NUM_ROUND_COLUMNS,
    NUM_TOKENS,
    ORIGIN,
    ROW,
    gather,
    read_ahead,
)
from copyahead.kernels.compiled import (
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
    SINGLES4,
    VOID,
    compiled,
    named,
)
from copyahead.kernels.features import (
    A_GAP,
    A_RUN,
    NUM_STATE,
    PATH_LENGTH,
    SCOPE,
    TENANT,
    Floats,
    Tables,
    goes_on,
    hit,
    miss,
)
from copyahead.kernels.index import (
    MAX_COPY,
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
from copyahead.kernels.pricing import (
    CAUTION,
    CHEAPEST,
    MAX_DRAFT,
    NUM_OWN,
    affordable,
    break_odds,
    charge,
    note_copied,
    note_round,
    running_rate,
)
from copyahead.kernels.voting import (
    CHOSEN,
    FROM,
    FROM_MATCH,
    LEARNED,
    NODE_FLOATS,
    NODE_INTS,
    NUM_NODES,
    PROBABILITY,
    SCRATCH,
    SURVIVAL,
    TOKEN,
    TRIAL,
    Learned,
    Scratch,
    chosen_at,
    keep_agreeing,
    learn,
    vote,
)

PROVEN_RUN = 16
UNPROVEN_MAX_DRAFT = 32
"""Longest draft until so many tokens were copied in a row; without, agent runs lose 0.3%."""
SELF_EXTENSION_MATCH = 32
"""From this match on a copy goes on in its own tokens, so that a period is drafted on and on. With
no bound, text that repeats less loses 0.1 to 0.3%."""


class Requests(NamedTuple):
    """What is kept of the requests, one row each: anchors, money, and the path of the round."""

    states: Longs
    credits: Floats
    request_rates: Floats
    paths: Ints
    path_scores: Floats


class Request(NamedTuple):
    """The same of one request."""

    state: Longs
    credit: float
    request_rate: Floats
    path: Ints
    path_scores: Floats


class Tenants(NamedTuple):
    """What is learnt, one row a tenant: the model, and the token statistics."""

    models: Floats
    tables: Tables


class Drafts(NamedTuple):
    """What a call is asked and what it answers.

    `rounds` has the columns that `kernels.candidates` names. The drafts stand in `tokens` and
    `survivals`, end to end.
    """

    rounds: Ints
    tokens: Ints
    survivals: Floats


REQUESTS = named(Requests, LONGS2, FLOATS, FLOATS2, INTS3, FLOATS3)
REQUEST = named(Request, LONGS, FLOAT, FLOATS, INTS2, FLOATS2)
TENANTS = named(Tenants, FLOATS2, SINGLES4)
DRAFTS = named(Drafts, INTS2, INTS, FLOATS)


def new_requests(rows: int) -> Requests:
    """Room for as many requests."""
    return Requests(
        np.zeros((rows, NUM_STATE), dtype=np.int64),
        np.zeros(rows),
        np.zeros((rows, NUM_OWN)),
        np.zeros((rows, NUM_NODES, NODE_INTS), dtype=np.int32),
        np.zeros((rows, NUM_NODES, NODE_FLOATS)),
    )


def new_drafts(rows: int) -> Drafts:
    """Room for a round of as many requests."""
    return Drafts(
        np.zeros((rows, NUM_ROUND_COLUMNS), dtype=np.int32),
        np.zeros(rows * MAX_COPY, dtype=np.int32),
        np.zeros(rows * MAX_COPY),
    )


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
    """Fill the path of one row; returns how many of its tokens to send, at most `limit`.

    The path does not depend on the limit: so neither does what is learnt. Drafted tokens are
    written behind the history for the time of the call, so that a copy can go on in them.
    """
    state, path, scores, length = request.state, request.path, request.path_scores, view.length
    candidates, trial = scratch.candidates, scratch.ints[TRIAL]
    for k in range(NUM_STATE):
        trial[k] = state[k]
    proven = state[A_GAP] == 0 and state[A_RUN] >= PROVEN_RUN
    cap = min(int(prices[MAX_DRAFT]), MAX_COPY if proven else UNPROVEN_MAX_DRAFT)
    rate = running_rate(learned.model, request.request_rate, prices)
    odds = break_odds(learned.model)
    survival, worth, best, count, position = 1.0, 0.0, 0.0, 0, 0
    saved, most_saved, limited = 0.0, 0.0, 0
    voters = gather(view, trial, candidates)
    while vote(view, learned, trial, voters, position, scratch, path[position], scores[position]):
        node = path[position]
        at = chosen_at(node)
        token, source = node[at + TOKEN], node[at + FROM]
        if length <= source < SHARED and node[at + FROM_MATCH] < SELF_EXTENSION_MATCH:
            break
        chance = scores[position, PROBABILITY + node[CHOSEN]]
        if goes_on(trial, source):
            chance /= chance + odds * (1.0 - chance)
        survival *= chance
        scores[position, SURVIVAL] = survival
        position += 1
        if position > cap:
            break
        # What one token more a step is worth here; dearer where the copy may have broken.
        asked = rate * (1.0 + prices[CAUTION] * (1.0 - survival))
        further = prices[1 + position] - prices[position]
        worth += survival - asked * further
        if worth > best:
            best, count = worth, position
        # Where the limit forbids the length that pays best, all that a draft must beat is not to
        # draft: near its end a request has no better use for its time.
        saved += survival - further
        if saved > most_saved and position <= limit:
            most_saved, limited = saved, position
        if survival < asked * prices[CHEAPEST + position - 1] or holds(ends, token):
            break
        hit(trial, source)
        view.cells[length + position - 1, 0] = token
        voters = keep_agreeing(view, candidates, voters, token)
    state[PATH_LENGTH] = position
    return affordable(count if count <= limit else limited, request.credit, prices)


@compiled(REQUEST(REQUESTS, INT))
def request_of(requests: Requests, row: int) -> Any:
    """One request's part."""
    return Request(
        requests.states[row],
        requests.credits[row],
        requests.request_rates[row],
        requests.paths[row],
        requests.path_scores[row],
    )


@compiled(LEARNED(TENANTS, INT))
def learned_of(tenants: Tenants, tenant: int) -> Any:
    """One tenant's part."""
    return Learned(tenants.models[tenant], tenants.tables[tenant])


@compiled(INT(POOL, INT, INTS, REQUESTS, REQUESTS, TENANTS, INTS, SCRATCH, FLOATS))
def continue_row(
    pool: Pool,
    row: int,
    chain: Ints,
    requests: Requests,
    spare: Requests,
    tenants: Tenants,
    ends: Ints,
    scratch: Scratch,
    prices: Floats,
) -> Any:
    """Fill the path of `spare` with the copy that follows the row and `chain`; returns its length.

    Its survivals are conditional on `chain`, which stands behind the history for the time of the
    call. The row's own path stays as it is, and nothing is learnt. 0 where there is no room.
    """
    request = request_of(requests, row)
    state, trial = request.state, spare.states[0]
    view = view_of(pool, row, state[SCOPE])
    length = view.length + len(chain)
    for k in range(NUM_STATE):
        trial[k] = state[k]
    if length + MAX_COPY + 1 > len(view.cells):
        trial[PATH_LENGTH] = 0
        return 0
    foretold = True
    for k in range(len(chain)):
        view.cells[view.length + k, 0] = chain[k]
        foretold = foretold and k < state[PATH_LENGTH]
        if foretold:
            node = request.path[k]
            at = chosen_at(node)
            foretold = node[at + TOKEN] == chain[k]
            if foretold:
                hit(trial, node[at + FROM])
                continue
        miss(trial)
    draft_row(
        View(view.cells, view.heads, length, view.shared, view.shared_heads, view.end),
        MAX_COPY,
        Request(trial, request.credit, request.request_rate, spare.paths[0], spare.path_scores[0]),
        learned_of(tenants, state[TENANT]),
        prices,
        ends,
        scratch,
    )
    return trial[PATH_LENGTH]


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
        row = wide(rounds[q, ROW])
        request = request_of(requests, row)
        path, scores = request.path, request.path_scores
        count = draft_row(
            view_of(pool, row, request.state[SCOPE]),
            max(wide(rounds[q, LIMIT]), 0),
            request,
            learned_of(tenants, request.state[TENANT]),
            prices,
            ends,
            scratch,
        )
        rounds[q, NUM_TOKENS] = count
        rounds[q, HAS_SHARED] = 0
        for k in range(count):
            at = chosen_at(path[k])
            drafts.tokens[total + k] = path[k, at + TOKEN]
            drafts.survivals[total + k] = scores[k, SURVIVAL]
            if path[k, at + FROM] >= SHARED:
                rounds[q, HAS_SHARED] = 1
        if count > 0:
            first = chosen_at(path[0])
            rounds[q, ORIGIN] = path[0, first + FROM]
            rounds[q, MATCH_LENGTH] = path[0, first + FROM_MATCH]
        total += count
    return total


@compiled(VOID(POOL, INT, INT, INTS, INT, FLOAT, REQUESTS, TENANTS, FLOATS))
def settle(
    pool: Pool,
    row: int,
    vocab_size: int,
    emitted: Ints,
    num_draft_tokens: int,
    extra: float,
    requests: Requests,
    tenants: Tenants,
    prices: Floats,
) -> None:
    """Close a round: learn from the path, move the anchors, charge the credit, extend the row.

    `extra` is what the round cost beside its pass, in steps: passes of a draft model.
    """
    request = request_of(requests, row)
    state, path, scores = request.state, request.path, request.path_scores
    learned = learned_of(tenants, state[TENANT])
    # Tokens that no round of this session accounts for came one a step.
    unaccounted = max(len(emitted) - 1 - num_draft_tokens, 0)
    cost = prices[1 + num_draft_tokens] + unaccounted + extra
    note_round(learned.model, request.request_rate, len(emitted) - unaccounted, cost - unaccounted)
    requests.credits[row] = charge(request.credit, len(emitted), cost, prices)
    foretold = True
    for k in range(len(emitted)):
        foretold = foretold and k < state[PATH_LENGTH]
        if foretold:
            node = path[k]
            learn(node, scores[k], emitted[k], learned)
            at = chosen_at(node)
            foretold = node[at + TOKEN] == emitted[k]
            if goes_on(state, node[at + FROM]):
                chance = scores[k, PROBABILITY + node[CHOSEN]]
                note_copied(learned.model, chance, not foretold)
            if foretold:
                hit(state, node[at + FROM])
                continue
        miss(state)
    state[PATH_LENGTH] = 0
    extend_row(pool, row, vocab_size, emitted)
