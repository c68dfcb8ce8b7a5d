"""`hysteresis`: long copies, behind a gate that opens wide while a copy runs.

A match must be long before a copy is tried at all, longer after rounds that kept nothing, and
may be short while a copy runs. Decided where the rule leaves it open:

- An *empty round* is a round that drafted and kept nothing. A round that kept something sets
  the count of empty rounds back to 0.
- A plain round proves nothing about copies, so it leaves that count alone. The copy goes on
  running only if the token of the plain round is what the copied text holds there.
- Of equally long matches the newest is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Load, Query
from copyahead.policies.knobs import Knobs, query_for
from copyahead.ranges import Range

_KEYS = (2,)


@dataclass(frozen=True, slots=True, kw_only=True)
class HysteresisKnobs(Knobs):
    """Options of `hysteresis`."""

    min_match: Annotated[int, Range(2, 64), "shortest match that starts a copy"] = 12
    min_match_after_empty: Annotated[int, Range(2, 64), "the same after several empty rounds"] = 16
    min_match_running: Annotated[int, Range(2, 64), "the same while a copy runs"] = 4
    empty_rounds: Annotated[
        int, Range(1, 1000), "empty rounds in a row after which the gate narrows"
    ] = 2
    max_draft_tokens: Annotated[int, Range(1, MAX_DRAFT_TOKENS), "longest draft"] = 60

    def __post_init__(self) -> None:
        Knobs.__post_init__(self)
        self.not_above("min_match_running", "min_match")
        self.not_above("min_match", "min_match_after_empty")


class Hysteresis:
    """One request's gate."""

    __slots__ = ("_copy_runs", "_empty_rounds", "_knobs")
    window: int | None = None

    def __init__(self, knobs: HysteresisKnobs, load: Load) -> None:
        self._knobs = knobs
        self._empty_rounds = 0
        self._copy_runs = False

    @property
    def min_match(self) -> int:
        """Shortest match that is copied this round."""
        if self._copy_runs:
            return self._knobs.min_match_running
        if self._empty_rounds >= self._knobs.empty_rounds:
            return self._knobs.min_match_after_empty
        return self._knobs.min_match

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        """The longest match of the last two tokens, if it passes the gate."""
        wanted = min(limit, self._knobs.max_draft_tokens)
        return query_for(_KEYS, self.min_match, wanted) if wanted >= at_least else None

    def trim(self, length: int) -> int:
        """All of it."""
        return length

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        """Count empty rounds, and note whether the copy runs."""
        if num_draft_tokens == 0:
            self._copy_runs = self._copy_runs and continues
            return
        self._empty_rounds = 0 if num_accepted_tokens else self._empty_rounds + 1
        self._copy_runs = continues or num_accepted_tokens == num_draft_tokens
