"""`priced` beside a draft model: every token from whichever side is worth most, passes counted.

A draft is built token by token. What is there costs nothing: the copy, as far as it was followed.
A pass of the draft model may be asked for at any place along it, so all mixtures come out of one
rule: a chain alone, a chain that goes on as a copy, a copy that the model goes on with, a copy
whose one doubtful token the model was asked about.

- *Where to ask*: at the place where the expected worth of asking (`chain_worth`) is furthest above
  the price of the pass, if it is above it anywhere. A copy that is certain leaves nothing to gain.
- *What to take*: where both sides have a token, the one whose draft, with what follows it, is worth
  more by calibrated chances (`chain_acceptance`). After a token of the model the copy is looked for
  anew, behind it.
- *How much to verify*: as `priced` decides it, over the survivals of the mixture.

Reading what the model has not read yet (the prompt, or what was written while it was not asked)
serves all later rounds, so no single one need pay for it: it is read when what the request has
missed without it comes to its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from copyahead.contracts import NextToken
from copyahead.drafters.chain_acceptance import Case, ChainAcceptance, Estimate
from copyahead.drafters.chain_worth import COPIED, DRAWN, FIRST, ChainWorth, Worth
from copyahead.drafters.priced import NO_PATH, CopyPath, Prices
from copyahead.drafters.rounds import Ask, Refusal, Reply, Round
from copyahead.kernels import pricing
from copyahead.types import NO_DRAFT, Draft, Source, Token

MOST_A_LOOK = 4.0
"""Steps that a look may cost: no prompt is read for one that costs more."""
_LEAST_SURVIVAL = 0.05
"""Further along a draft no pass is asked for."""


class Seen(msgspec.Struct):
    """One pass of a round, for `settle` to learn from."""

    prefix: tuple[Token, ...]
    worth: Worth
    before: float
    """What the draft was worth without it, in tokens."""
    survival: float
    price: float
    look: bool
    token: Token = -1
    """What the model said; -1 for nothing."""
    estimate: Estimate | None = None
    copied: Token = -1
    """What the copy has there; -1 for nothing."""
    copy_estimate: Estimate | None = None
    is_taken: bool = False
    """Whether the draft goes on with what the model said."""
    gain: float = 0.0
    """What the round gained by it, known at its end."""


class Site(msgspec.Struct):
    """A place of the draft to ask at."""

    skip: int
    """How many tokens of the copy come before it."""
    survival: float
    worth: Worth
    price: float
    surplus: float
    """Its worth less its price, in tokens."""


class Offer(msgspec.Struct):
    """What a round starts from."""

    draft: Draft
    """The copies' own draft."""
    path: CopyPath
    """The copy as far as it was followed."""
    limit: int
    max_passes: int
    rate: float
    """Tokens a step, that is what a step of time is worth."""
    prices: Prices
    price: Callable[[int], float]
    """Steps that this request is charged for a pass in which it has so many rows."""
    num_rows: Callable[[Sequence[Token]], int]
    affordable: Callable[[int], float]
    """Steps that a pass may cost in a round that will verify so many tokens."""
    continuation: Callable[[Sequence[Token]], CopyPath]
    source: Callable[[Sequence[int]], Source]
    end_tokens: frozenset[Token]


def best_length(offer: Offer, survivals: Sequence[float], rows: int = 1) -> tuple[float, int]:
    """What the best first part of a draft is worth, in tokens, and how long it is.

    As `kernels.priced` prices a copy. `rows` come before it.
    """
    caution = float(offer.prices[pricing.CAUTION])
    worth, best, count = 0.0, 0.0, 0
    costs = offer.prices[rows : pricing.MAX_ROWS].tolist()
    for position, survival in enumerate(survivals[: len(costs) - 1], start=1):
        asked = offer.rate * (1.0 + caution * (1.0 - survival))
        worth += survival - asked * (costs[position] - costs[position - 1])
        if worth > best:
            best, count = worth, position
    return best, count


