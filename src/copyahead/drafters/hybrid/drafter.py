"""Copies beside a draft model: the passes of both rounds, their price, and what each side learns.

Which tokens are verified is for `rounds` (by length or agreement) and `arbitration` (by price) to
say. Here their wishes for tokens become passes of the draft model, one for all requests that want a
token at the same time, and the passes are paid for: a pass takes time from everybody, so of n
requests the m that take part pay n/m times their share of it, from the credit that the copies' rows
are paid from. What the credit cannot pay is not done (docs/policies.md has the proof of the bound).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import cache
from typing import Unpack, cast

import msgspec

from copyahead.config import HybridRule
from copyahead.contracts import ChainDrafter, DraftSession, Load, ModelUse, Opening
from copyahead.drafters.arbitration import Arbitration, Offer
from copyahead.drafters.drawn import DrawnRound
from copyahead.drafters.hybrid.session import ChainStatistics, HybridSession
from copyahead.drafters.lookup import LookupDrafter, LookupSession
from copyahead.drafters.priced import PricedDrafter, PricedSession
from copyahead.drafters.rounds import (
    TAKES_BLOCK_AT,
    Ask,
    Refusal,
    Reply,
    Round,
    agree,
    draft_chain,
    longer,
)
from copyahead.errors import ConfigError
from copyahead.history.pool import Tokens
from copyahead.types import NO_DRAFT, Draft, Token

MAX_TENANTS = 64
"""Tenants whose statistics are kept; the one longest unseen goes first."""


class HybridDrafter:
    """Opens a session of copies and one of the draft model. Implements `contracts.Drafter`."""

    def __init__(
        self,
        copies: LookupDrafter | PricedDrafter,
        other: ChainDrafter,
        rule: HybridRule,
        load: Load | None = None,
        *,
        takes_block_at: int = TAKES_BLOCK_AT,
    ) -> None:
        """`load`: the unit of prices, kept up to date by the engine.

        Raises ConfigError for `priced` beside copies that have no survivals.
        """
        if rule == "priced" and not isinstance(copies, PricedDrafter):
            raise ConfigError(
                "hybrid priced needs copies that know their chances: take --policy priced, "
                "or --hybrid first, longer or agree with this policy"
            )
        self._copies = copies
        self._other = other
        self._rule = rule
        self._load = load if load is not None else Load()
        self._takes_block_at = takes_block_at
        self.most_debt = copies.most_debt if isinstance(copies, PricedDrafter) else math.inf
        # By tenant; the one seen last at the end.
        self._statistics: dict[str, ChainStatistics] = {}

    def open(self, prompt: Tokens, *, slot: int, **asked: Unpack[Opening]) -> HybridSession:
        """See `contracts.Drafter.open`."""
        other = self._other.open(cast("Sequence[Token]", prompt), slot=slot, **asked)
        try:
            copies = self._copies.open(prompt, slot=slot, **asked)
        except BaseException:
            other.close()
            raise
        statistics = self._statistics_of(asked.get("tenant", ""))
        grammar = asked.get("grammar", False)
        return HybridSession(self, copies, other, statistics, grammar=grammar)

    def _statistics_of(self, tenant: str) -> ChainStatistics:
        found = self._statistics.pop(tenant, None) or ChainStatistics()
        if len(self._statistics) >= MAX_TENANTS:
            del self._statistics[next(iter(self._statistics))]
        self._statistics[tenant] = found
        return found

    def forget(self) -> None:
        """See `contracts.Drafter.forget`. What was learnt stays: it is no text."""
        self._copies.forget()
        self._other.forget()

    def check(self) -> None:
        """Check both."""
        self._copies.check()
        self._other.check()

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """See `contracts.Drafter.propose_batch`: in each pass of the model, all that ask for it."""
        mine = cast("Sequence[HybridSession]", sessions)
        drafts = [s.proposed(limit) for s, limit in zip(mine, limits, strict=True)]
        new = [place for place, draft in enumerate(drafts) if draft is None]
        found = self._propose([mine[p] for p in new], [limits[p] for p in new]) if new else []
        for place, draft in zip(new, found, strict=True):
            drafts[place] = draft
            mine[place].keep(limits[place], draft)
        return cast("list[Draft]", drafts)

    def _propose(self, sessions: list[HybridSession], limits: list[int]) -> list[Draft]:
        copies: list[Draft] = [NO_DRAFT] * len(sessions)
        if self._rule != "longer" or isinstance(self._copies, PricedDrafter):
            copies = self._copies.propose_batch([s.copies for s in sessions], limits)
        rounds = [
            self._round(session, copy, limit, len(sessions))
            for session, copy, limit in zip(sessions, copies, limits, strict=True)
        ]
        return self._run(sessions, rounds)

    # The rounds

    def _round(self, session: HybridSession, copy: Draft, limit: int, num_asking: int) -> Round:
        """The round of one session, not begun."""
        session.round = None
        if limit <= 0:
            return _nothing()
        if self._rule == "priced":
            offer = self._offer(session, copy, limit, num_asking)
            statistics = session.statistics
            if session.draws:
                share = max(self._load.active_requests, num_asking)
                session.round = DrawnRound(offer, statistics.drawn, session.fund, share)
            else:
                session.round = Arbitration(
                    offer, statistics.acceptance, statistics.worth, session.fund
                )
            return session.round.run()
        if self._rule == "longer":
            return self._longer(session, copy, limit)
        return self._fixed(session, copy, limit)

    def _offer(self, session: HybridSession, copy: Draft, limit: int, num_asking: int) -> Offer:
        copies = cast("PricedDrafter", self._copies)
        mine = cast("PricedSession", session.copies)
        return Offer(
            draft=copy,
            path=copies.path(mine),
            limit=limit,
            max_passes=self._other.max_chain,
            rate=copies.rate(mine),
            prices=mine.prices,
            price=cache(lambda rows: self._charges([rows] + [1] * (num_asking - 1))[0]),
            num_rows=lambda chain: self._other.num_rows(session.other, chain),
            affordable=session.affordable,
            continuation=lambda chain: copies.continuation(mine, chain),
            source=lambda origins: copies.source(mine, origins),
            end_tokens=copies.end_tokens,
        )

    def _fixed(self, session: HybridSession, copy: Draft, limit: int) -> Round:
        """`agree` and `first`: the model is asked where the copy does not take the block anyway."""
        if copy.tokens and (self._rule == "first" or copy.match_length >= self._takes_block_at):
            return copy
        chain = yield from draft_chain(min(limit, self._other.max_chain), session.affordable)
        if not copy.tokens or not chain.tokens:
            return chain
        _count_agreement(session.use, copy.tokens[0] == chain.tokens[0])
        return _compared(agree(copy, chain, self._takes_block_at))

    def _longer(self, session: HybridSession, copy: Draft, limit: int) -> Round:
        chain = yield from draft_chain(min(limit, self._other.max_chain), session.affordable)
        if session.grammar:
            return chain
        if isinstance(session.copies, LookupSession):
            copy = session.copies.look_up(session.copies.query(limit, at_least=len(chain)))
        if copy.tokens and chain.tokens:
            _count_agreement(session.use, copy.tokens[0] == chain.tokens[0])
        # How long the chain is may hang on what was drawn, and with it which of the two it is.
        return _compared(longer(copy, chain))

    # The passes

    def _run(self, sessions: list[HybridSession], rounds: list[Round]) -> list[Draft]:
        """Run all rounds to their ends, with one pass of the model at a time."""
        drafts = [NO_DRAFT] * len(rounds)
        asks: dict[int, Ask] = {}

        def go_on(place: int, reply: Reply | None) -> None:
            asks.pop(place, None)
            begun = rounds[place]
            try:
                asks[place] = next(begun) if reply is None else begun.send(reply)
            except StopIteration as done:
                drafts[place] = sessions[place].within(done.value)

        for place in range(len(rounds)):
            go_on(place, None)
        asked: set[int] = set()
        while asks:
            charges = self._takers(sessions, asks)
            for place in [place for place in asks if place not in charges]:
                go_on(place, Refusal.TOO_DEAR)
            if charges:
                for place, reply in self._pass(sessions, asks, charges).items():
                    go_on(place, reply)
                asked |= set(charges)
        self._close(sessions, asked)
        return drafts

    def _takers(self, sessions: list[HybridSession], asks: dict[int, Ask]) -> dict[int, float]:
        """Who takes part in the next pass, and what each is charged: all who can pay their share.

        When one steps back the others' shares grow, so it is asked again until all can.
        """
        rows = {
            place: self._other.num_rows(sessions[place].other, ask.chain)
            for place, ask in asks.items()
        }
        places = list(asks)
        while places:
            charges = self._charges([rows[place] for place in places])
            kept = [p for p, charge in zip(places, charges, strict=True) if charge <= asks[p].most]
            if len(kept) == len(places):
                return dict(zip(places, charges, strict=True))
            places = kept
        return {}

    def _charges(self, rows: Sequence[int]) -> list[float]:
        """What each of those who take part in a pass is charged, in steps; `rows` are theirs.

        The pass keeps all active requests waiting. What it takes for one row each is shared evenly,
        what further rows take by whose they are.
        """
        seconds, count = self._other.seconds, len(rows)
        waiting = max(self._load.active_requests, count)
        if self._load.pass_seconds <= 0.0:
            return [math.inf] * count
        a_second = waiting / self._load.pass_seconds
        alike = seconds(count)
        further = sum(rows) - count
        a_row = max(0.0, seconds(sum(rows)) - alike) / further if further > 0 else 0.0
        return [a_second * (alike / count + a_row * (own - 1)) for own in rows]

    def _pass(
        self, sessions: list[HybridSession], asks: dict[int, Ask], charges: dict[int, float]
    ) -> dict[int, Reply]:
        """One pass of the model; it is paid for before it runs, so that one that fails is, too."""
        for place, charge in charges.items():
            sessions[place].spent += charge
        began = time.perf_counter()
        found = self._other.extend(
            [sessions[place].other for place in charges], [asks[place].chain for place in charges]
        )
        seconds = (time.perf_counter() - began) / len(charges)
        replies: dict[int, Reply] = {}
        for place, token in zip(charges, found, strict=True):
            use = sessions[place].use
            use.num_passes += 1
            use.seconds += seconds
            replies[place] = Refusal.NOTHING if token is None else token
            if token is not None and token.draft_probs is not None:
                sessions[place].draws = True
        return replies

    def _close(self, sessions: list[HybridSession], asked: set[int]) -> None:
        """Count the round."""
        for place, session in enumerate(sessions):
            session.use.num_skips += place not in asked
            if session.round is not None:
                session.fund = session.round.fund
            if isinstance(session.round, Arbitration):
                for seen in session.round.seen[:1]:
                    if seen.token >= 0 and seen.copied >= 0:
                        _count_agreement(session.use, seen.token == seen.copied)


def _nothing() -> Round:
    """The round of a request that may not draft."""
    yield from ()
    return NO_DRAFT


def _count_agreement(use: ModelUse, agreed: bool) -> None:
    use.num_compared += 1
    use.num_agreed += agreed


def _compared(draft: Draft) -> Draft:
    """The draft, to be verified by comparing: whether it was chosen hangs on what was drawn."""
    return msgspec.structs.replace(draft, draft_probs=()) if draft.draft_probs else draft
