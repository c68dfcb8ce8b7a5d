"""One request's session of copies beside its session of the draft model, and what both learn.

Each side learns from its own drafts only. A round that verified a copy is a plain round for the
draft model, and the other way round; what the copies had foretold is scored in any case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from copyahead.acceptance import num_accepted
from copyahead.contracts import DraftSession, ModelUse
from copyahead.drafters.arbitration import Arbitration
from copyahead.drafters.chain_acceptance import ChainAcceptance
from copyahead.drafters.chain_worth import ChainWorth
from copyahead.drafters.drawn import DrawnAcceptance, DrawnRound
from copyahead.drafters.lookup import LookupSession
from copyahead.drafters.priced import PricedSession
from copyahead.types import NO_DRAFT, Draft, Source, Token

if TYPE_CHECKING:
    from copyahead.drafters.hybrid.drafter import HybridDrafter


class ChainStatistics:
    """What is learnt of the draft model for one tenant."""

    def __init__(self) -> None:
        self.acceptance = ChainAcceptance()
        self.worth = ChainWorth()
        self.drawn = DrawnAcceptance()


class HybridSession:
    """A session of copies and one of the draft model. Implements `DraftSession`."""

    def __init__(
        self,
        drafter: HybridDrafter,
        copies: LookupSession | PricedSession,
        other: DraftSession,
        statistics: ChainStatistics,
        *,
        grammar: bool = False,
    ) -> None:
        """`grammar`: the request is under one."""
        self._drafter = drafter
        self.copies = copies
        self.other = other
        self.statistics = statistics
        self.grammar = grammar
        self.use = ModelUse()
        self.fund = 0.0
        """Steps that were missed so far because the draft model has not read the text."""
        self.spent = 0.0
        """Steps that this round's passes have cost."""
        self.draws = False
        """Whether the draft model draws its tokens."""
        self.round: Arbitration | DrawnRound | None = None
        self._proposed: tuple[int, Draft] | None = None

    @property
    def window(self) -> int | None:
        """The copies' window."""
        return self.copies.window

    def proposed(self, limit: int) -> Draft | None:
        """The round's draft, where it was made before for the same limit."""
        known = self._proposed
        return known[1] if known is not None and known[0] == limit else None

    def keep(self, limit: int, draft: Draft) -> None:
        """Remember the round's draft until it is settled."""
        self._proposed = limit, draft

    def affordable(self, num_draft_tokens: int) -> float:
        """Steps that a pass may cost in a round that will verify so many tokens."""
        if not isinstance(self.copies, PricedSession):
            return math.inf
        prices = self.copies.prices
        rows = float(prices[1 + num_draft_tokens] - prices[1])
        return self._drafter.most_debt + self.copies.credit - self.spent - rows

    def within(self, draft: Draft) -> Draft:
        """As much of a draft as the credit allows after what was spent."""
        count = len(draft)
        while count > 0 and self.affordable(count) < 0.0:
            count -= 1
        return draft.first(count)

    def propose(self, limit: int) -> Draft:
        """See `contracts.DraftSession.propose`."""
        return self._drafter.propose_batch([self], [limit])[0]

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """See `contracts.DraftSession.settle`."""
        self._learn(draft, emitted)
        spent, self.spent, self.round, self._proposed = self.spent, 0.0, None, None
        copied = draft.source is not None and draft.source is not Source.MODEL
        if isinstance(self.copies, PricedSession):
            self.copies.settle(draft, emitted, spent)
        else:
            self.copies.settle(draft if copied else NO_DRAFT, emitted)
        chain = draft.first(draft.parts[0][0]) if draft.parts else draft
        self.other.settle(NO_DRAFT if copied else chain, emitted)

    def _learn(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """What became of the tokens that the draft model was asked for."""
        if isinstance(self.round, Arbitration):
            _learn_passes(self.round, self.statistics, emitted)
        elif isinstance(self.round, DrawnRound):
            _learn_drawn(self.round, self.statistics.drawn, draft, emitted)

    def truncate(self, length: int) -> None:
        """See `contracts.DraftSession.truncate`."""
        self.round = self._proposed = None
        self.copies.truncate(length)
        self.other.truncate(length)

    def close(self) -> None:
        """Close both."""
        try:
            self.copies.close()
        finally:
            self.other.close()


def _learn_passes(done: Arbitration, statistics: ChainStatistics, emitted: Sequence[Token]) -> None:
    worth = statistics.worth
    worth.passed += done.passed_over
    for seen in done.seen:
        at = len(seen.prefix)
        known = at < len(emitted) and tuple(emitted[:at]) == seen.prefix
        right = known and emitted[at] == seen.token
        if seen.look:
            worth.looked(right and seen.price * done.rate < seen.survival)
        if known:
            # What was expected of a token of the model counts as far as it came true.
            taken = seen.estimate is not None and seen.is_taken
            expected = seen.estimate.chance if seen.estimate is not None else 1.0
            seen.worth.learn(seen.gain * (right / max(expected, 0.05) if taken else 1.0))
        if known and seen.estimate is not None:
            statistics.acceptance.learn(seen.estimate, right)
        if known and seen.copy_estimate is not None:
            statistics.acceptance.learn(seen.copy_estimate, emitted[at] == seen.copied)


def _learn_drawn(
    done: DrawnRound, acceptance: DrawnAcceptance, draft: Draft, emitted: Sequence[Token]
) -> None:
    if len(draft) < done.drawn:
        return
    kept = num_accepted(draft.tokens, emitted)
    for position, place in enumerate(done.places()[: min(kept + 1, len(emitted))]):
        acceptance.learn(place, position < kept)
    if done.look:
        acceptance.look.looked(kept > 0 and done.price * done.rate < 1.0)
    elif done.passed:
        acceptance.look.passed += 1
