"""What a length policy promises, what it asks for, and what it is told about the engine."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from copyahead.step_cost import StepCost

Winner = Literal["longest", "newest", "furthest"]
"""Which of several matches is copied: the one with the longest match (ties to the newest),
the newest, or the one furthest back."""


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
    """How much of a copy to try: one small state machine a request.

    A round is `query`, then `trim` where something was found, then `settle`. Only `settle` changes
    the state.
    """

    @property
    def window(self) -> int | None:
        """Longest draft that it would ask for now, for counters and logs; None: it has no window.

        A window is a length that grows while copies hold and shrinks when they break.
        """
        ...

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        """What to look up for a round of at most `limit` (>= 1) drafted tokens; None: nothing.

        `at_least`: another drafter has a draft of this length, and a shorter copy would not take
        its place. So the query asks for as many tokens or more, or is None. Asked again before
        `settle`, the policy answers the same.
        """
        ...

    def trim(self, length: int) -> int:
        """How many of a found copy's `length` (>= 1) tokens to draft; 0 drops it."""
        ...

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        """Learn from a round. `num_draft_tokens` is 0 for a plain step.

        `num_draft_tokens` is what was verified, which may be less than `trim` allowed.
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
    pass_seconds: float = 1.0
    """What a pass without drafts takes now: the unit of `step_cost`, in seconds."""
    num_rows: int = 1
    """Rows of such a pass."""
