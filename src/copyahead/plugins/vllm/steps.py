"""One step over all rows of the host: what came is settled, and everybody gets a draft.

`PricedSteps` is one call of a kernel for the whole batch. `PresetSteps` does the same with the
sessions of any other policy: one search for all, and the rest one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from copyahead.acceptance import num_accepted
from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Drafter, DraftSession, Load
from copyahead.drafters.lookup import LookupDrafter
from copyahead.drafters.priced import PricedDrafter
from copyahead.history.pool import HistoryPool
from copyahead.kernels import hosted
from copyahead.kernels import priced as kernel
from copyahead.kernels.compiled import entry_point
from copyahead.kernels.index import Ints
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT, Draft, Source

MAX_CURVE = 4096
"""Rows of a pass whose cost is known one by one; a larger pass costs as much as this one."""
MAX_SHARED = 64
"""Shared costs that are kept at once."""

_step, _draft = entry_point(hosted.step), entry_point(hosted.draft)
_recognise = entry_point(hosted.recognise)

_SOURCES = {Source.PROMPT: hosted.PROMPT, Source.OUTPUT: hosted.OUTPUT}


class Steps(Protocol):
    """A step over the host's rows. `host.rows` says which row of the pool each of them is."""

    @property
    def drafter(self) -> Drafter:
        """What opens sessions."""
        ...

    @property
    def rounds(self) -> hosted.Rounds:
        """What is remembered of each row of the pool."""
        ...

    def price(self, cost: StepCost, num_requests: int) -> None:
        """Say what the next pass costs, and how many requests take part in it."""
        ...

    def step(
        self, host: hosted.Host, sizes: hosted.Sizes, sessions: Mapping[int, DraftSession]
    ) -> int:
        """Settle every known row; where all are known, draft too. Returns how many are not."""
        ...

    def draft(
        self, host: hosted.Host, sizes: hosted.Sizes, sessions: Mapping[int, DraftSession]
    ) -> None:
        """Draft for all rows, which are all known now."""
        ...

    def settle(self, row: int, session: DraftSession, emitted: Ints, num_draft_tokens: int) -> None:
        """Settle one row, of which so many tokens were drafted."""
        ...


class PricedSteps:
    """Steps of `priced`. Implements `Steps`."""

    def __init__(self, drafter: PricedDrafter, pool: HistoryPool, load: Load) -> None:
        self._drafter = drafter
        self._rounds = hosted.new_rounds(pool.num_rows)
        self._pool = pool
        self._load = load
        self._drafts = kernel.new_drafts(pool.num_rows)
        self._prices = drafter.prices
        self._cost: StepCost | None = None
        self._shared: dict[int, StepCost] = {}
        self._curves: dict[int, npt.NDArray[np.float64]] = {}
        self._curve = np.zeros(0)

    @property
    def drafter(self) -> PricedDrafter:
        """See `Steps.drafter`."""
        return self._drafter

    @property
    def rounds(self) -> hosted.Rounds:
        """See `Steps.rounds`."""
        return self._rounds

    def price(self, cost: StepCost, num_requests: int) -> None:
        """See `Steps.price`."""
        if cost is not self._cost or len(self._shared) > MAX_SHARED:
            self._cost, self._shared, self._curves = cost, {}, {}
        if num_requests not in self._shared:
            self._shared[num_requests] = cost.shared(num_requests, num_requests)
            last = min(num_requests * (MAX_DRAFT_TOKENS + 1), MAX_CURVE)
            room = np.zeros(2 * hosted.BUCKETS)
            self._curves[num_requests] = np.concatenate([cost.curve(last), room])
        # The same object for the same pass: so the price list is known.
        self._load.step_cost = self._shared[num_requests]
        self._curve = self._curves[num_requests]

    def step(
        self, host: hosted.Host, sizes: hosted.Sizes, sessions: Mapping[int, DraftSession]
    ) -> int:
        """See `Steps.step`."""
        before, self._prices = self._prices, self._drafter.prices
        unknown: int = _step(
            *self._drafter.arguments,
            self._drafts,
            before,
            self._prices,
            self._curve,
            host,
            self._rounds,
            sizes,
        )
        if unknown:
            # Rows that are looked for now are settled at the prices of their drafts.
            self._prices = before
        return unknown

    def draft(
        self, host: hosted.Host, sizes: hosted.Sizes, sessions: Mapping[int, DraftSession]
    ) -> None:
        """See `Steps.draft`."""
        self._prices = self._drafter.prices
        _draft(
            *self._drafter.arguments,
            self._drafts,
            self._prices,
            self._curve,
            host,
            self._rounds,
            sizes,
        )

    def settle(self, row: int, session: DraftSession, emitted: Ints, num_draft_tokens: int) -> None:
        """See `Steps.settle`."""
        self._drafter.settle(row, num_draft_tokens, emitted, self._prices)  # type: ignore[arg-type]


