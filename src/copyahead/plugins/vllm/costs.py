"""What a pass of the host costs, from the times of its own steps.

A step is what lies between two calls of the proposer: the pass, the sampling, the scheduling, and
the drafting itself. Steps in which somebody's prompt was read are left out.
Passes of one request and of thirty are different passes, so times are kept by the number of
requests: 1, 2, 3 to 4, 5 to 8, and so on.
"""

from __future__ import annotations

from collections.abc import Callable

from copyahead.step_cost import StepCost, StepCostMeter

START = {"cpu": 0.25}
START_ELSEWHERE = 0.02
"""Cost of a further token in a pass, in passes of one, until some were timed: a GPU is not busy
with one token, and a CPU is."""
MAX_TIMED_ROWS = 1024
"""Larger passes are not timed."""


class Costs:
    """T by the tokens of a pass. Given once and for all, or measured."""

    def __init__(
        self,
        given: StepCost | None,
        device: str,
        share: Callable[[StepCost], StepCost] | None = None,
    ) -> None:
        """`share` gives every rank the first one's cost: their drafts must be the same."""
        self._given = given
        self._start = given or StepCost.linear(START.get(device, START_ELSEWHERE))
        self._share = share
        self._meters: dict[int, StepCostMeter] = {}
        self._shared: dict[int, StepCost] = {}
        self._observed: dict[int, int] = {}

    @property
    def is_measured(self) -> bool:
        """Whether times of steps change it."""
        return self._given is None

    def observe(self, num_requests: int, num_rows: int, seconds: float) -> None:
        """A step with `num_requests` requests and a pass over `num_rows` tokens took so long."""
        if self._given is not None or seconds <= 0.0:
            return
        size = _size(num_requests)
        meter = self._meters.get(size)
        if meter is None:
            meter = StepCostMeter(self._start, max_rows=MAX_TIMED_ROWS)
            self._meters[size] = meter
        meter.observe(num_rows, seconds)
        count = self._observed[size] = self._observed.get(size, 0) + 1
        if self._share is not None and count % StepCostMeter.EVERY == 0:
            # Every rank comes here at the same step.
            self._shared[size] = self._share(meter.cost)

    def cost(self, num_requests: int) -> StepCost:
        """T for steps of so many requests; another object whenever it has changed."""
        size = _size(num_requests)
        if self._share is not None:
            return self._shared.get(size, self._start)
        meter = self._meters.get(size)
        return self._start if meter is None else meter.cost


def _size(num_requests: int) -> int:
    return (max(num_requests, 1) - 1).bit_length()
