"""The vote: which token comes next, how likely it is, and what is learnt when it is known.

Candidates vote with their weights. The tokens with the top shares are scored: each gets a
calibrated probability, from its share, from the fitted tables and from the token statistics. What
was computed stays in the round's *path*, one node a token that it foretells, so that `learn` can
score it when the round is settled.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from copyahead.kernels.compiled import (
    BOOL,
    FLOAT,
    FLOATS,
    FLOATS2,
    INT,
    INTS,
    INTS2,
    LONGS,
    LONGS2,
    SINGLES3,
    VOID,
    compiled,
    named,
)
from copyahead.kernels.features import (
    BIAS,
    CONTEXT,
    ESCAPE_STATE,
    MATCH,
    MAX_CANDIDATES,
    NUM_CANDIDATE_COLUMNS,
    NUM_COPY_STATES,
    NUM_POSITIONS,
    NUM_TABLES,
    OTHER_CONTEXT,
    POSITION,
    SEEN,
    SLOPE,
    SOURCE,
    Floats,
    Tables,
    copy_state,
    escape_at,
    escape_state,
    match_bucket,
    match_group,
    mixed,
    position_bucket,
    slot_of,
    weight,
)
from copyahead.kernels.index import MAX_COPY, MAX_MATCH, VIEW, Ints, Longs, View
from copyahead.kernels.places import position_of, text_of, token_at


class Learned(NamedTuple):
    """What is learnt of one tenant: the model, and the token statistics."""

    model: Floats
    tables: Tables


class Scratch(NamedTuple):
    """Room to work in, for the time of a call."""

    candidates: Ints
    ints: Longs
    floats: Floats


LEARNED = named(Learned, FLOATS, SINGLES3)
SCRATCH = named(Scratch, INTS2, LONGS2, FLOATS2)

MAX_SCORED = 4
"""Tokens that a vote scores and chooses among. Where the most votes win, agent runs go at 2.604
instead of 2.651 (docs/policies.md)."""
# One node: how many alternatives were scored, which was chosen, and each of them, as below.
NUM_SCORED, CHOSEN, FIRST_SCORED = 0, 1, 2
TOKEN, FROM, FROM_MATCH, CONTEXT_AT, POSITION_AT, SLOTS = 0, 1, 2, 3, 4, 5
SCORED_SIZE = SLOTS + NUM_TABLES
NODE_INTS = FIRST_SCORED + MAX_SCORED * SCORED_SIZE
# Its scores: survival, then each alternative's probability, and the log odds of each one's share.
SURVIVAL, PROBABILITY = 0, 1
LOG_ODDS = PROBABILITY + MAX_SCORED
NODE_FLOATS = LOG_ODDS + MAX_SCORED
NUM_NODES = MAX_COPY + 1
"""One more than is ever sent, so that what comes after a draft is scored too."""

# Scratch, one row each.
TALLY_TOKEN, TALLY_HEAVIEST, TRIAL = 0, 1, 2
NUM_SCRATCH_INTS = 3
TALLY_VOTES, TALLY_WEIGHT = 0, 1
NUM_SCRATCH_FLOATS = 2

_ONE, _LAST, _PAIR, _REGION = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
"""What the keys of each kind of statistic start from, so that no two kinds share one."""
_REGION_SHIFT = 5
"""Sources in the same 32 places share a statistic."""

MIN_OTHER_SHARE = 0.02
"""With less of the votes no token but the top one is scored."""
MIN_SHARE = 1e-4
"""Shares are kept this far from 0 and 1, where log odds have no end."""
SLOPE_RATE = 0.0005
CONTEXT_RATE = 0.02
POSITION_RATE = 0.01
"""How far an error moves each; half and twice as much make little difference."""
TABLE_RATE = 1.5
TABLE_RATE_OFFSET = 3.0
TABLE_RATE_FLOOR = 0.03
"""An error moves a statistic seen n times by rate / (n + offset) + floor: at first by 0.4, and
never by less than the floor, so that it follows a text that changes."""
TABLE_MAX_COUNT = 60.0
"""From here on n stays as it is."""


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
    return model[escape_at(longest, different)] * model[ESCAPE_STATE + escape_state(state)]


@compiled(INT(INT))
def scored_at(alternative: int) -> Any:
    """Where an alternative begins in a node."""
    return FIRST_SCORED + SCORED_SIZE * alternative


@compiled(INT(INTS))
def chosen_at(node: Ints) -> Any:
    """Where the chosen alternative begins in a node."""
    return scored_at(node[CHOSEN])


@compiled("void(int32[::1], int64, int64, int64, uint64, uint64)")
def find_slots(node: Ints, at: int, token: int, source: int, last: Any, pair: Any) -> None:
    """Slots of the six token statistics for `token`, after the keys of the last and last two."""
    node[at] = slot_of(mixed(_ONE, token))
    node[at + 1] = slot_of(last)
    node[at + 2] = slot_of(mixed(last, token))
    node[at + 3] = slot_of(pair)
    node[at + 4] = slot_of(mixed(_REGION, source >> _REGION_SHIFT))
    node[at + 5] = slot_of(mixed(pair, token))


@compiled(FLOAT(LEARNED, INTS, INT, FLOAT))
def probability(learned: Learned, node: Ints, at: int, log_odds: float) -> Any:
    """Calibrated probability of one scored token."""
    model, tables = learned.model, learned.tables
    logit = model[SLOPE] * log_odds + model[node[at + CONTEXT_AT]] + model[node[at + POSITION_AT]]
    for table in range(NUM_TABLES):
        logit += tables[table, node[at + SLOTS + table], BIAS]
    return 1.0 / (1.0 + math.exp(-logit))


@compiled(BOOL(VIEW, LEARNED, LONGS, INT, INT, SCRATCH, INTS, FLOATS))
def vote(
    view: View,
    learned: Learned,
    state: Longs,
    count: int,
    position: int,
    scratch: Scratch,
    node: Ints,
    scores: Floats,
) -> Any:
    """Choose the token `position` places on, the likeliest of those with the top shares.

    Writes the scored tokens to `node` and `scores`; False where there is no candidate.
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
        at = scored_at(scored)
        heaviest = ints[TALLY_HEAVIEST, top]
        token, source = ints[TALLY_TOKEN, top], candidates[SOURCE, heaviest]
        match = candidates[MATCH, heaviest]
        node[at + TOKEN] = token
        node[at + FROM] = source
        node[at + FROM_MATCH] = match
        contexts = OTHER_CONTEXT if scored > 0 else CONTEXT
        node[at + CONTEXT_AT] = contexts + NUM_COPY_STATES * match_bucket(match) + copying
        positions = POSITION + NUM_POSITIONS * match_group(match)
        node[at + POSITION_AT] = positions + position_bucket(position)
        find_slots(node, at + SLOTS, token, source, last, pair)
        chance = probability(learned, node, at, log_odds)
        scores[PROBABILITY + scored] = chance
        scores[LOG_ODDS + scored] = log_odds
        if chance > best:
            best, chosen = chance, scored
        scored += 1
    node[NUM_SCORED] = scored
    node[CHOSEN] = chosen
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


@compiled(VOID(INTS, FLOATS, INT, LEARNED))
def learn(node: Ints, scores: Floats, token: int, learned: Learned) -> None:
    """Move the calibration and the token statistics by what the scored tokens were worth."""
    model, tables = learned.model, learned.tables
    for scored in range(node[NUM_SCORED]):
        at = scored_at(scored)
        outcome = 1.0 if node[at + TOKEN] == token else 0.0
        error = outcome - scores[PROBABILITY + scored]
        model[node[at + CONTEXT_AT]] += CONTEXT_RATE * error
        model[node[at + POSITION_AT]] += POSITION_RATE * error
        if scored == node[CHOSEN]:
            model[SLOPE] += SLOPE_RATE * error * scores[LOG_ODDS + scored]
        for table in range(NUM_TABLES):
            slot = node[at + SLOTS + table]
            seen = min(tables[table, slot, SEEN] + 1.0, TABLE_MAX_COUNT)
            tables[table, slot, SEEN] = seen
            step = TABLE_RATE / (seen + TABLE_RATE_OFFSET) + TABLE_RATE_FLOOR
            tables[table, slot, BIAS] += error * step
