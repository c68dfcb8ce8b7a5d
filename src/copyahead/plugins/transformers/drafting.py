"""The drafters of one model, kept from call to call, and what a call asks of them.

A drafter can slow a call down; it can never fail one. Whatever raises in here makes the round a
plain one, and is logged once a call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Drafter, DraftSession, Load
from copyahead.drafters.factory import make_drafter
from copyahead.history.pool import HistoryPool
from copyahead.step_cost import StepCost, StepCostMeter
from copyahead.types import NO_DRAFT, Draft, Token

logger = logging.getLogger(__name__)

MAX_POLICIES = 8
"""Policies whose drafters a model keeps."""
FEWEST_ROWS, LEAST_CAPACITY = 8, 2**15
"""A pool has at least this many rows, and room for so many tokens in each; untouched room costs
nothing, and a larger pool forgets what the smaller one had learnt."""
MAX_PASS_ROWS = 1024
"""Passes over more rows say nothing about the step cost."""

ON_CPU, ON_DEVICE = StepCost.linear(0.05), StepCost.linear(0.01)
"""What a row is taken to cost until passes were seen."""

_kept: WeakKeyDictionary[Any, ModelDrafters] = WeakKeyDictionary()
_kept_lock = threading.Lock()


class ModelDrafters:
    """What stays with a model: a drafter for each policy in use, and the cost of its passes."""

    def __init__(self, start: StepCost) -> None:
        self.lock = threading.Lock()
        self.meter = StepCostMeter(start, max_rows=MAX_PASS_ROWS)
        self.load = Load(step_cost=start)
        self._drafters: dict[str, tuple[HistoryPool, Drafter]] = {}

    def drafter(self, policy: str, num_rows: int, capacity: int, vocab_size: int) -> Drafter:
        """The drafter of `policy`, with room for so many rows of `capacity` tokens.

        Raises ConfigError where the policy is wrong.
        """
        known = self._drafters.pop(policy, None)
        if known is not None:
            pool, drafter = known
            if pool.num_rows < num_rows or pool.capacity < capacity:
                num_rows, capacity = max(num_rows, pool.num_rows), max(capacity, pool.capacity)
                known = None
        if known is None:
            rows, room = max(num_rows, FEWEST_ROWS), max(capacity, LEAST_CAPACITY)
            pool = HistoryPool(rows, room, vocab_size)
            pool.touch()
            drafter = make_drafter(policy, pool, self.load)
        if len(self._drafters) >= MAX_POLICIES:
            del self._drafters[next(iter(self._drafters))]
        self._drafters[policy] = (pool, drafter)
        return drafter


def drafters_of(model: Any, on_cpu: bool) -> ModelDrafters:
    """What is kept of `model`, locked for the caller, who releases `lock`.

    While another thread generates with the same model, one that is kept nowhere.
    """
    start = ON_CPU if on_cpu else ON_DEVICE
    with _kept_lock:
        kept = _kept.get(model)
        if kept is None:
            kept = _kept[model] = ModelDrafters(start)
    if not kept.lock.acquire(blocking=False):
        kept = ModelDrafters(start)
        kept.lock.acquire()
    return kept


class CallDrafting:
    """The sessions of one call, one a row of its batch."""

    def __init__(
        self,
        drafter: Drafter,
        load: Load,
        meter: StepCostMeter | None,
        *,
        vocab_size: int,
        max_draft_tokens: int,
    ) -> None:
        """`meter` learns from the call's passes; None: the load's cost is given and stays."""
        self._drafter = drafter
        self._load = load
        self._meter = meter
        self._cost = meter.cost if meter is not None else load.step_cost
        self._shared: dict[int, StepCost] = {}
        self._vocab_size = vocab_size
        self._max_draft_tokens = max_draft_tokens
        self._sessions: dict[int, DraftSession] = {}
        self._failed = False

    def open(self, row: int, prompt: Sequence[Token]) -> None:
        """Index what `row` has read."""
        try:
            self._sessions[row] = self._drafter.open(prompt, slot=row)
        except Exception as error:
            self._fault(row, error)

    def propose(self, rows: Sequence[int], limits: Sequence[int]) -> list[Draft]:
        """A draft for each of `rows`, which share a pass, each of at most its limit."""
        drafts = [NO_DRAFT] * len(rows)
        limits = [min(limit, self._max_draft_tokens) for limit in limits]
        places = [p for p, row in enumerate(rows) if row in self._sessions and limits[p] > 0]
        if not places:
            return drafts
        self._load.active_requests = len(rows)
        self._load.step_cost = self._price(len(rows))
        asked = [limits[place] for place in places]
        try:
            sessions = [self._sessions[rows[place]] for place in places]
            found = [self._usable(d) for d in self._drafter.propose_batch(sessions, asked)]
        except Exception:
            # One bad session must not cost the others their drafts: ask each by itself.
            found = [self._propose_one(rows[p], n) for p, n in zip(places, asked, strict=True)]
        for place, draft in zip(places, found, strict=True):
            drafts[place] = draft.first(limits[place])
        if len(rows) == 1:
            return drafts
        length = common_length(drafts, self._cost)
        return [draft.first(length) for draft in drafts]

    def settle(self, row: int, draft: Draft, emitted: Sequence[Token]) -> None:
        """Let the row's session learn what became of its round."""
        session = self._sessions.get(row)
        if session is not None:
            try:
                session.settle(draft, emitted)
            except Exception as error:
                self._fault(row, error)

    def observe(self, num_rows: int, seconds: float) -> None:
        """Note what a pass over `num_rows` rows took."""
        if self._meter is not None:
            self._meter.observe(num_rows, seconds)
            if self._meter.cost is not self._cost:
                self._cost, self._shared = self._meter.cost, {}

    def close(self) -> None:
        """Give all rows back."""
        for session in self._sessions.values():
            try:
                session.close()
            except Exception as error:
                logger.warning("a drafter failed at its end: %r", error)
        self._sessions = {}

    def _price(self, num_rows: int) -> StepCost:
        """What each of `num_rows` rows sees of a pass, if all of them draft."""
        if num_rows not in self._shared:
            self._shared[num_rows] = self._cost.shared(num_rows, num_rows)
        return self._shared[num_rows]

    def _propose_one(self, row: int, limit: int) -> Draft:
        try:
            return self._usable(self._sessions[row].propose(limit))
        except Exception as error:
            self._fault(row, error)
            return NO_DRAFT

    def _usable(self, draft: Draft) -> Draft:
        """The draft up to its first token that the model does not know."""
        tokens, size = draft.tokens, self._vocab_size
        if tokens and (min(tokens) < 0 or max(tokens) >= size):
            return draft.first(next(i for i, t in enumerate(tokens) if not 0 <= t < size))
        return draft

    def _fault(self, row: int, error: Exception) -> None:
        if not self._failed:
            logger.warning("a drafter failed, the text goes on without it: %r", error)
        self._failed = True
        session = self._sessions.pop(row, None)
        if session is not None:
            try:
                session.close()
            except Exception as again:
                logger.debug("nor could it be closed: %r", again)


def common_length(drafts: Sequence[Draft], cost: StepCost) -> int:
    """The longest that a draft may be where every row of the pass pays for the longest.

    Rows are padded, so a pass over n rows with drafts of up to k tokens costs T(n (1 + k)). The k
    with the most expected tokens for its cost is taken; drafts without survivals are believed.
    """
    num_rows, longest = len(drafts), max(map(len, drafts))
    if longest == 0:
        return 0
    expected = np.zeros(longest + 1)
    expected[0] = num_rows
    for draft in drafts:
        expected[1 : 1 + len(draft)] += draft.survivals or 1.0
    curve = cost.curve(num_rows * (1 + longest))[num_rows::num_rows]
    return int(np.argmax(np.cumsum(expected) / curve))


def longest_text(num_tokens: int) -> int:
    """The room that a row of history needs for a text of `num_tokens`."""
    return num_tokens + MAX_DRAFT_TOKENS
