"""What it was worth to ask the draft model, by the place of the draft it was asked at.

A *place* is known by how likely the copy's next token is there and by what the token before it was.
The worth is in tokens, as the arbitration values drafts, and conditional on the draft being right
up to there: what the whole round gained by asking, less what later passes of the round cost. The
price of the pass itself is not in it: that is known before it is asked for.

A place that does not pay is passed over, and looked at now and then: after 16 rounds that passed
it over, then 32, and so on, sooner where a look found the right token.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

COPY_EDGES = (0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97)
_MODEL_EDGES = (0.5, 0.8, 0.95)
FIRST, COPIED, DRAWN = 0, 1, 2
"""What the token before is: none of this draft, a copied one, one of the model (and how sure)."""

_PRIOR_WORTH = 0.6
"""Tokens that a pass is expected to gain where there is nothing to copy, before any was made."""
_PRIOR_WEIGHT = 2.0
_FLOOR = 0.1
"""A worth is the mean of about its last ten passes."""
_FIRST_LOOK, _LAST_LOOK = 16, 512

Place = tuple[int, int]


class Worth(msgspec.Struct):
    """What is known of one place."""

    tokens: float
    count: float = 0.0
    passed: int = 0
    """Rounds in which it was the best place to ask at, and did not pay, since it was last asked."""
    interval: int = _FIRST_LOOK
    """After so many of them comes a look."""

    @property
    def is_due(self) -> bool:
        """Whether it is time for a look."""
        return self.passed >= self.interval

    def learn(self, tokens: float) -> None:
        """The pass of a round was worth so many tokens."""
        self.count += 1.0
        self.tokens += max(1.0 / (self.count + _PRIOR_WEIGHT), _FLOOR) * (tokens - self.tokens)
        self.passed = 0

    def looked(self, right: bool) -> None:
        """A look found a token that was right, or not."""
        self.interval = max(1, self.interval // 4) if right else min(2 * self.interval, _LAST_LOOK)


class ChainWorth:
    """The state of one tenant."""

    def __init__(self) -> None:
        self._places: dict[Place, Worth] = {}

    def at(self, copy_chance: float, before: int, probability: float = 0.0) -> Worth:
        """What is known of a place. `copy_chance`: of the copy's next token, 0 without a copy.

        `before` is FIRST, COPIED or DRAWN, then with the model's `probability` of that token.
        """
        sureness = bisect_right(COPY_EDGES, copy_chance) if copy_chance > 0.0 else -1
        place = sureness, before + (bisect_right(_MODEL_EDGES, probability) if before > 1 else 0)
        found = self._places.get(place)
        if found is None:
            found = self._places[place] = Worth(_PRIOR_WORTH * (1.0 - copy_chance))
        return found
