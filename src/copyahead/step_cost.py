"""T(n): what a target pass over n rows costs, in units of a pass over one row."""

from __future__ import annotations

import statistics
from collections import deque
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

    def shared(self, num_requests: int, num_rows: int, max_rows: int = 65) -> StepCost:
        """The cost that each of several requests sees in a pass that they share.

        `num_rows` rows (>= `num_requests`) are in the pass before anyone drafts. If every
        request adds k rows the pass takes T(num_rows + num_requests k), which each of them should
        hold against what the pass costs without. With one request and one row that is T itself.
        """
        if num_requests == 1 and num_rows == 1:
            return self
        curve = self.curve(num_rows + num_requests * (max_rows - 1))
        return StepCost({1 + k: float(curve[num_rows + num_requests * k]) for k in range(max_rows)})

    def points(self) -> dict[int, float]:
        """The measured points, as `{rows: cost}`."""
        return {int(n): float(t) for n, t in zip(self._rows, self._times, strict=True)}

    def __repr__(self) -> str:
        shown = ", ".join(f"T({n})={t:.2f}" for n, t in self.points().items())
        return f"StepCost({shown})"


class StepCostMeter:
    """Keeps a step cost current from the passes that are run anyway.

    Passes are sorted by their rows: 1, 2, 3 to 4, 5 to 8, and so on, since a policy that knows its
    trade seldom asks for the same length again. Of each sort the last few times are kept, in units
    of what the first measurement foretells for as many rows; their median corrects the curve
    around their median rows, and in between the correction is interpolated. So a short context,
    where rows cost less, or a machine under load, changes the curve; one slow pass does not. Times
    that are long past no longer count.
    """

    KEPT = 9
    """Times kept of each sort."""
    FEWEST = 3
    """Times of one sort needed before they correct anything."""
    LIFE = 1024
    """Passes after which a time no longer counts."""
    EVERY = 32
    """Passes between two updates of the curve."""

    def __init__(self, measured: StepCost, *, max_rows: int = 128) -> None:
        """`measured` is the curve to start from; passes over more than `max_rows` are ignored."""
        self.cost = measured
        """The curve as it stands; a new object whenever it has changed."""
        self._measured = measured.curve(max_rows)
        # By sort: when, how many rows, and the time against what was foretold.
        self._times: dict[int, deque[tuple[int, int, float]]] = {}
        self._units: deque[float] = deque(maxlen=self.KEPT)
        self._num_passes = 0

    def observe(self, rows: int, seconds: float) -> None:
        """Note a pass over `rows` (>= 1) rows that took `seconds` (> 0)."""
        self._num_passes += 1
        if rows < len(self._measured):
            sort = (rows - 1).bit_length()
            times = self._times.setdefault(sort, deque(maxlen=self.KEPT))
            unit = seconds / float(self._measured[rows])
            times.append((self._num_passes, rows, unit))
            self._units.append(seconds / self.cost(rows))
        if self._num_passes % self.EVERY == 0:
            self._update()

    @property
    def seconds(self) -> float:
        """What a pass over one row takes now: the unit of the curve; 0.0 before any was run."""
        return statistics.median(self._units) if self._units else 0.0

    def _update(self) -> None:
        oldest = self._num_passes - self.LIFE
        medians: dict[float, float] = {}
        for times in self._times.values():
            recent = [(rows, ratio) for when, rows, ratio in times if when > oldest]
            if len(recent) >= self.FEWEST:
                around = statistics.median(rows for rows, _ in recent)
                medians[around] = statistics.median(ratio for _, ratio in recent)
        if not medians:
            return
        known = sorted(medians)
        everywhere = np.arange(1, len(self._measured))
        correction = np.interp(everywhere, known, [medians[rows] for rows in known])
        seconds = correction * self._measured[1:]
        self.cost = StepCost(dict(zip(everywhere.tolist(), seconds.tolist(), strict=True)))
