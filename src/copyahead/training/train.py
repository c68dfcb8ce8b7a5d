"""Trains the tables that `priced` starts from, on recorded requests.

First the vote's tables, by maximum likelihood of the next token; then slope, context and
position, which are what the online learning of `priced` arrives at on the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.acceptance import num_accepted
from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import DraftSession
from copyahead.drafters.priced import PricedDrafter
from copyahead.drafters.prior import FORMAT, SHAPES
from copyahead.history.pool import HistoryPool
from copyahead.kernels import features
from copyahead.kernels.voting import new_scratch
from copyahead.step_cost import StepCost
from copyahead.training import fitting
from copyahead.types import Draft, Token

Text = npt.NDArray[np.int32]
Model = npt.NDArray[np.float64]
Example = tuple[Text, Text]
"""What a request has read, and what it then wrote."""

RATES = (0.03, 0.01, 0.003)
"""The step of each pass over the text."""
NEARER = np.array([0.7, 0.5, 0.3, 0.0, 0.0, 0.0, 0.3, -0.3])
"""What a place from the last copies' ends adds at first; see `kernels.features.place`."""
ONLINE_PASSES = 2
ONLINE_COST = 0.03


def train(
    examples: Callable[[], Iterable[Example]],
    capacity: int,
    vocab_size: int,
    on_pass: Callable[[str], None] = lambda _: None,
) -> Model:
    """The model fitted to `examples`, which is called once a pass.

    `capacity`: tokens of the longest example. `on_pass` is told about each pass.
    """
    model = plain_model()
    fit_votes(model, examples, HistoryPool(1, capacity, vocab_size), on_pass)
    for number in range(ONLINE_PASSES):
        model = learn_online(model, examples(), HistoryPool(1, capacity, vocab_size))
        on_pass(f"online pass {number + 1}: slope {model[features.SLOPE]:.3f}")
    return model


def plain_model() -> Model:
    """Where the fit starts: a longer match weighs more, and one that goes on with a copy."""
    model = np.zeros(features.MODEL_SIZE)
    votes = 0.35 * np.arange(13)[:, None] + NEARER
    model[features.MATCH_PLACE : features.MATCH_PLACE + 13 * 8] = votes.ravel()
    model[: features.SLOPE] = np.exp(model[: features.SLOPE])
    model[features.SLOPE] = 1.0
    model[features.RATE_TOKENS], model[features.RATE_COST] = 100.0, 50.0
    return model


def fit_votes(
    model: Model,
    examples: Callable[[], Iterable[Example]],
    pool: HistoryPool,
    on_pass: Callable[[str], None],
) -> None:
    """Fit the vote's tables of `model` in place."""
    scratch = new_scratch()
    fit = np.zeros((fitting.NUM_FIT_ROWS, features.SLOPE))
    fit[fitting.LOGS] = fit[fitting.START] = np.log(model[: features.SLOPE])
    sums = np.zeros(fitting.NUM_SUMS)
    state = np.zeros(features.NUM_STATE, dtype=np.int64)
    for number, rate in enumerate(RATES):
        sums[[fitting.POSITIONS, fitting.LOSS]] = 0.0
        for read, written in examples():
            pool.attach(0, read)
            state[:] = 0
            state[features.A_NEXT] = state[features.B_NEXT] = -1
            state[features.B_GAP] = features.UNSET_GAP
            fitting.fit_answer(
                pool.arrays, pool.vocab_size, written, state, model, scratch, fit, sums, rate
            )
        loss = sums[fitting.LOSS] / max(sums[fitting.POSITIONS], 1.0)
        on_pass(f"pass {number + 1}: loss {loss:.4f}")


def learn_online(model: Model, examples: Iterable[Example], pool: HistoryPool) -> Model:
    """`model` with the slope, context and position that `priced` learns on `examples`.

    Their means over the requests: what the last one left is habit, not knowledge.
    """
    drafter = PricedDrafter(pool, StepCost.linear(ONLINE_COST), prior=model)
    total, requests = np.zeros_like(model), 0
    for read, written in examples:
        session = drafter.open(read, slot=0)
        follow(session, written.tolist())
        session.close()
        total += drafter.models[0]
        requests += 1
    learnt = model.copy()
    for part in (features.SLOPE, slice(features.CONTEXT, features.MODEL_SIZE)):
        learnt[part] = total[part] / max(requests, 1)
    return learnt


def follow(session: DraftSession, answer: Sequence[Token]) -> list[Draft]:
    """Run rounds until `answer` is written, as if a model wrote it; returns their drafts."""
    drafts, at = [], 0
    while at < len(answer):
        draft = session.propose(min(MAX_DRAFT_TOKENS, len(answer) - at - 1))
        kept = num_accepted(draft.tokens, answer[at:])
        session.settle(draft, answer[at : at + kept + 1])
        at += kept + 1
        drafts.append(draft)
    return drafts


def document_of(model: Model, note: str) -> dict[str, Any]:
    """The prior document of a model: `prior.model_of` reads it. `note` says how it was made."""
    tables: dict[str, Any] = {"format": FORMAT, "made": note}
    for name, (start, shape) in SHAPES.items():
        size = int(np.prod(shape))
        values = model[start : start + size]
        values = np.log(values) if start < features.SLOPE else values
        tables[name] = np.round(values, 3).reshape(shape).tolist()
    return tables
