"""A copy beside another drafter's draft: which of the two is verified this round.

Two rules. `agree`: a long match takes the block, a shorter one only where both propose the same
first two tokens. `replace`: a copy takes the block if it is at least as long as the other
draft, and never in a request under a grammar.

Each side learns from its own drafts only. A round that verified the copy is a plain round for
the other drafter, as if none of its own drafts had been accepted; a copy that was not found or
not taken is a plain round for the lookup, and no reason for the other drafter to hold back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from copyahead.contracts import Drafter, DraftSession
from copyahead.drafters.lookup import LookupDrafter, LookupSession
from copyahead.history.pool import Tokens
from copyahead.types import NO_DRAFT, Draft, Source, Token

Rule = Literal["agree", "replace"]

TAKES_BLOCK_AT = 8
"""Match length from which a copy needs no agreement, unless told otherwise."""

_COPIED = frozenset({Source.PROMPT, Source.OUTPUT, Source.PREDICTION, Source.SHARED})


def agree(copy: Draft, draft: Draft, takes_block_at: int = TAKES_BLOCK_AT) -> Draft:
    """The copy if its match is long enough, or if both have the same first two tokens."""
    if copy.tokens and copy.match_length >= takes_block_at:
        return copy
    agreed = len(draft) >= 2 and copy.tokens[:2] == draft.tokens[:2]
    return copy if agreed else draft


def replace(copy: Draft, draft: Draft) -> Draft:
    """The copy if it is at least as long as the other draft."""
    return copy if copy.tokens and len(copy) >= len(draft) else draft


class HybridSession:
    """A lookup session and another one for the same request. Implements `DraftSession`."""

    def __init__(
        self,
        copies: LookupSession,
        other: DraftSession,
        rule: Rule,
        *,
        takes_block_at: int = TAKES_BLOCK_AT,
        grammar: bool = False,
    ) -> None:
        """`grammar`: the request is under one."""
        self._copies = copies
        self._other = other
        self._rule = rule
        self._takes_block_at = takes_block_at
        self._grammar = grammar

    @property
    def window(self) -> int | None:
        """The copies' window."""
        return self._copies.window

    def propose(self, limit: int) -> Draft:
        """See `contracts.DraftSession.propose`."""
        return self.choose(self._other.propose(limit), limit)

    def choose(self, draft: Draft, limit: int) -> Draft:
        """What is verified when the other drafter proposes `draft`."""
        if limit <= 0:
            return NO_DRAFT
        if self._rule == "agree":
            return agree(self._copies.propose(limit), draft, self._takes_block_at)
        if self._grammar:
            return draft
        query = self._copies.query(limit, at_least=len(draft))
        return replace(self._copies.look_up(query), draft)

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """See `contracts.DraftSession.settle`."""
        copied = draft.source in _COPIED
        self._copies.settle(draft if copied else NO_DRAFT, emitted)
        self._other.settle(NO_DRAFT if copied else draft, emitted)

    def truncate(self, length: int) -> None:
        """See `contracts.DraftSession.truncate`."""
        self._copies.truncate(length)
        self._other.truncate(length)

    def close(self) -> None:
        """Close both."""
        self._copies.close()
        self._other.close()

    @property
    def other(self) -> DraftSession:
        """The other drafter's session."""
        return self._other


class HybridDrafter:
    """Opens a lookup session and another drafter's for each request. Implements `Drafter`."""

    def __init__(
        self,
        copies: LookupDrafter,
        other: Drafter,
        rule: Rule,
        *,
        takes_block_at: int = TAKES_BLOCK_AT,
    ) -> None:
        self._copies = copies
        self._other = other
        self._rule = rule
        self._takes_block_at = takes_block_at

    def open(
        self,
        prompt: Tokens,
        *,
        slot: int,
        tenant: str = "",
        prediction: Tokens = (),
        grammar: bool = False,
    ) -> HybridSession:
        """See `contracts.Drafter.open`. `grammar`: the request is under one."""
        other = self._other.open(cast("Sequence[Token]", prompt), slot=slot, tenant=tenant)
        try:
            copies = self._copies.open(prompt, slot=slot, tenant=tenant, prediction=prediction)
        except BaseException:
            other.close()
            raise
        return HybridSession(
            copies,
            other,
            self._rule,
            takes_block_at=self._takes_block_at,
            grammar=grammar,
        )

    def forget(self) -> None:
        """See `contracts.Drafter.forget`."""
        self._copies.forget()
        self._other.forget()

    def check(self) -> None:
        """Check both."""
        self._copies.check()
        self._other.check()

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """See `contracts.Drafter.propose_batch`: the other drafter's drafts in one call."""
        pairs = cast("Sequence[HybridSession]", sessions)
        drafts = self._other.propose_batch([pair.other for pair in pairs], limits)
        return [
            pair.choose(draft, limit)
            for pair, draft, limit in zip(pairs, drafts, limits, strict=True)
        ]
