"""`priced` beside a draft model whose tokens are drawn: decided before the first is drawn.

Rejection keeps the target's distribution only where nothing that is done to a drawn token hangs on
its value. So whether the model drafts this round, and how many tokens, comes from what its drafts
were worth so far; what was drawn is verified, all of it. Behind the last drawn token a copy may go
on: it is a function of the past, and takes no drawn token out.
"""

from __future__ import annotations

from bisect import bisect_right

from copyahead.contracts import NextToken
from copyahead.drafters.arbitration import MOST_A_LOOK, Offer, best_length
from copyahead.drafters.chain_worth import COPY_EDGES, Looks
from copyahead.drafters.rounds import Ask, Round, chain_of
from copyahead.types import Draft

_PRIOR, _PRIOR_WEIGHT, _FLOOR = 0.6, 2.0, 0.03

Place = tuple[int, int]


class DrawnAcceptance:
    """How often drawn tokens are kept, by the copy's sureness and the place in the chain."""

    def __init__(self) -> None:
        self._rates: dict[Place, list[float]] = {}
        self.look = Looks()

    def rate(self, place: Place) -> float:
        """The share that was kept, of those that were reached."""
        return self._rates.get(place, (_PRIOR, 0.0))[0]

    def learn(self, place: Place, kept: bool) -> None:
        """A drawn token was reached, and kept or not."""
        rate = self._rates.setdefault(place, [_PRIOR, 0.0])
        rate[1] += 1.0
        rate[0] += max(1.0 / (rate[1] + _PRIOR_WEIGHT), _FLOOR) * (float(kept) - rate[0])


class DrawnRound:
    """One round of one request."""

    def __init__(self, offer: Offer, acceptance: DrawnAcceptance, fund: float, share: int) -> None:
        """`share`: of the tokens that the limit allows, how many requests share them."""
        self._offer = offer
        self._acceptance = acceptance
        self._most = min(offer.max_passes, offer.limit // max(1, share))
        chance = offer.path.chances[0] if offer.path.chances else 0.0
        self._sureness = bisect_right(COPY_EDGES, chance) if chance > 0.0 else -1
        self.rate = offer.rate
        self.price = offer.price(1)
        self.fund = fund
        self.look = False
        self.passed = False
        self.drawn = 0

    def places(self) -> list[Place]:
        """Where the tokens that were drawn stand."""
        return [(self._sureness, position) for position in range(self.drawn)]

    def run(self) -> Round:
        """See `rounds`."""
        length, most = self._plan()
        found: list[NextToken] = []
        while len(found) < length:
            chain = tuple(token.token for token in found)
            afford = self._offer.affordable(len(chain) + 1)
            reply = yield Ask(chain, min(afford, most) if not found else afford)
            if not isinstance(reply, NextToken):
                break
            self.fund = 0.0
            found.append(reply)
        self.drawn = len(found)
        if not found:
            return self._offer.draft
        return self._go_on(chain_of(found))

    def _plan(self) -> tuple[int, float]:
        """How many tokens to draw, and what the first pass may cost at most."""
        offer = self._offer
        if self._most < 1 or offer.affordable(1) <= 0.0:
            return 0, 0.0
        unread = offer.num_rows(()) - 1
        chain_worth, length = self._chain_worth()
        copy_worth, _ = best_length(offer, _survivals(offer.path.chances))
        gain = (chain_worth - copy_worth) / offer.rate
        reading = offer.price(1 + unread) - offer.price(1)
        if length and gain > 0.0:
            if reading <= gain + self.fund:
                return length, gain + self.fund + offer.price(1)
            self.fund += gain
            return 0, 0.0
        self.passed = True
        if self._acceptance.look.is_due:
            self.look = True
            return 1, MOST_A_LOOK
        return 0, 0.0

    def _chain_worth(self) -> tuple[float, int]:
        """What the best chain is worth by what chains were, each pass over one row; its length."""
        offer = self._offer
        price, prices = offer.price(1), offer.prices
        survival, worth, best, length = 1.0, 0.0, 0.0, 0
        for position in range(self._most):
            survival *= self._acceptance.rate((self._sureness, position))
            further = float(prices[2 + position] - prices[1 + position])
            worth += survival - offer.rate * (further + price)
            if worth > best:
                best, length = worth, position + 1
        return best, length

    def _go_on(self, chain: Draft) -> Draft:
        """The chain, and the copy that follows it as far as that pays."""
        offer = self._offer
        room = offer.limit - len(chain)
        path = offer.continuation(chain.tokens)
        if room <= 0 or not path.tokens or chain.tokens[-1] in offer.end_tokens:
            return chain
        survival = 1.0
        for place in self.places():
            survival *= self._acceptance.rate(place)
        survivals = [survival, *(survival * s for s in _survivals(path.chances))]
        # As many rows as the chain has are there anyway.
        _, count = best_length(offer, survivals[1:], rows=1 + len(chain))
        count = min(count, room)
        while count > 0 and offer.affordable(len(chain) + count) < 0.0:
            count -= 1
        if count == 0:
            return chain
        return Draft(
            tokens=chain.tokens + path.tokens[:count],
            source=chain.source,
            parts=((len(chain), offer.source(path.origins[:count])),),
            draft_probs=chain.draft_probs,
        )


def _survivals(chances: tuple[float, ...]) -> list[float]:
    found, survival = [], 1.0
    for chance in chances:
        survival *= chance
        found.append(survival)
    return found