class PresetSteps:
    """Steps of any other policy. Implements `Steps`."""

    def __init__(self, drafter: LookupDrafter, pool: HistoryPool, load: Load) -> None:
        self._drafter = drafter
        self._rounds = hosted.new_rounds(pool.num_rows)
        self._pool = pool
        self._load = load
        self._drafts: dict[int, Draft] = {}

    @property
    def drafter(self) -> LookupDrafter:
        """See `Steps.drafter`."""
        return self._drafter

    @property
    def rounds(self) -> hosted.Rounds:
        """See `Steps.rounds`."""
        return self._rounds

    def price(self, cost: StepCost, num_requests: int) -> None:
        """See `Steps.price`."""
        self._load.step_cost = cost
        self._load.active_requests = num_requests

    def step(
        self, host: hosted.Host, sizes: hosted.Sizes, sessions: Mapping[int, DraftSession]
    ) -> int:
        """See `Steps.step`."""
        unknown: int = _recognise(self._pool.arrays, host, self._rounds, sizes)
        for i in np.flatnonzero(host.status == hosted.FINE).tolist():
            count, row = int(host.counts[i]), int(host.rows[i])
            if count:
                end = int(host.lengths[i])
                drafted = int(self._rounds.drafted[row])
                source = self._rounds.sources[row]
                self._rounds.counters[source, hosted.ACCEPTED] += min(count - 1, drafted)
                copied = drafted if source != hosted.FROM_MODEL else 0
                self.settle(row, sessions[row], host.tokens[i, end - count : end], copied)
                self._rounds.drafted[row] = 0
        if not unknown:
            self.draft(host, sizes, sessions)
        return unknown

    def draft(
        self, host: hosted.Host, sizes: hosted.Sizes, sessions: Mapping[int, DraftSession]
    ) -> None:
        """See `Steps.draft`."""
        asking = [i for i in range(len(host.counts)) if host.rows[i] >= 0 and host.counts[i]]
        rows = [int(host.rows[i]) for i in asking]
        room = [sizes.max_length - int(host.lengths[i]) - 1 for i in asking]
        limits = [max(0, min(sizes.max_tokens, left)) for left in room]
        self._drafts = dict.fromkeys(host.rows.tolist(), NO_DRAFT)
        self._rounds.drafted[host.rows[host.rows >= 0]] = 0
        host.drafted[:] = 0
        end = 0
        found = self._drafter.propose_batch([sessions[row] for row in rows], limits)
        even = sizes.budget // max(1, sum(len(draft) > 0 for draft in found))
        for i, row, draft in zip(asking, rows, found, strict=True):
            draft = draft.first(even)
            if not draft.tokens:
                continue
            if not self._is_explained(row, draft, host.tokens[i]):
                host.rows[i] = -1
                continue
            self._drafts[row] = draft
            count = len(draft.tokens)
            self._rounds.drafts[row, :count] = draft.tokens
            self._rounds.drafted[row] = host.drafted[i] = count
            self._rounds.flat[end : end + count] = draft.tokens
            end += count
            # A policy that fixes lengths expects nothing: its copies go first.
            self._rounds.worths[row] = sum(draft.survivals) or float(count)
            source = _SOURCES.get(draft.source or Source.SHARED, hosted.FROM_STORE)
            self._rounds.sources[row] = source
            self._rounds.counters[source, hosted.DRAFTED] += count

    def _is_explained(self, row: int, draft: Draft, tokens: Ints) -> bool:
        """Whether the host's own row has the copied text at its place."""
        if draft.source is Source.SHARED:
            return True
        length = self._pool.length(row)
        inside = tokens[draft.origin : min(draft.origin + len(draft.tokens), length)].tolist()
        return num_accepted(draft.tokens, inside) == len(inside)

    def settle(self, row: int, session: DraftSession, emitted: Ints, num_draft_tokens: int) -> None:
        """See `Steps.settle`."""
        draft = self._drafts.get(row, NO_DRAFT).first(num_draft_tokens)
        session.settle(draft, emitted.tolist())
