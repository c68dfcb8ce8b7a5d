"""`fixed`: always the same length, as prompt lookup is commonly set up.

For comparison: it is slower than plain decoding wherever copies break early.
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
class FixedKnobs(SingleKnobs):
    """Options of `fixed`."""

    num_draft_tokens: Annotated[int, Range(1, MAX_DRAFT_TOKENS), "length of every draft"] = 10


class Fixed:
    """The same length every round."""

    __slots__ = ("_keys", "_num_draft_tokens")
    window: int | None = None

    def __init__(self, knobs: FixedKnobs, load: Load) -> None:
        self._keys = knobs.keys
        self._num_draft_tokens = knobs.num_draft_tokens

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        """The newest place, for the fixed number of tokens."""
        wanted = min(limit, self._num_draft_tokens)
        return query_for(self._keys, 1, wanted, "newest") if wanted >= at_least else None

    def trim(self, length: int) -> int:
        """All of it."""
        return length

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        """Nothing to learn."""
