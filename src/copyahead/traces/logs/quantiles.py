"""Quantiles of many numbers in little memory."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Protocol

import numpy as np

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

    __slots__ = ("_buckets", "_latest", "_num_counted")

    def __init__(self) -> None:
        self._latest: array[float] = array("d")
        """Numbers that are in no bucket yet, at most `EXACT`."""
        self._buckets: dict[int, int] = {}
        self._num_counted = 0

    @property
    def count(self) -> int:
        """How many numbers were added."""
        return self._num_counted + len(self._latest)

    @property
    def num_held(self) -> int:
        """How many numbers and buckets are held."""
        return len(self._buckets) + len(self._latest)

    def add(self, value: float) -> None:
        """Count `value`."""
        if value < math.inf:
            latest = self._latest
            if len(latest) == EXACT:
                self._count()
            latest.append(value)

    def merge(self, other: Sketch) -> None:
        """Count all that `other` has counted."""
        for value in other._latest:
            self.add(value)
        for place, count in other._buckets.items():
            self._buckets[place] = self._buckets.get(place, 0) + count
        self._num_counted += other._num_counted

    def at(self, share: float) -> float | None:
        """See `Quantiles.at`. Of few numbers it is exact, and lies between two where `share` does;
        of many it is at most ERROR off."""
        if not self.count:
            return None
        if not self._num_counted:
            return float(np.quantile(self._latest, share))
        self._count()
        rank, seen, place = share * (self.count - 1), 0, 0
        for place in sorted(self._buckets):
            seen += self._buckets[place]
            if seen > rank:
                break
        return float(2 * _GROWTH**place / (_GROWTH + 1))

    def _count(self) -> None:
        """Put the latest numbers into buckets, all at once."""
        values = np.clip(np.array(self._latest), _LOW, _HIGH)
        places, counts = np.unique(np.ceil(np.log(values) * _PER_LOG), return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            self._buckets[int(place)] = self._buckets.get(int(place), 0) + count
        self._num_counted += len(values)
        del self._latest[:]


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
