"""Fitting the prior: the gradient is right, and training finds what a text rewards."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from copyahead.drafters import prior
from copyahead.history.pool import HistoryPool
from copyahead.kernels import features
from copyahead.kernels.candidates import gather
from copyahead.kernels.voting import new_scratch
from copyahead.training import fitting
from copyahead.training import train as training
from tests.naive import view_of

VOCAB = 4


class Position:
    """One position of a random text, and all that a vote there needs."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        text = rng.choices(range(VOCAB), k=rng.randrange(8, 150))
        self.pool = HistoryPool(1, 200, VOCAB)
        self.pool.attach(0, text)
        self.state = np.zeros(features.NUM_STATE, dtype=np.int64)
        anchor, gap = rng.randrange(-1, len(text)), rng.choice([0, 0, 1, 3])
        self.state[:6] = (anchor, gap, 7, rng.randrange(-1, len(text)), gap + 2, 5)
        self.scratch = new_scratch()
        self.count = gather(view_of(self.pool), self.state, self.scratch.candidates)
        self.truth = rng.randrange(VOCAB)

    def loss(self, logs: np.ndarray, gradient: np.ndarray) -> float:
        model = np.zeros(features.MODEL_SIZE)
        model[: features.SLOPE] = np.exp(logs)
        view = view_of(self.pool)
        args = (view, model, self.state, self.count, self.truth, self.scratch, gradient)
        return float(fitting.add_gradient(*args))


@pytest.mark.parametrize("seed", range(20))
def test_the_gradient_is_how_the_loss_changes(seed: int) -> None:
    position = Position(seed)
    logs = np.random.default_rng(seed).normal(size=features.SLOPE)
    gradient, unused = np.zeros(features.SLOPE), np.zeros(features.SLOPE)
    position.loss(logs, gradient)
    assert position.count > 0
    assert np.abs(gradient).max() > 1e-3
    for entry in np.flatnonzero(gradient):
        moved = logs.copy()
        moved[entry] += 1e-5
        more = position.loss(moved, unused)
        moved[entry] -= 2e-5
        less = position.loss(moved, unused)
        # The gradient is of the likelihood: what raises it lowers the loss.
        assert gradient[entry] == pytest.approx((less - more) / 2e-5, abs=1e-5)


def examples() -> Iterator[training.Example]:
    """Requests that copy runs of a text, with one token in ten replaced."""
    rng = random.Random(1)
    for _ in range(40):
        text = [rng.randrange(200) for _ in range(150)]
        start = rng.randrange(50)
        answer = [t if rng.random() > 0.1 else rng.randrange(200) for t in text[start : start + 90]]
        yield np.array(text, dtype=np.int32), np.array(answer, dtype=np.int32)


def test_training_lowers_the_loss_and_gives_a_prior() -> None:
    told: list[str] = []
    model = training.train(examples, 300, 200, told.append)
    losses = [float(line.split()[-1]) for line in told[: len(training.RATES)]]
    assert losses[-1] < losses[0]
    longer = model[features.MATCH_PLACE : features.MATCH_PLACE + 13 * 8].reshape(13, 8)
    assert longer[4, 7] > longer[1, 7]
    document = training.document_of(model, "a test")
    assert np.allclose(
        np.log(prior.model_of(document)[: features.SLOPE]),
        np.log(model[: features.SLOPE]),
        atol=1e-3,
    )
    assert training.train(examples, 300, 200).tolist() == model.tolist()
