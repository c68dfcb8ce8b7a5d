"""What a pass costs, from the steps' own times."""

from __future__ import annotations

from copyahead.plugins.vllm.costs import Costs
from copyahead.step_cost import StepCost


def timed(costs: Costs, requests: int, seconds: dict[int, float]) -> None:
    """Each size of pass often enough to count."""
    for _ in range(16):
        for rows, took in seconds.items():
            costs.observe(requests, rows, took)


def test_times_of_steps_become_the_cost() -> None:
    costs = Costs(None, "cpu")
    timed(costs, 1, {1: 0.010, 2: 0.012, 9: 0.050, 17: 0.090})
    cost = costs.cost(1)
    assert 1.15 < cost(2) < 1.25
    assert 4.5 < cost(9) < 5.5


def test_batches_of_other_sizes_are_other_passes() -> None:
    costs = Costs(None, "cuda")
    timed(costs, 1, {1: 0.010, 9: 0.030})
    timed(costs, 8, {8: 0.010, 72: 0.012})
    assert costs.cost(1)(9) > 2.5
    assert costs.cost(8)(72) / costs.cost(8)(8) < 1.5
    assert costs.cost(5) is costs.cost(8)


def test_a_given_cost_stays() -> None:
    given = StepCost.linear(0.5)
    costs = Costs(given, "cpu")
    timed(costs, 1, {1: 1.0, 9: 1.0})
    assert costs.cost(1) is given
    assert not costs.is_measured


def test_ranks_have_the_first_ones_cost() -> None:
    """Their clocks differ, and their drafts must not."""
    sent: list[StepCost] = []

    def first(cost: StepCost) -> StepCost:
        sent.append(cost)
        return cost

    one = Costs(None, "cuda", first)
    timed(one, 2, {2: 0.010, 18: 0.050})
    other = Costs(None, "cuda", lambda _: sent.pop(0))
    timed(other, 2, {2: 0.011, 18: 0.011})
    assert not sent
    assert other.cost(2).points() == one.cost(2).points()
