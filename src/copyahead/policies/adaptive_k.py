"""`adaptive_k`: the keys of `single`, with a length that doubles while copies hold.

Decided where the rule leaves it open: a *miss* is any rejected token, and sets the length back
to 1 even when the tokens before it were accepted. A plain round changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Load, Query
from copyahead.policies.knobs import query_for
from copyahead.policies.single import SingleKnobs
from copyahead.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveKKnobs(SingleKnobs):
    """Options of `adaptive_k`."""

    max_draft_tokens: Annotated[int, Range(1, MAX_DRAFT_TOKENS), "longest draft"] = 8


class AdaptiveK:
    """One request's length."""

    __slots__ = ("_keys", "_length", "_max_draft_tokens")
    window: int | None = None

    def __init__(self, knobs: AdaptiveKKnobs, load: Load) -> None:
        self._keys = knobs.keys
        self._max_draft_tokens = knobs.max_draft_tokens
        self._length = 1

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        """The newest place, for as many tokens as the length is now."""
        wanted = min(limit, self._length)
        return query_for(self._keys, 1, wanted, "newest") if wanted >= at_least else None

    def trim(self, length: int) -> int:
        """All of it."""
        return length

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        """Double the length after a fully accepted draft; back to 1 after any other."""
        if num_draft_tokens == 0:
            return
        whole = num_accepted_tokens == num_draft_tokens
        self._length = min(self._length * 2, self._max_draft_tokens) if whole else 1
