"""Drafts for a host whose hook shows the ids so far and nothing else: no request, no verdict.

A text is found again by its content: the ids continue what a row of the pool holds, or else they
begin another text there. What a draft was worth follows from the ids of the next call.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from copyahead.config import MAX_DRAFT_TOKENS, LookupOptions
from copyahead.contracts import DraftSession, Load
from copyahead.drafters.factory import make_drafter
from copyahead.history.pool import HistoryPool
from copyahead.step_cost import StepCost, StepCostMeter
from copyahead.types import NO_DRAFT, Draft

logger = logging.getLogger(__name__)

Ids = npt.NDArray[np.int32]

ANY_VOCAB = 2**31 - 1
"""The hook names no vocabulary. Only ids that the host has shown are ever proposed."""

FIRST_CAPACITY = 2**15
"""Tokens of the longest text that the first pool has room for; a longer text gets a larger pool."""

_START = StepCost.linear(0.1)
"""What a pass is taken to cost until enough of them were seen."""


@dataclass(slots=True)
class _Text:
    """The text in a row of the pool: its session, and the draft on its way."""

    session: DraftSession
    draft: Draft = NO_DRAFT


class DraftsByContent:
    """Drafts for texts that are told apart by their content. Any thread may ask.

    A fault in a drafter is a call without a draft: it is logged once, and fails nothing.
    """

    def __init__(
        self,
        options: LookupOptions,
        *,
        num_texts: int = 4,
        step_cost: StepCost | None = None,
    ) -> None:
        """`num_texts` are remembered at once; a further one takes the place of the oldest.

        `step_cost` is T(n) of the host's passes; when not given it is measured from the time
        between two calls.
        """
        self._options = options
        self._num_texts = num_texts
        self._meter = StepCostMeter(_START) if step_cost is None else None
        self._load = Load(step_cost=step_cost or _START)
        self._texts: dict[int, _Text] = {}  # By row, the one seen last at the end.
        self._last: tuple[_Text, float] | None = None
        self._failed = False
        self._lock = threading.Lock()
        self._capacity = 0
        self._prepare(FIRST_CAPACITY)

    def draft(self, ids: npt.NDArray[np.integer], limit: int) -> Draft:
        """A draft of at most `limit` tokens for what follows `ids`, all of which are settled."""
        with self._lock:
            try:
                return self._draft(np.array(ids, dtype=np.int32), limit)
            except Exception as error:
                if not self._failed:
                    logger.warning("a drafter failed, the text goes on without it: %r", error)
                self._failed = True
                self._prepare(self._capacity)
                return NO_DRAFT

    def _draft(self, ids: Ids, limit: int) -> Draft:
        if len(ids) + MAX_DRAFT_TOKENS > self._capacity:
            self._prepare(2 * len(ids) + MAX_DRAFT_TOKENS)
        text = self._continued(ids) or self._begun(ids)
        most = min(limit, self._options.max_draft_tokens) if self._options.lookup else 0
        text.draft = text.session.propose(max(0, most))
        self._last = (text, time.perf_counter())
        return text.draft

    def _continued(self, ids: Ids) -> _Text | None:
        """The text that `ids` go on with, brought up to date; None where there is none."""
        for row in reversed(self._texts):
            held = self._pool.length(row)
            if held < len(ids) and self._pool.num_shared(row, ids) == held:
                text = self._texts[row] = self._texts.pop(row)
                self._observe(text)
                text.session.settle(text.draft, ids[held:].tolist())
                return text
        return None

    def _begun(self, ids: Ids) -> _Text:
        """A new text, in the row that shares most with it, or in the one unused for longest."""
        free = [row for row in range(self._num_texts) if row not in self._texts]
        row = free[0] if free else next(iter(self._texts))
        for known in self._texts:
            if 2 * self._pool.num_shared(known, ids) > min(self._pool.length(known), len(ids)):
                row = known
        old = self._texts.pop(row, None)
        if old is not None:
            old.session.close()
        self._texts[row] = _Text(self._drafter.open(ids, slot=row))
        return self._texts[row]

    def _observe(self, text: _Text) -> None:
        """Note how long the host took over the pass of the last draft, if it was this text's."""
        if self._meter is None or self._last is None or self._last[0] is not text:
            return
        self._meter.observe(1 + len(text.draft), time.perf_counter() - self._last[1])
        self._load.step_cost = self._meter.cost

    def _prepare(self, capacity: int) -> None:
        """A pool with room for `capacity` tokens a text, and a drafter over it."""
        self._texts, self._last = {}, None
        self._capacity = capacity
        self._pool = HistoryPool(self._num_texts, capacity, ANY_VOCAB)
        self._drafter = make_drafter(self._options.policy, self._pool, self._load)
