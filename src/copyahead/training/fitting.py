"""Fits the vote's tables to recorded text: maximum likelihood of the next token.

Only `benchmarks/train_prior.py` imports this. The vote is a softmax: every candidate has a
logit, a sum of table entries, and so has "none of them". The gradient of the log likelihood in
each entry is how often it stood behind the truth, less how often it was believed to.
"""

from __future__ import annotations

import math
from typing import Any

from copyahead.kernels.candidates import gather
from copyahead.kernels.compiled import (
    FLOAT,
    FLOATS,
    FLOATS2,
    INT,
    INTS,
    LONGS,
    VOID,
    compiled,
)
from copyahead.kernels.features import (
    DISTANCE,
    DISTANCE_WEIGHT,
    ECHO,
    ECHO_WEIGHT,
    ESCAPE_STATE,
    MATCH,
    MATCH_PLACE,
    NUM_DISTANCES,
    NUM_ECHOES,
    NUM_PLACES,
    NUM_RANKS,
    OLD_DOCUMENT,
    RANK,
    RANK_WEIGHT,
    SCOPE,
    SLOPE,
    SOURCE,
    Floats,
    escape_at,
    escape_state,
    fine_match_group,
    hit,
    match_bucket,
    match_group,
    miss,
    place,
    weight,
)
from copyahead.kernels.index import (
    POOL,
    SHARED,
    VIEW,
    Ints,
    Longs,
    Pool,
    View,
    extend_row,
    view_of,
)
from copyahead.kernels.places import token_at
from copyahead.kernels.voting import (
    SCRATCH,
    TALLY_HEAVIEST,
    TALLY_TOKEN,
    TALLY_VOTES,
    Scratch,
    escape,
    tally,
)

# Rows of the optimiser's state, each as long as the fitted part of the model.
LOGS, GRADIENT, MEAN, VARIANCE, START = 0, 1, 2, 3, 4
NUM_FIT_ROWS = 5
# And its sums: positions since the last step, steps, positions and their loss in all.
PENDING, STEPS, POSITIONS, LOSS = 0, 1, 2, 3
NUM_SUMS = 4

BATCH = 256
# Per position: draws every entry to where it started, so that rare ones stay there.
PULL = 3e-4
_MEAN_DECAY = 0.9
_VARIANCE_DECAY = 0.999
_TINY = 1e-8


@compiled("void(float64[::1], int64[::1], int32[:, ::1], int64, float64)")
def add_to_entries(gradient: Floats, state: Longs, candidates: Ints, c: int, amount: float) -> None:
    """Add to every table entry that candidate c's weight is made of."""
    source, match = candidates[SOURCE, c], candidates[MATCH, c]
    group, fine = match_group(match), fine_match_group(match)
    gradient[MATCH_PLACE + NUM_PLACES * match_bucket(match) + place(state, source)] += amount
    gradient[RANK_WEIGHT + NUM_RANKS * group + candidates[RANK, c]] += amount
    gradient[ECHO_WEIGHT + NUM_ECHOES * fine + candidates[ECHO, c]] += amount
    gradient[DISTANCE_WEIGHT + NUM_DISTANCES * fine + candidates[DISTANCE, c]] += amount
    if source >= SHARED:
        gradient[OLD_DOCUMENT + group] += amount


@compiled(FLOAT(VIEW, FLOATS, LONGS, INT, INT, SCRATCH, FLOATS))
def add_gradient(
    view: View,
    model: Floats,
    state: Longs,
    count: int,
    truth: int,
    scratch: Scratch,
    gradient: Floats,
) -> Any:
    """Add one position's gradient; returns its loss, -ln of the share that `truth` had."""
    candidates, ints, floats = scratch.candidates, scratch.ints, scratch.floats
    different = tally(view, model, state, count, scratch)
    if different == 0:
        return 0.0
    none = escape(model, state, candidates, count, different)
    total, right = none, 0.0
    for t in range(different):
        total += floats[TALLY_VOTES, t]
        if ints[TALLY_TOKEN, t] == truth:
            right = floats[TALLY_VOTES, t]
    longest = 0
    for c in range(count):
        longest = max(longest, int(candidates[MATCH, c]))
        votes = weight(model, state, candidates, c)
        amount = -votes / total
        if right > 0.0 and token_at(view, candidates[SOURCE, c]) == truth:
            amount += votes / right
        add_to_entries(gradient, state, candidates, c, amount)
    amount = (0.0 if right > 0.0 else 1.0) - none / total
    gradient[escape_at(longest, different)] += amount
    gradient[ESCAPE_STATE + escape_state(state)] += amount
    return math.log(total / (right if right > 0.0 else none))


@compiled("void(float64[::1], float64[:, ::1], float64[::1], float64)")
def step(model: Floats, fit: Floats, sums: Floats, rate: float) -> None:
    """One step of Adam (Kingma and Ba, 2014) along the gradient of the last positions."""
    sums[STEPS] += 1.0
    mean_weight = 1.0 - _MEAN_DECAY ** sums[STEPS]
    variance_weight = 1.0 - _VARIANCE_DECAY ** sums[STEPS]
    for k in range(SLOPE):
        slope = fit[GRADIENT, k] / sums[PENDING] - PULL * (fit[LOGS, k] - fit[START, k])
        fit[GRADIENT, k] = 0.0
        fit[MEAN, k] += (1.0 - _MEAN_DECAY) * (slope - fit[MEAN, k])
        fit[VARIANCE, k] += (1.0 - _VARIANCE_DECAY) * (slope * slope - fit[VARIANCE, k])
        mean = fit[MEAN, k] / mean_weight
        deviation = math.sqrt(fit[VARIANCE, k] / variance_weight)
        fit[LOGS, k] += rate * mean / (deviation + _TINY)
        model[k] = math.exp(fit[LOGS, k])
    sums[PENDING] = 0.0


@compiled(VOID(INT, LONGS, INT, INT, SCRATCH))
def move(different: int, state: Longs, top: int, truth: int, scratch: Scratch) -> None:
    """Move the anchors as a settled round does: the token with the most votes was foretold."""
    if different > 0 and scratch.ints[TALLY_TOKEN, top] == truth:
        hit(state, scratch.candidates[SOURCE, scratch.ints[TALLY_HEAVIEST, top]])
    else:
        miss(state)


@compiled(VOID(POOL, INT, INTS, LONGS, FLOATS, SCRATCH, FLOATS2, FLOATS, FLOAT))
def fit_answer(
    pool: Pool,
    vocab_size: int,
    answer: Ints,
    state: Longs,
    model: Floats,
    scratch: Scratch,
    fit: Floats,
    sums: Floats,
    rate: float,
) -> None:
    """Fit to one answer, token by token, and append it to row 0."""
    for k in range(len(answer)):
        truth = int(answer[k])
        view = view_of(pool, 0, state[SCOPE])
        count = gather(view, state, scratch.candidates)
        sums[LOSS] += add_gradient(view, model, state, count, truth, scratch, fit[GRADIENT])
        different = tally(view, model, state, count, scratch)
        top = 0
        for t in range(1, different):
            if scratch.floats[TALLY_VOTES, t] > scratch.floats[TALLY_VOTES, top]:
                top = t
        move(different, state, top, truth, scratch)
        extend_row(pool, 0, vocab_size, answer[k : k + 1])
        sums[PENDING] += 1.0
        sums[POSITIONS] += 1.0
        if sums[PENDING] >= BATCH:
            step(model, fit, sums, rate)
