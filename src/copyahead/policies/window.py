"""`window`: short copies of the newest place, in a window that grows while they hold.

Decided where the rule leaves it open:

- *The match must span 8*: the newest place of the last 4 tokens, extended backwards, must match
  at least 8 tokens. An older place with a longer match is not looked for.
- Skipped rounds are plain rounds; every plain round counts as one. A second copy with nothing
  accepted skips twice as many, and so on; one accepted token starts again at 1.
- A draft that was cut short by others and is accepted whole counts as fully accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Load, Query
from copyahead.policies.knobs import Knobs, query_for
from copyahead.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowKnobs(Knobs):
    """Options of `window`."""

    key: Annotated[int, Range(1, 15), "how many of the last tokens are looked for"] = 4
    min_match: Annotated[int, Range(1, 64), "shortest match that is copied"] = 8
    start: Annotated[int, Range(1, MAX_DRAFT_TOKENS), "window of a new request"] = 2
    max_window: Annotated[int, Range(1, MAX_DRAFT_TOKENS), "largest window"] = 8
    max_skip: Annotated[
        int, Range(0, 1024), "most rounds skipped after a copy with nothing accepted"
    ] = 16
    batch_max_draft_tokens: Annotated[
        int, Range(1, MAX_DRAFT_TOKENS), "longest draft beside other requests"
    ] = 3
    max_requests: Annotated[
        int, Range(1, 1024), "no copies while more requests than this are active"
    ] = 8

    def __post_init__(self) -> None:
        Knobs.__post_init__(self)
        self.not_above("start", "max_window")
        self.not_above("key", "min_match")


class Window:
    """One request's window."""

    __slots__ = ("_keys", "_knobs", "_load", "_next_skip", "_skip", "_window")

    def __init__(self, knobs: WindowKnobs, load: Load) -> None:
        self._knobs = knobs
        self._keys = (knobs.key,)
        self._load = load
        self._window = knobs.start
        self._skip = 0
        self._next_skip = 1

    @property
    def window(self) -> int:
        """Longest copy that is asked for now, unless another drafter has a longer draft."""
        return self._window

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        """The newest place, for a window of tokens; None while skipping or too busy.

        `at_least` may go beyond the window, not beyond what a busy engine leaves.
        """
        knobs = self._knobs
        active = self._load.active_requests
        if self._skip or active > knobs.max_requests:
            return None
        if active > 1:
            limit = min(limit, knobs.batch_max_draft_tokens)
        if limit < at_least:
            return None
        wanted = min(limit, max(self._window, at_least))
        return query_for(self._keys, knobs.min_match, wanted, "newest")

    def trim(self, length: int) -> int:
        """The largest power of two in a copy of 4 or more; shorter ones whole."""
        return 1 << (length.bit_length() - 1) if length >= 4 else length

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        """Double or halve the window; back off after a copy with nothing accepted."""
        if num_draft_tokens == 0:
            self._skip = max(0, self._skip - 1)
            return
        if num_accepted_tokens == num_draft_tokens:
            self._window = min(self._window * 2, self._knobs.max_window)
        else:
            self._window = max(self._window // 2, 1)
        if num_accepted_tokens:
            self._skip, self._next_skip = 0, 1
            return
        self._skip = min(self._next_skip, self._knobs.max_skip)
        self._next_skip = min(self._next_skip * 2, max(self._knobs.max_skip, 1))
