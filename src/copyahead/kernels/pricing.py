"""What rows cost, how fast a request goes, and what it may still lose: the money side of `priced`.

A *price list* is one flat array that holds everything a round needs of the step cost and of the
policy's options.
"""

from __future__ import annotations

from typing import Any

from copyahead.kernels.compiled import compiled
from copyahead.kernels.features import BREAKS_EXPECTED, BREAKS_SEEN, RATE_COST, RATE_TOKENS, Floats
from copyahead.kernels.index import MAX_COPY

# Prices: T(0..66), then the cheapest further row from 1..66 rows on, then what follows.
MAX_ROWS = MAX_COPY + 2
CHEAPEST = MAX_ROWS + 1
FASTEST = 2 * CHEAPEST  # The largest n / T(n): no request can be faster.
CAUTION = FASTEST + 1
CREDIT, CREDIT_CAP, TRICKLE, MAX_DRAFT = CAUTION + 1, CAUTION + 2, CAUTION + 3, CAUTION + 4
NUM_PRICES = CAUTION + 5

# What one request emitted in its last rounds, and what they cost.
OWN_TOKENS, OWN_COST = 0, 1
NUM_OWN = 2

RATE_DECAY = 0.9995
"""A tenant's rate is that of about its last 2,000 rounds."""
OWN_RATE_DECAY = 0.99
"""A request's own rate is that of about its last 100 rounds. Without it the slowest copy of the
demo model reaches 0.88 of the best preset instead of 0.92 (docs/policies.md)."""
OWN_RATE_PRIOR = 100.0
"""Steps that the tenant's rate weighs beside it: it decides while a request is young."""
BREAKS_DECAY = 0.9995
"""Breaks are those of about the last 2,000 tokens of running copies."""
BREAKS_PRIOR = 0.5
"""Breaks, seen and foretold, that a tenant starts with; 1 was tried (docs/what-did-not-work.md)."""
LEAST_BREAKS = 0.1
"""The ratio of odds falls no lower, so that a few breaks always count."""


@compiled("void(float64[::1])")
def find_cheapest(prices: Floats) -> None:
    """Fill in the cheapest further row and the fastest speed, from T."""
    fastest = 1.0
    for rows in range(1, MAX_ROWS + 1):
        if rows <= MAX_COPY + 1:
            fastest = max(fastest, rows / prices[rows])
        cheapest = prices[rows] * MAX_ROWS
        for more in range(rows + 1, MAX_ROWS + 1):
            cheapest = min(cheapest, (prices[more] - prices[rows]) / (more - rows))
        if rows < MAX_ROWS:
            prices[CHEAPEST + rows - 1] = cheapest
    prices[FASTEST] = fastest


@compiled("float64(float64[::1], float64[::1], float64[::1])")
def running_rate(model: Floats, own: Floats, prices: Floats) -> Any:
    """Tokens a step: the request's own, for as long as it is young drawn to its tenant's."""
    tenants = model[RATE_TOKENS] / model[RATE_COST]
    rate = (OWN_RATE_PRIOR * tenants + own[OWN_TOKENS]) / (OWN_RATE_PRIOR + own[OWN_COST])
    return min(rate, prices[FASTEST])


@compiled("float64(float64[::1])")
def break_odds(model: Floats) -> Any:
    """How much likelier running copies break than the tables say: a ratio of odds."""
    return (BREAKS_PRIOR + model[BREAKS_SEEN]) / (BREAKS_PRIOR + model[BREAKS_EXPECTED])


@compiled("void(float64[::1], float64, boolean)")
def note_copied(model: Floats, chance: float, broke: bool) -> None:
    """Count a token of a running copy that was foretold with probability `chance`."""
    seen = BREAKS_DECAY * model[BREAKS_SEEN] + (1.0 if broke else 0.0)
    expected = BREAKS_DECAY * model[BREAKS_EXPECTED] + 1.0 - chance
    # However long nothing broke, a few breaks are news.
    most = (BREAKS_PRIOR + seen) / LEAST_BREAKS - BREAKS_PRIOR
    model[BREAKS_SEEN] = seen
    model[BREAKS_EXPECTED] = min(expected, most)


@compiled("float64(float64, int64, float64, float64[::1])")
def charge(credit: float, num_emitted: int, cost: float, prices: Floats) -> Any:
    """The credit after a round: tokens emitted less its cost, and the trickle, capped."""
    earned = max(num_emitted, 1)
    return min(credit + earned - cost + prices[TRICKLE] * earned, prices[CREDIT_CAP])


@compiled("void(float64[::1], float64[::1], int64, float64)")
def note_round(model: Floats, own: Floats, num_emitted: int, cost: float) -> None:
    """Count a round's tokens and cost into both rates."""
    model[RATE_TOKENS] = RATE_DECAY * model[RATE_TOKENS] + num_emitted
    model[RATE_COST] = RATE_DECAY * model[RATE_COST] + cost
    own[OWN_TOKENS] = OWN_RATE_DECAY * own[OWN_TOKENS] + num_emitted
    own[OWN_COST] = OWN_RATE_DECAY * own[OWN_COST] + cost


@compiled("int64(int64, float64, float64[::1])")
def affordable(count: int, credit: float, prices: Floats) -> Any:
    """The longest draft, at most `count`, that a round may lose without breaking the bound."""
    while count > 0 and credit - (prices[1 + count] - 1.0) < -prices[CREDIT]:
        count -= 1
    return count
