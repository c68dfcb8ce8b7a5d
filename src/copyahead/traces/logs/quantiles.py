"""Quantiles of many numbers in little memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Protocol

ERROR = 0.01
"""A quantile of `Sketch` is at most this share away from a number that was added."""

EXACT = 256
"""How many numbers a `Sketch` holds as they are."""

_GROWTH = (1 + ERROR) / (1 - ERROR)
_PER_LOG = 1 / math.log(_GROWTH)
_LOW, _HIGH = 1e-9, 1e12


class Quantiles(Protocol):
    """What can say where a share of its numbers lies."""

    def at(self, share: float) -> float | None:
        """The number that `share` of all (0 to 1) do not exceed; None where there are none."""
        ...


class Sketch:
    """Positive numbers: the first `EXACT` as they are, and from then on counts in buckets that are
    2 ERROR wide, by their logarithm.

    At most 2,420 buckets, whatever is added: numbers below 1e-9 and above 1e12 count as these. A
    number that is not finite is left out. (DDSketch: Masson, Rim and Lee, 2019.)
    """

    __slots__ = ("_buckets", "_few", "count")

    def __init__(self) -> None:
        self._few: array[float] | None = array("d")
        """All numbers, in the order of their coming; None once there are too many."""
        self._buckets: dict[int, int] = {}
        self.count = 0

    def add(self, value: float) -> None:
        """Count `value`."""
        if not value < math.inf:
            return
        self.count += 1
        if self._few is None:
            self._put(value)
        elif self.count <= EXACT:
            self._few.append(value)
        else:
            self._spill()
            self._put(value)

    def merge(self, other: Sketch) -> None:
        """Count all that `other` has counted."""
        for value in other._few or ():
            self.add(value)
        if other._few is None:
            self._spill()
            for place, count in other._buckets.items():
                self._buckets[place] = self._buckets.get(place, 0) + count
            self.count += other.count

    @property
    def num_held(self) -> int:
        """How many numbers and buckets are held."""
        return len(self._buckets) + len(self._few or ())

    def at(self, share: float) -> float | None:
        """See `Quantiles.at`. Of few numbers it is exact, and lies between two where `share` does;
        of many it is at most ERROR off."""
        if not self.count:
            return None
        rank = share * (self.count - 1)
        if self._few is not None:
            values = sorted(self._few)
            low = int(rank)
            high = min(low + 1, self.count - 1)
            return values[low] + (values[high] - values[low]) * (rank - low)
        seen, place = 0, 0
        for place in sorted(self._buckets):
            seen += self._buckets[place]
            if seen > rank:
                break
        return float(2 * _GROWTH**place / (_GROWTH + 1))

    def _put(self, value: float) -> None:
        if not _LOW <= value <= _HIGH:
            value = _LOW if value < _LOW else _HIGH
        place = math.ceil(math.log(value) * _PER_LOG)
        self._buckets[place] = self._buckets.get(place, 0) + 1

    def _spill(self) -> None:
        """Hold buckets from now on."""
        few, self._few = self._few, None
        for value in few or ():
            self._put(value)


class Buckets:
    """The cumulative buckets of a Prometheus histogram; between two bounds numbers count as evenly
    spread, as `histogram_quantile` takes them."""

    def __init__(self, counts: Mapping[float, float]) -> None:
        """`counts`: how many numbers are at most each upper bound, infinity included."""
        self._counts = sorted(counts.items())

    @property
    def count(self) -> float:
        """How many numbers there are."""
        return self._counts[-1][1] if self._counts else 0.0

    def at(self, share: float) -> float | None:
        """See `Quantiles.at`; known to the width of a bucket. Above the last finite bound: that
        bound."""
        if self.count <= 0:
            return None
        rank = share * self.count
        low, below = 0.0, 0.0
        for bound, count in self._counts:
            if count >= rank and count > below:
                if bound == math.inf:
                    return low
                return low + (bound - low) * max(0.0, rank - below) / (count - below)
            low, below = bound, count
        return low


class Inverse:
    """The quantiles of `1 / x` for those of `x`: speeds from times a token."""

    def __init__(self, times: Quantiles) -> None:
        self._times = times

    def at(self, share: float) -> float | None:
        """See `Quantiles.at`."""
        time = self._times.at(1 - share)
        return 1 / time if time else None
