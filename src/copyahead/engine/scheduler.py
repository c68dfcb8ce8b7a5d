"""Who takes part in the next pass, and with how many rows.

While a slot and cells are free, the next to be admitted is whose tenant, and then whose group,
holds the fewest slots, and among equals who came first. A group is one request's answers, or what
its client has asked for at once. A group that holds nothing waits for no group that holds several
slots: one of these is given up.

In a pass every running answer gets a row; prompts share what is left of the pass in chunks, so that
a long prompt never stalls a stream for more than one chunk, and a short prompt does not wait for a
long one; see `pace`.

Who gives a place up, there and where the cells run out, is the newest answer of the largest group.
It is computed again later: its sampler is kept, so its text does not change.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Annotated

from copyahead.contracts import Capabilities
from copyahead.engine.answer import Answer
from copyahead.engine.drafting import Drafting
from copyahead.engine.pace import FREE_ROWS, ReadingPace
from copyahead.engine.slots import Slots
from copyahead.ranges import Range, check_ranges

SCORED_ROWS = 32
"""Most tokens in a pass of a prompt whose log-probabilities are asked for: each takes a row of
logits, and the time to read it."""
ADMISSION_ROOM = 32
"""Cells that must be free beyond a prompt before it is admitted beside others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Budgets of a pass."""

    chunk_tokens: Annotated[int, Range(1)] = 512
    """Most prompt tokens in a pass when no answer is being written."""
    busy_chunk_tokens: Annotated[int, Range(1)] = 256
    """Most prompt tokens in a pass when some are."""
    max_draft_rows: Annotated[int, Range(0)] = 64
    """Drafted tokens in a pass, all requests together."""

    def __post_init__(self) -> None:
        check_ranges(self)


class Scheduler:
    """Waiting and running answers of one engine."""

    def __init__(
        self, slots: Slots, drafting: Drafting, capabilities: Capabilities, pace: ReadingPace
    ) -> None:
        self.waiting: deque[Answer] = deque()
        self.running: list[Answer] = []
        self._slots = slots
        self._drafting = drafting
        self._capabilities = capabilities
        self._pace = pace

    def shares(self) -> list[tuple[Answer, int]]:
        """Who takes part in the next pass, with how many of its pending tokens (at least 1)."""
        self._admit()
        shares = self._share_out()
        while not self._slots.make_room(sum(count for _, count in shares)):
            self._preempt(self._newest_of_most() or self.running[-1])
            shares = self._share_out()
        return shares

    def retire(self, answer: Answer, *, keep: bool = True) -> None:
        """Take a running or waiting answer out; with `keep` its tokens stay in the slot.

        If that fails, it is where it was and can be tried again.
        """
        self._leave_slot(answer, keep=keep)
        answer.sampler.close()
        if answer in self.running:
            self.running.remove(answer)
        elif answer in self.waiting:
            self.waiting.remove(answer)

    def _admit(self) -> None:
        while len(self.running) < self._capabilities.max_rows:
            if self._slots.num_idle == 0 and self._newest_of_most() is None:
                return
            answer = self._next()
            if answer is None or not self._make_way(answer):
                return
            self._start(answer)

    def _next(self) -> Answer | None:
        """Who is to be admitted next; None where everybody waits for another to read the prompt."""
        tenants = Counter(answer.request.tenant for answer in self.running)
        groups = Counter(answer.group for answer in self.running)
        ready = (a for a in self.waiting if a.leader is None or _prompt_is_in(a.leader))
        return min(ready, key=lambda a: (tenants[a.request.tenant], groups[a.group]), default=None)

    def _make_way(self, answer: Answer) -> bool:
        """Have a slot and cells for `answer`, at the cost of large groups where it has none."""
        is_first = all(answer.group != other.group for other in self.running)
        while self._slots.num_idle == 0 or not self._fits(answer):
            other = self._newest_of_most() if is_first else None
            if other is None:
                return False
            self._preempt(other)
        return True

    def _fits(self, answer: Answer) -> bool:
        available = self._slots.free_cells + self._slots.evictable_cells
        return not self.running or len(answer.tokens) + ADMISSION_ROOM <= available

    def _newest_of_most(self) -> Answer | None:
        """The newest answer of the group that holds the most slots; None where none has several."""
        groups = Counter(answer.group for answer in self.running)
        largest = max(groups.values(), default=0)
        if largest < 2:
            return None
        return next(a for a in reversed(self.running) if groups[a.group] == largest)

    def _start(self, answer: Answer) -> None:
        # What is kept of a prompt has no logits.
        limit = None if answer.is_scored else answer.num_scored
        slot, reused = self._slots.take(answer.tokens, answer.request.tenant, limit)
        answer.slot = slot
        answer.stats.num_cached_tokens = max(answer.stats.num_cached_tokens, reused)
        self.waiting.remove(answer)
        self.running.append(answer)
        self._drafting.open(answer)

    def _share_out(self) -> list[tuple[Answer, int]]:
        writing = [answer for answer in self.running if answer.num_pending == 1]
        prompts = [answer for answer in self.running if answer.num_pending > 1]
        budget = self._pace.num_rows(writing=bool(writing))
        if writing and self._pace.owes:
            prompts = [answer for answer in prompts if answer.num_pending <= FREE_ROWS]
            budget = min(budget, FREE_ROWS)
        budget = min(budget, self._capabilities.max_rows - len(writing))
        shares = [(answer, 1) for answer in writing]
        if prompts:
            shares += _share_prompts(prompts, max(1, budget))
        return shares

    def _preempt(self, answer: Answer) -> None:
        self._leave_slot(answer, keep=False)
        self.running.remove(answer)
        answer.stats.preemptions += 1
        self.waiting.appendleft(answer)

    def _leave_slot(self, answer: Answer, *, keep: bool) -> None:
        self._drafting.close(answer)
        if answer.slot is not None:
            self._slots.release(answer.slot, keep=keep)
            answer.slot = None


def _prompt_is_in(leader: Answer) -> bool:
    if leader.finish_reason is not None:
        return True
    return leader.slot is not None and leader.slot.length >= leader.num_prompt_tokens - 1


def _most_rows(answer: Answer) -> int:
    return answer.num_pending if answer.is_scored else min(answer.num_pending, SCORED_ROWS)


def _share_prompts(prompts: list[Answer], budget: int) -> list[tuple[Answer, int]]:
    """Half of the budget to the oldest prompt, the rest to the shortest first."""
    oldest = prompts[0]
    given = {oldest.key: min(_most_rows(oldest), max(1, (budget + 1) // 2))}
    left = budget - given[oldest.key]
    for answer in sorted(prompts, key=lambda answer: answer.num_pending):
        more = min(_most_rows(answer) - given.get(answer.key, 0), left)
        if more > 0:
            given[answer.key] = given.get(answer.key, 0) + more
            left -= more
    return [(answer, given[answer.key]) for answer in prompts if answer.key in given]
