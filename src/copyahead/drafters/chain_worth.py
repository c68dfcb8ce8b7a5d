"""What it was worth to ask the draft model, by the place of the draft it was asked at.

A *place* is known by how likely the copy's next token is there and by what the token before it was.
The worth is in tokens, as the arbitration values drafts, and conditional on the draft being right
up to there: what the whole round gained by asking, less what later passes of the round cost. The
price of the pass itself is not in it: that is known before it is asked for. A place that was seldom
asked at is thought to be worth what others were, in proportion.

Where no place pays there is a look now and then, at the best of them: after 16 rounds without a
pass, then 32, and so on, sooner where a look found what would pay.
"""

from __future__ import annotations

from bisect import bisect_right

COPY_EDGES = (0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97)
_MODEL_EDGES = (0.5, 0.8, 0.95)
FIRST, COPIED, DRAWN = 0, 1, 2
"""What the token before is: none of this draft, a copied one, one of the model (and how sure)."""

_PRIOR_WORTH = 0.6
"""Tokens that a pass is expected to gain where there is nothing to copy, before any was made."""
_PRIOR_WEIGHT = 4.0
_FLOOR = 0.03
"""A worth is the mean of about its last thirty passes."""
_MOST_RATIO = 4.0
_FIRST_LOOK, _LAST_LOOK = 16, 512

Place = tuple[int, int]


class Worth:
    """What is known of one place."""

    def __init__(self, everywhere: ChainWorth, prior: float) -> None:
        self._everywhere = everywhere
        self._prior = prior
        self._mean = 0.0
        self._count = 0.0

    @property
    def tokens(self) -> float:
        """What a pass is expected to gain, if the draft is right up to here."""
        expected = self._prior * self._everywhere.scale
        share = self._count / (self._count + _PRIOR_WEIGHT)
        return share * self._mean + (1.0 - share) * expected

    def learn(self, tokens: float) -> None:
        """The pass of a round was worth so many tokens."""
        self._count += 1.0
        self._mean += max(1.0 / self._count, _FLOOR) * (tokens - self._mean)
        self._everywhere.learn(tokens / max(self._prior, 0.02))


class Looks:
    """When to look again at a draft model that did not pay."""

    def __init__(self) -> None:
        self.passed = 0
        """Rounds without a pass, because none paid, since the last look."""
        self._interval = _FIRST_LOOK

    @property
    def is_due(self) -> bool:
        """Whether it is time for a look."""
        return self.passed >= self._interval

    def looked(self, promising: bool) -> None:
        """A look found a token that was right, at a price that such are worth; or it did not."""
        self.passed = 0
        sooner, later = max(1, self._interval // 4), min(2 * self._interval, _LAST_LOOK)
        self._interval = sooner if promising else later


class ChainWorth(Looks):
    """The state of one tenant."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[Place, Worth] = {}
        self.scale = 1.0
        """What passes gained, in units of what was expected before there were any."""
        self._count = 0.0

    def learn(self, ratio: float) -> None:
        """A pass gained `ratio` times what was expected before there were any."""
        self._count += 1.0
        rate = max(1.0 / (self._count + _PRIOR_WEIGHT), _FLOOR)
        self.scale = max(0.0, self.scale + rate * (min(ratio, _MOST_RATIO) - self.scale))

    def at(self, copy_chance: float, before: int, probability: float = 0.0) -> Worth:
        """What is known of a place. `copy_chance`: of the copy's next token, 0 without a copy.

        `before` is FIRST, COPIED or DRAWN, then with the model's `probability` of that token.
        """
        sureness = bisect_right(COPY_EDGES, copy_chance) if copy_chance > 0.0 else -1
        place = sureness, before + (bisect_right(_MODEL_EDGES, probability) if before > 1 else 0)
        found = self._places.get(place)
        if found is None:
            found = self._places[place] = Worth(self, _PRIOR_WORTH * (1.0 - copy_chance))
        return found
