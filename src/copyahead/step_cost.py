"""T(n): what a target pass over n rows costs, in units of a pass over one row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt


class StepCost:
    """A measured cost curve, monotone, linear between its points and beyond the last.

    Some machines give a staircase: four rows can cost as much as three. So the curve is
    kept as points, never fitted to a line.
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        """`points[n]` is the time of a pass over n rows, in any one unit; needs `points[1]`."""
        if 1 not in points or points[1] <= 0:
            raise ValueError("a step cost needs a positive time for one row")
        rows = sorted(points)
        times = np.maximum.accumulate([points[n] / points[1] for n in rows])
        self._rows = np.asarray(rows, dtype=np.float64)
        self._times = np.asarray(times, dtype=np.float64)

    @classmethod
    def linear(cls, row_cost: float) -> StepCost:
        """T(n) = 1 + row_cost * (n - 1)."""
        return cls({1: 1.0, 2: 1.0 + row_cost})

    def __call__(self, rows: int) -> float:
        """T(rows) for rows >= 1."""
        return float(self.curve(rows)[rows])

    def curve(self, max_rows: int) -> npt.NDArray[np.float64]:
        """T(0..max_rows) as an array of max_rows + 1 values; T(0) is 0."""
        wanted = np.arange(max_rows + 1, dtype=np.float64)
        curve = np.interp(wanted, self._rows, self._times)
        last = self._rows[-1]
        if max_rows > last and len(self._rows) > 1:
            slope = (self._times[-1] - self._times[-2]) / (last - self._rows[-2])
            slope = max(slope, 0.0)
            beyond = wanted > last
            curve[beyond] = self._times[-1] + slope * (wanted[beyond] - last)
        curve[0] = 0.0
        return curve

    def limit(self, max_rows: int = 64) -> float:
        """The speed-up of a copy that never breaks: the largest n / T(n) up to max_rows."""
        curve = self.curve(max_rows)
        return float(np.max(np.arange(1, max_rows + 1) / curve[1:]))

    def points(self) -> dict[int, float]:
        """The measured points, as `{rows: cost}`."""
        return {int(n): float(t) for n, t in zip(self._rows, self._times, strict=True)}

    def __repr__(self) -> str:
        shown = ", ".join(f"T({n})={t:.2f}" for n, t in self.points().items())
        return f"StepCost({shown})"
