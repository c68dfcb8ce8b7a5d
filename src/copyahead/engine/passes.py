"""Target passes: what fits into one, running it, and what happens when it fails.

A pass that fails is repeated without its drafts, and then answer by answer, so that one bad
request ends by itself. Which rows a pass has is for others to say: the prompts and pending tokens
come from the scheduler, the drafts from `drafting`.
"""

from __future__ import annotations

import time

import msgspec

from copyahead.contracts import Backend, Logits, Part
from copyahead.engine.answer import Answer
from copyahead.engine.pace import ReadingPace
from copyahead.engine.slots import Slots
from copyahead.errors import BackendError
from copyahead.step_cost import StepCost, StepCostMeter
from copyahead.types import NO_DRAFT, Draft, FinishReason, Token


class Work(msgspec.Struct):
    """One answer's share of a pass: `tokens` of its own, then the draft."""

    answer: Answer
    tokens: list[Token]
    draft: Draft = NO_DRAFT

    @property
    def num_rows(self) -> int:
        """Rows that it takes of the pass."""
        return len(self.tokens) + len(self.draft)

    def part(self) -> Part:
        """The rows to compute; logits where a token is to be chosen or one of the prompt scored."""
        slot = self.answer.slot
        assert slot is not None
        reaches_end = slot.length + len(self.tokens) == len(self.answer.tokens)
        num_scoring = self.answer.num_scoring_rows(slot.length, len(self.tokens))
        return Part(
            slot=slot.index,
            start=slot.length,
            tokens=[*self.tokens, *self.draft.tokens],
            num_logits=num_scoring + (1 + len(self.draft) if reaches_end else 0),
        )


PassTimes = dict[int, tuple[int, float]]
"""By the rows of a pass: how many ran, and the seconds that they took together."""


class Passes:
    """Runs the passes of one backend, and keeps its step cost up to date from their times."""

    def __init__(self, backend: Backend, slots: Slots, pace: ReadingPace) -> None:
        self._backend = backend
        self._slots = slots
        self._pace = pace
        self._meter = StepCostMeter(backend.step_cost)
        self.times: PassTimes = {}
        """Of the passes that only decoded."""

    @property
    def step_cost(self) -> StepCost:
        """What a pass costs now, by its rows; a new object whenever it has changed."""
        return self._meter.cost

    @property
    def seconds(self) -> float:
        """What a pass over one row takes now, in seconds; 0.0 before any was run."""
        return self._meter.seconds

    @property
    def corrected(self) -> bool:
        """Whether passes have changed the step cost."""
        return self._meter.cost is not self._backend.step_cost

    def longest_draft(self, wanted: int) -> int:
        """The longest draft, of at most `wanted` tokens, that can be verified and taken back."""
        capabilities = self._backend.capabilities
        cap = min(wanted, capabilities.max_rows - 1)
        if capabilities.max_rewind is not None:
            cap = min(cap, capabilities.max_rewind)
        return max(0, cap)

    def room_for_drafts(self, num_answers: int, num_rows: int, wanted: int) -> int:
        """How many of `wanted` drafted tokens fit beside the `num_rows` other rows of a pass.

        Its rows are limited, those of the `num_answers` that may draft to what was proven exact,
        and each needs a cell: kept prefixes make way. The result may be negative: no room.
        """
        room = min(wanted, self._backend.capabilities.max_rows - num_rows)
        exactness = self._backend.exactness
        if exactness is not None and exactness.level == "exact":
            room = min(room, exactness.rows - num_answers)
        self._slots.make_room(num_rows + room)
        return min(room, self._slots.free_cells - num_rows)

    def forward(self, works: list[Work]) -> list[tuple[Work, Logits]]:
        """One pass over all `works`: each of them with its logits.

        If it fails: once more without drafts, then each answer by itself. An answer whose own pass
        fails as well is finished with an error, and is not among the results.
        """
        for _ in range(2):
            try:
                return self._run(works)
            except BackendError:
                self._undo(works)
        done = []
        for work in works:
            try:
                # Logits are views that the next pass invalidates.
                done += [(work, logits.copy()) for work, logits in self._run([work])]
            except BackendError as error:
                self._undo([work])
                work.answer.finish(FinishReason.ERROR, f"a target pass failed: {error}")
        return done

    def take_back(self, works: list[Work]) -> None:
        """Drop rows that were computed and not settled, so that a next step can go on."""
        for work in works:
            if work.answer.slot is not None:
                self._slots.cut_if_possible(work.answer.slot, work.answer.slot.length)

    def _run(self, works: list[Work]) -> list[tuple[Work, Logits]]:
        began = time.perf_counter()
        logits = self._backend.forward([work.part() for work in works])
        seconds = time.perf_counter() - began
        rows = sum(work.num_rows for work in works)
        if all(work.answer.decoding for work in works):
            self._meter.observe(rows, seconds)
            count, total = self.times.get(rows, (0, 0.0))
            self.times[rows] = count + 1, total + seconds
        num_read = sum(len(work.tokens) for work in works if len(work.tokens) > 1)
        unit = self._meter.seconds or seconds / rows
        self._pace.observe(seconds, num_read, unit * self._meter.cost(rows - num_read))
        for work in works:
            if work.answer.decoding:
                work.answer.stats.verify_seconds += seconds * (work.num_rows / rows)
        return list(zip(works, logits, strict=True))

    def _undo(self, works: list[Work]) -> None:
        """Take a failed pass back, and its drafts out."""
        self.take_back(works)
        for work in works:
            work.answer.stats.retries += 1
            work.draft = NO_DRAFT
