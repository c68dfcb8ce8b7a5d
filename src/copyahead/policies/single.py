"""`single`: one token after the newest place of the last 3 tokens, else of the last 2.

No gate and no state: where there is no match the round is a plain step and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from copyahead.contracts import Load, Query
from copyahead.policies.knobs import Knobs, query_for
from copyahead.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleKnobs(Knobs):
    """Options of `single`, and of every policy that tries its keys."""

    longest_key: Annotated[int, Range(1, 7), "how many of the last tokens are looked for first"] = 3
    shortest_key: Annotated[int, Range(1, 7), "and last, one fewer each time"] = 2

    def __post_init__(self) -> None:
        Knobs.__post_init__(self)
        self.not_above("shortest_key", "longest_key")

    @property
    def keys(self) -> tuple[int, ...]:
        """Key lengths in the order they are tried."""
        return tuple(range(self.longest_key, self.shortest_key - 1, -1))


class Single:
    """One draft token a round."""

    __slots__ = ("_query",)
    window: int | None = None

    def __init__(self, knobs: SingleKnobs, load: Load) -> None:
        self._query = query_for(knobs.keys, 1, 1, "newest")

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        """The newest place, for one token."""
        return self._query if at_least <= 1 else None

    def trim(self, length: int) -> int:
        """The one token."""
        return min(length, 1)

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        """Nothing to learn."""
