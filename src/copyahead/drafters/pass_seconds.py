"""What a pass of a draft model takes, by its rows: measured at load, corrected by real passes."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence

from copyahead.contracts import Backend, Part
from copyahead.step_cost import StepCost, StepCostMeter

TIMED_ROWS = (1, 2, 4, 8, 32, 128, 512)
"""Sizes of a pass that are timed at load; between them, and beyond, a line."""
_REPEATS = 3
_LONG_PASS = 0.5
"""Seconds: a pass that takes longer is not repeated, and no longer one is tried."""


class PassSeconds:
    """Seconds of a pass over n rows, and of the passes that more rows than fit into one take."""

    def __init__(self, measured: Mapping[int, float], max_rows: int) -> None:
        """`measured[n]`: seconds of a pass over n rows; needs `measured[1]`. `max_rows` a pass."""
        self._max_rows = max_rows
        self._meter = StepCostMeter(StepCost(measured), max_rows=max_rows)
        self._measured = measured[1]
        # Seconds of the last passes, in units of what the curve foretold.
        self._units: deque[float] = deque(maxlen=StepCostMeter.KEPT)
        self._unit = self._measured

    def __call__(self, num_rows: int) -> float:
        """Seconds that reading `num_rows` rows takes, in as many passes as they need."""
        full, rest = divmod(num_rows, self._max_rows)
        steps = full * self._meter.cost(self._max_rows) if full else 0.0
        return self._unit * (steps + (self._meter.cost(rest) if rest else 0.0))

    def observe(self, num_rows: int, seconds: float) -> None:
        """Note a pass over `num_rows` rows (1 to `max_rows`)."""
        if seconds <= 0:
            return
        before = self._meter.cost
        self._units.append(seconds / before(num_rows))
        self._meter.observe(num_rows, seconds)
        if self._meter.cost is not before:
            # The curve is another one now: so are the units of what is kept.
            self._units.clear()
            self._units.append(seconds / self._meter.cost(num_rows))
        if len(self._units) >= StepCostMeter.FEWEST:
            self._unit = statistics.median(self._units)


def measure(
    backend: Backend, sizes: Sequence[int] = TIMED_ROWS, *, repeats: int = _REPEATS
) -> dict[int, float]:
    """Median seconds of passes over `sizes` rows in slot 0, which is left empty."""
    limits, size = backend.capabilities, backend.tokenizer.vocab_size
    most = min(limits.max_rows, limits.context_size)
    measured: dict[int, float] = {}
    for count in [n for n in sizes if n <= most]:
        part = Part(slot=0, start=0, tokens=[7919 * n % size for n in range(count)], num_logits=1)
        times: list[float] = []
        # The first loads what the others find.
        for _ in range(1 + repeats):
            backend.truncate(0, 0)
            began = time.perf_counter()
            backend.forward([part])
            times.append(time.perf_counter() - began)
            if times[-1] > _LONG_PASS and count > 1:
                break
        measured[count] = statistics.median(times[1:] or times)
        if measured[count] > _LONG_PASS:
            break
    backend.truncate(0, 0)
    return measured
