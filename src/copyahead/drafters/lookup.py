"""Drafts copied from the request's own history, as much as a length policy wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from copyahead.acceptance import num_accepted
from copyahead.contracts import DraftSession, LengthPolicy, Load, Query
from copyahead.drafters.pooled import PooledDrafter
from copyahead.history.pool import HistoryPool
from copyahead.kernels.index import SHARED
from copyahead.types import NO_DRAFT, Draft, Token

PolicyFactory = Callable[[Load], LengthPolicy]
"""Makes a request's own policy; it may read the load whenever it is asked."""


class LookupSession:
    """One request's row of history and its policy. Implements `contracts.DraftSession`."""

    __slots__ = ("_drafter", "_following", "_pool", "policy", "row")

    def __init__(
        self, drafter: LookupDrafter, pool: HistoryPool, row: int, policy: LengthPolicy
    ) -> None:
        self._drafter = drafter
        self._pool = pool
        self.row = row
        self.policy = policy
        # Where the last copy would go on, in the row; -1 when it broke.
        self._following = -1

    @property
    def window(self) -> int | None:
        """See `contracts.DraftSession.window`."""
        return self.policy.window

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        """What the policy wants looked up for a draft of at most `limit` tokens."""
        return self.policy.query(limit, at_least) if limit > 0 else None

    def look_up(self, query: Query | None) -> Draft:
        """The copy for `query`, as much of it as the policy wants."""
        if query is None:
            return NO_DRAFT
        return self.trim(self._pool.search(self.row, query))

    def trim(self, draft: Draft) -> Draft:
        """As much of a found copy as the policy wants."""
        length = len(draft.tokens)
        if length == 0:
            return draft
        keep = self.policy.trim(length)
        return draft if keep >= length else draft.first(keep)

    def propose(self, limit: int) -> Draft:
        """See `contracts.DraftSession.propose`."""
        return self.look_up(self.query(limit))

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """See `contracts.DraftSession.settle`."""
        pool, row = self._pool, self.row
        num_draft_tokens = len(draft.tokens)
        position = draft.origin if num_draft_tokens else self._following
        start = pool.length(row)
        pool.extend(row, emitted)
        continues = position >= 0 and pool.follows(row, position, start)
        self._following = position + len(emitted) if continues else -1
        accepted = num_accepted(draft.tokens, emitted) if num_draft_tokens else 0
        self.policy.settle(num_draft_tokens, accepted, continues)

    def truncate(self, length: int) -> None:
        """See `contracts.DraftSession.truncate`."""
        length += self._pool.prompt_start(self.row)
        if length < self._pool.length(self.row):
            self._pool.truncate(self.row, length)
            self._following = -1

    def check(self) -> None:
        """Raise AssertionError unless the copy that it follows lies in text there is. For tests."""
        length = self._pool.length(self.row)
        assert self._following < length or self._following >= SHARED, (
            f"row {self.row} follows a copy at {self._following}, and holds {length} tokens"
        )

    def close(self) -> None:
        """Give the row back; what it holds stays. Idempotent."""
        self._drafter.release(self)


class LookupDrafter(PooledDrafter[LookupSession]):
    """Opens lookup sessions over a pool of rows. Implements `contracts.Drafter`."""

    def __init__(
        self, pool: HistoryPool, make_policy: PolicyFactory, load: Load | None = None
    ) -> None:
        """`load` is what the policies read; the engine keeps it up to date."""
        super().__init__(pool)
        self._make_policy = make_policy
        self._load = load if load is not None else Load()

    def _begin(self, row: int, tenant: str, predicted: bool) -> LookupSession:
        return LookupSession(self, self._pool, row, self._make_policy(self._load))

    def check(self) -> None:
        """See `contracts.Drafter.check`."""
        super().check()
        for session in self._open.values():
            session.check()

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """See `contracts.Drafter.propose_batch`: one kernel call for all."""
        drafts = [NO_DRAFT] * len(sessions)
        asking, places, rows, queries = [], [], [], []
        for place, session in enumerate(cast("Sequence[LookupSession]", sessions)):
            limit = limits[place]
            query = session.policy.query(limit) if limit > 0 else None
            if query is not None:
                asking.append(session)
                places.append(place)
                rows.append(session.row)
                queries.append(query)
        found = self._pool.search_batch(rows, queries)
        for place, session, draft in zip(places, asking, found, strict=True):
            if draft.tokens:
                drafts[place] = session.trim(draft)
        return drafts