class Arbitration:
    """One round of one request."""

    def __init__(
        self, offer: Offer, acceptance: ChainAcceptance, worth: ChainWorth, fund: float
    ) -> None:
        """`fund`: steps that the request has missed because its text was not read."""
        self._offer = offer
        self._acceptance = acceptance
        self._worth = worth
        self._tokens: list[Token] = []
        self._chances: list[float] = []
        self._survivals: list[float] = []
        self._origins: list[int] = []
        """Of copied tokens; -1 for one of the model."""
        self._rest = offer.path
        self._run = 0
        self._probability = 0.0
        self.rate = offer.rate
        self.fund = fund
        self.seen: list[Seen] = []
        self.passed_over = False
        """Whether no pass was run because none paid."""

    def run(self) -> Round:
        """See `rounds`."""
        while len(self.seen) < self._offer.max_passes:
            site = self._best_site()
            if site is None:
                break
            ask = self._ask(site)
            if ask is None:
                break
            reply = yield ask
            if reply is Refusal.TOO_DEAR:
                self.seen.pop()
                break
            if not self._take(site, ask.chain, reply):
                break
        self._credit_passes()
        return self._draft()

    # Where to ask

    def _best_site(self) -> Site | None:
        """The place with the most surplus; None where there is no room for a token."""
        offer, best = self._offer, None
        room = min(offer.limit, pricing.MAX_ROWS - 2) - len(self._tokens)
        if room <= 0 or (self._tokens and self._tokens[-1] in offer.end_tokens):
            return None
        survival = self._survivals[-1] if self._survivals else 1.0
        rows = offer.num_rows(self._tokens)
        least = offer.rate * offer.price(rows)
        chances = self._rest.chances
        for skip in range(min(room, len(chances) + 1)):
            if skip:
                survival *= chances[skip - 1]
                if survival < _LEAST_SURVIVAL or self._rest.tokens[skip - 1] in offer.end_tokens:
                    break
            chance = chances[skip] if skip < len(chances) else 0.0
            worth = self._worth_at(skip, chance)
            # No place further along is cheaper.
            if best is not None and survival * worth.tokens - least <= best.surplus:
                continue
            price = offer.price(rows + skip)
            surplus = survival * worth.tokens - offer.rate * price
            if best is None or surplus > best.surplus:
                best = Site(skip, survival, worth, price, surplus)
        return best

    def _worth_at(self, skip: int, copy_chance: float) -> Worth:
        if skip or (self._tokens and not self._run):
            return self._worth.at(copy_chance, COPIED)
        if self._tokens:
            return self._worth.at(copy_chance, DRAWN, self._probability)
        return self._worth.at(copy_chance, FIRST)

    def _ask(self, site: Site) -> Ask | None:
        """The wish for a token at `site`; None where it is not worth its price, or not paid."""
        offer = self._offer
        chain = (*self._tokens, *self._rest.tokens[: site.skip])
        most = offer.affordable(len(chain) + 1)
        worth = site.survival * site.worth.tokens / offer.rate
        look = False
        if site.surplus <= 0.0:
            # Was it the reading up alone that made it too dear?
            unread = 0 if self.seen else offer.num_rows(()) - 1
            base = offer.price(max(1, offer.num_rows(chain) - unread))
            missed = worth - base
            if missed > 0.0 and unread:
                self.fund += missed
                worth += self.fund
            if site.price > worth:
                look = not self.seen and self._worth.is_due
                if not look:
                    self.passed_over = not self.seen and missed <= 0.0
                    return None
                worth = MOST_A_LOOK
        before, _ = self._best(self._survivals_to_the_end())
        self.seen.append(Seen(chain, site.worth, before, site.survival, site.price, look))
        return Ask(chain, min(most, worth))

    # What to take

    def _take(self, site: Site, chain: tuple[Token, ...], reply: Reply) -> bool:
        """Go on with what the model said; whether there is anything to go on with."""
        seen = self.seen[-1]
        self.fund = 0.0
        if not isinstance(reply, NextToken):
            return False
        for _ in range(site.skip):
            self._copy_one(self._rest.chances[0])
        rest, run = self._rest, self._run
        seen.token = token = reply.token
        seen.is_taken = True
        if not rest.tokens:
            seen.estimate = self._acceptance.estimate(Case.ALONE, reply.probability, 0.0, run)
            self._append(token, reply.probability, seen.estimate.chance)
            return True
        seen.copied = rest.tokens[0]
        copied = rest.chances[0]
        if rest.tokens[0] == token:
            seen.estimate = self._acceptance.estimate(Case.AGREE, reply.probability, copied, run)
            self._copy_one(max(seen.estimate.chance, 1e-6))
            self._run, self._probability = run + 1, reply.probability
            return True
        self._choose(seen, reply, copied)
        return True

    def _choose(self, seen: Seen, reply: NextToken, copied: float) -> None:
        """The two sides differ: take the one whose draft is worth more."""
        run = self._run
        mine = self._acceptance.estimate(Case.DIFFER, reply.probability, copied, run)
        other = self._acceptance.estimate(Case.COPY, reply.probability, copied, run)
        seen.estimate, seen.copy_estimate = mine, other
        scale = min(1.0, 1.0 / (mine.chance + other.chance))
        kept, rest = list(self._survivals), self._rest
        start = kept[-1] if kept else 1.0
        copy_worth, _ = self._best(
            [*kept, *_survivals(start * other.chance * scale, rest.chances[1:])]
        )
        following = self._following((*self._tokens, reply.token))
        chain_worth, _ = self._best(
            [*kept, *_survivals(start * mine.chance * scale, following.chances)]
        )
        seen.is_taken = copy_worth <= chain_worth
        if not seen.is_taken:
            self._copy_one(other.chance * scale)
        else:
            self._append(reply.token, reply.probability, mine.chance * scale, following)

    def _copy_one(self, chance: float) -> None:
        """Take the copy's next token."""
        rest = self._rest
        self._push(rest.tokens[0], chance, rest.origins[0])
        self._rest = CopyPath(rest.tokens[1:], rest.chances[1:], rest.origins[1:])
        self._run = 0

    def _append(
        self, token: Token, probability: float, chance: float, following: CopyPath | None = None
    ) -> None:
        """Take the model's token, and the copy that follows it."""
        self._push(token, chance, -1)
        self._run, self._probability = self._run + 1, probability
        self._rest = self._following(self._tokens) if following is None else following

    def _following(self, tokens: Sequence[Token]) -> CopyPath:
        if tokens[-1] in self._offer.end_tokens:
            return NO_PATH
        return self._offer.continuation(tokens)

    def _push(self, token: Token, chance: float, origin: int) -> None:
        self._tokens.append(token)
        self._survivals.append((self._survivals[-1] if self._survivals else 1.0) * chance)
        self._origins.append(origin)

    # How much to verify

    def _survivals_to_the_end(self) -> list[float]:
        start = self._survivals[-1] if self._survivals else 1.0
        return [*self._survivals, *_survivals(start, self._rest.chances)[1:]]

    def _best(self, survivals: Sequence[float]) -> tuple[float, int]:
        return best_length(self._offer, survivals)

    def _most_saved(self, survivals: Sequence[float], limit: int) -> int:
        """The length, within a limit that forbids the best one, that saves most steps."""
        prices = self._offer.prices
        saved, best, count = 0.0, 0.0, 0
        for position, survival in enumerate(survivals[:limit], start=1):
            saved += survival - float(prices[position + 1] - prices[position])
            if saved > best:
                best, count = saved, position
        return count

    def _credit_passes(self) -> None:
        """Say what each pass of the round gained: what came of it, less what it led to."""
        after, _ = self._best(self._survivals_to_the_end())
        later = 0.0
        for seen in reversed(self.seen):
            seen.gain = (after - seen.before - self._offer.rate * later) / seen.survival
            later += seen.price

    def _draft(self) -> Draft:
        """What is verified: the copies' own draft where the model had no say."""
        offer = self._offer
        if not any(seen.token >= 0 for seen in self.seen):
            return offer.draft
        survivals = self._survivals_to_the_end()
        _, count = self._best(survivals)
        if count > offer.limit:
            count = self._most_saved(survivals, offer.limit)
        tokens = (*self._tokens, *self._rest.tokens)[:count]
        if not tokens:
            return NO_DRAFT
        origins = [*self._origins, *self._rest.origins]
        return self._made(tokens, tuple(survivals[:count]), origins)

    def _made(
        self, tokens: tuple[Token, ...], survivals: tuple[float, ...], origins: Sequence[int]
    ) -> Draft:
        """A draft with its parts: each a run of copied tokens, or of the model's."""
        parts: list[tuple[int, Source]] = []
        start = 0
        for end in range(1, len(tokens) + 1):
            if end == len(tokens) or (origins[end] < 0) != (origins[start] < 0):
                copied = origins[start] >= 0
                source = self._offer.source(origins[start:end]) if copied else Source.MODEL
                parts.append((start, source))
                start = end
        path = self._offer.path
        begins = len(path.tokens) > 0 and origins[0] >= 0
        return Draft(
            tokens=tokens,
            source=parts[0][1],
            match_length=path.match_length if begins else 0,
            survivals=survivals,
            origin=origins[0] if begins else -1,
            parts=tuple(parts[1:]),
        )


def _survivals(first: float, chances: Sequence[float]) -> list[float]:
    """`first`, and what is left of it after each of `chances`."""
    found = [first]
    for chance in chances:
        found.append(found[-1] * chance)
    return found
