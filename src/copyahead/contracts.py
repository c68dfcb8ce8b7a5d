"""The seams of copyahead: what a drafter, a length policy, and a draft session promise.

They stand below everything that implements or uses them, so that finding copies
(`drafters`), deciding how much of one to try (`policies`) and verifying it (`engine`) know
these contracts and not each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from copyahead.step_cost import StepCost
from copyahead.types import Draft, Token

Winner = Literal["longest", "newest", "furthest"]
"""Which of several matches is copied: the one with the longest match (ties to the newest),
the newest, or the one furthest back."""


class DraftSession(Protocol):
    """What drafts for one request. One round is `propose` (any number of times), `settle` (once).

    A session never decides a token: whatever it proposes, the text is the model's.
    """

    def propose(self, limit: int) -> Draft:
        """A draft of at most `limit` tokens for what comes after the history. Reads only.

        `limit` 0 gives the empty draft. Calling it again without `settle` gives the same draft.
        """
        ...

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """Close the round: `draft` was verified, and the request keeps `emitted`.

        `draft` is what was verified: the proposed draft or a `first(k)` of it; a plain step
        passes `NO_DRAFT`. `emitted` is the accepted tokens and, unless the block ended early
        (end of sequence, stop, budget), the bonus token. What was accepted is the common
        prefix of the two. This is the only way a session learns anything.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forget the history from token `length` on. Absolute and idempotent."""
        ...

    def close(self) -> None:
        """Give the session's row back. What it holds stays, for a next turn to attach to."""
        ...


class Drafter(Protocol):
    """Opens sessions, and proposes for many of them in one call."""

    def open(
        self,
        prompt: Sequence[Token],
        *,
        slot: int,
        tenant: str = "",
        prediction: Sequence[Token] = (),
    ) -> DraftSession:
        """A session for a request that has read `prompt`, in row `slot`.

        `prediction` is text that the answer is expected to repeat: it may be copied from, and
        is not part of the history.
        Nothing that is learnt from one `tenant`'s requests touches another's.

        Whatever row `slot` still holds and shares with `prompt` is kept: only the rest is
        indexed. No other session may be open in that row.
        """
        ...

    def forget(self) -> None:
        """Forget the text that requests have left, in rows and elsewhere. Needs no open session."""
        ...

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """`[s.propose(limit) for s, limit in zip(sessions, limits)]`, in one call.

        All sessions are this drafter's own. Drafts are ragged: an empty one shortens no other.
        """
        ...


class Query(msgspec.Struct, frozen=True):
    """What a length policy wants looked up this round."""

    keys: tuple[int, ...]
    """Lengths of the tails to look for, tried in order until one has a match."""
    min_match: int
    """A winner whose match is shorter than this is dropped."""
    max_tokens: int
    """Longest draft to return; at least 1."""
    winner: Winner = "longest"
    max_candidates: int = 32
    """How many places each key's search may visit, newest first."""


class LengthPolicy(Protocol):
    """How much of a copy to try: one small state machine a request."""

    def query(self, limit: int) -> Query | None:
        """What to look up for a round of at most `limit` (>= 1) drafted tokens; None: nothing."""
        ...

    def trim(self, length: int) -> int:
        """How many of a found copy's `length` (>= 1) tokens to draft; 0 drops it."""
        ...

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        """Learn from a round. `num_draft_tokens` is 0 for a plain step.

        `continues`: the tokens kept, bonus included, are all what the copied text holds
        there, so that the copy goes on from where the round ended.
        """
        ...


class Load(msgspec.Struct):
    """How busy the engine is and what its passes cost; written by the engine, read by policies."""

    active_requests: int = 1
    """Requests that take part in this step."""
    step_cost: StepCost = msgspec.field(default_factory=lambda: StepCost.linear(0.3))
    """What a pass costs now, by its rows; another object whenever it has changed."""
