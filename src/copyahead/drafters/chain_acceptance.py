"""How likely a draft model's next token is kept: calibrated online, one such state a tenant.

The draft model's own probability says much about that, and so does the copy's next token: where
the two agree, both gain; where they differ, both lose. So the log odds of a token are a sum of the
two sides' log odds, weighed, and of small biases by how sure each side is and by how many tokens
of the model stand in a row. Every token whose fate is known moves them, as the statistics of
`priced` move: fast at first, and never so slowly that a text that changes is not followed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from enum import IntEnum

import msgspec


class Case(IntEnum):
    """What the copy says where the draft model says something."""

    ALONE = 0
    """Nothing: there is no copy."""
    AGREE = 1
    DIFFER = 2
    COPY = 3
    """The other side of DIFFER: whether the copy's token is the right one."""


_EDGES = (0.1, 0.25, 0.4, 0.6, 0.75, 0.9, 0.97)
_RUNS = (1, 2, 3, 5)
_LEAST = 0.005
"""Probabilities are kept this far from 0 and 1, where log odds have no end."""
_RATE, _OFFSET, _FLOOR = 1.5, 3.0, 0.03
"""An error moves a bias seen n times by rate / (n + offset) + floor, as in `kernels.voting`."""
_MAX_COUNT = 60
_WEIGHT_RATE = 0.01
_START = {
    Case.ALONE: (0.8, 0.0, 0.0),
    Case.AGREE: (0.5, 0.8, 0.5),
    Case.DIFFER: (0.6, -0.5, -0.7),
    Case.COPY: (-0.5, 0.7, -0.7),
}
"""Weights of the model's and the copy's log odds, and the first bias."""

Key = tuple[int, int, int]


class Estimate(msgspec.Struct):
    """One token's chance, and what it was made of."""

    case: Case
    chance: float
    log_odds: tuple[float, float]
    keys: tuple[Key, ...]


class ChainAcceptance:
    """The state of one tenant."""

    def __init__(self) -> None:
        self._weights = {case: list(start[:2]) for case, start in _START.items()}
        self._biases: dict[Key, list[float]] = {}

    def estimate(self, case: Case, probability: float, copy_chance: float, run: int) -> Estimate:
        """The chance of the model's token (of the copy's in `Case.COPY`), given all before it.

        `probability` is the draft model's own, `copy_chance` that of the copy's token, and
        `run` counts the model's tokens right before this one.
        """
        odds = _log_odds(probability), _log_odds(copy_chance) if case is not Case.ALONE else 0.0
        keys: tuple[Key, ...] = (
            (case, 0, 0),
            (case, 1, bisect_right(_EDGES, probability)),
            (case, 2, bisect_right(_RUNS, run)),
        )
        if case is not Case.ALONE:
            keys += ((case, 3, bisect_right(_EDGES, copy_chance)),)
        total = sum(w * o for w, o in zip(self._weights[case], odds, strict=True))
        total += _START[case][2] + sum(self._biases[k][0] for k in keys if k in self._biases)
        return Estimate(case, 1.0 / (1.0 + math.exp(-max(min(total, 30.0), -30.0))), odds, keys)

    def learn(self, estimate: Estimate, kept: bool) -> None:
        """The token that was estimated is known now: it was right, or it was not."""
        error = float(kept) - estimate.chance
        weights = self._weights[estimate.case]
        for place, odds in enumerate(estimate.log_odds):
            weights[place] += _WEIGHT_RATE * error * max(min(odds, 3.0), -3.0)
        for key in estimate.keys:
            bias = self._biases.setdefault(key, [0.0, 0.0])
            bias[1] = min(bias[1] + 1.0, _MAX_COUNT)
            bias[0] += error * (_RATE / (bias[1] + _OFFSET) + _FLOOR)


def _log_odds(probability: float) -> float:
    inside = min(max(probability, _LEAST), 1.0 - _LEAST)
    return math.log(inside / (1.0 - inside))
