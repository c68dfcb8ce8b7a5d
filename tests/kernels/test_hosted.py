"""The sharing out of a step's rows by classes of survival, beside the engine's exact one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from copyahead.engine.allocation import allocate
from copyahead.kernels import hosted
from copyahead.kernels.candidates import LIMIT, NUM_ROUND_COLUMNS, NUM_TOKENS
from copyahead.step_cost import StepCost
from copyahead.types import Draft

chances = st.lists(st.floats(0.01, 1.0), max_size=12)


def falling(probabilities: list[float]) -> tuple[float, ...]:
    return tuple(np.cumprod(probabilities).tolist())


def rate(lengths: list[int], offered: list[tuple[float, ...]], cost: StepCost) -> float:
    """Expected tokens a step cost."""
    kept = sum(sum(survivals[:k]) for survivals, k in zip(offered, lengths, strict=True))
    return (len(offered) + kept) / cost(len(offered) + sum(lengths))


def shared_out(offered: list[tuple[float, ...]], cost: StepCost, budget: int) -> list[int]:
    rounds = np.zeros((len(offered), NUM_ROUND_COLUMNS), dtype=np.int32)
    rounds[:, NUM_TOKENS] = [len(survivals) for survivals in offered]
    flat = np.array([s for survivals in offered for s in survivals])
    curve = cost.curve(len(offered) * 13 + 1)
    room = np.zeros(2 * hosted.BUCKETS)
    hosted.share_out(rounds, flat, len(offered), len(offered), budget, curve, room)
    lengths: list[int] = rounds[:, LIMIT].tolist()
    return lengths


@given(st.lists(chances, min_size=1, max_size=8), st.floats(0.0, 0.5), st.integers(0, 100))
def test_it_is_as_good_as_the_exact_one(
    probabilities: list[list[float]], row_cost: float, budget: int
) -> None:
    offered, cost = [falling(p) for p in probabilities], StepCost.linear(row_cost)
    lengths = shared_out(offered, cost, budget)
    assert sum(lengths) <= budget
    assert all(k <= len(survivals) for k, survivals in zip(lengths, offered, strict=True))
    drafts = [Draft(tokens=(1,) * len(s), survivals=s) for s in offered]
    exact = [len(draft) for draft in allocate(drafts, 1000, len(offered), cost)]
    if budget >= sum(map(len, offered)):
        assert rate(lengths, offered, cost) >= 0.99 * rate(exact, offered, cost)


def test_what_is_certain_goes_before_what_is_not() -> None:
    assert shared_out([(0.99, 0.98), (0.2, 0.1)], StepCost.linear(0.3), 100) == [2, 0]


def test_rows_that_cost_nothing_are_all_taken() -> None:
    assert shared_out([(0.9, 0.5), (0.2,)], StepCost.linear(0.0), 100) == [2, 1]
