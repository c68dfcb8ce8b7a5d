"""What fits into a target pass, and what is left of one that fails."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from copyahead.contracts import Logits, Part
from copyahead.engine import Request
from copyahead.engine.answer import Answer, open_answers
from copyahead.engine.pace import ReadingPace
from copyahead.engine.passes import Passes, Work
from copyahead.engine.slots import Slots
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import Draft, Exactness, FinishReason, Source

BAD = 9


class ReusingBackend(FakeBackend):
    """Spoils what a pass returned at the next one, as the contract allows."""

    returned: Sequence[Logits] = ()

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """A pass."""
        for logits in self.returned:
            logits[:] = np.nan
        self.returned = super().forward(parts)
        return list(self.returned)


def started(backend: FakeBackend, slots: Slots, prompts: Sequence[list[int]]) -> list[Answer]:
    """An answer to each prompt, in a slot of its own."""
    keys = itertools.count()
    answers = []
    for prompt in prompts:
        request = Request(prompt=prompt)
        (answer,) = open_answers(request, backend, keys=keys, context_size=256, grammar=None)
        answer.slot, _ = slots.take(answer.tokens)
        answers.append(answer)
    return answers


def test_a_failing_pass_ends_only_the_request_that_makes_it_fail() -> None:
    model = ToyLM(seed=1)
    backend = ReusingBackend(model, fail_on=lambda _, parts: any(p.tokens[0] == BAD for p in parts))
    slots = Slots(backend)
    first, bad, last = started(backend, slots, [[1, 2], [BAD, 2], [3, 4]])
    draft = Draft((5, 6), Source.PROMPT, 4)
    works = [Work(answer, list(answer.tokens), draft) for answer in (first, bad, last)]
    done = Passes(backend, slots, ReadingPace(512, 256)).forward(works)
    assert [work.answer for work, _ in done] == [first, last]
    for work, logits in done:
        # The draft is out, and what a later pass spoils was copied.
        assert not work.draft
        assert np.array_equal(logits, [model.logits(work.answer.tokens)])
    assert bad.finish_reason is FinishReason.ERROR
    assert "a target pass failed: pass 4 was told to fail" in str(bad.error)
    assert (first.finish_reason, last.finish_reason) == (None, None)
    assert [work.answer.stats.retries for work in works] == [2, 3, 2]


def test_rows_that_were_not_settled_are_taken_back() -> None:
    backend = FakeBackend(ToyLM(seed=1))
    slots = Slots(backend)
    passes = Passes(backend, slots, ReadingPace(512, 256))
    works = [Work(answer, [1, 2]) for answer in started(backend, slots, [[1, 2]])]
    passes.forward(works)
    assert backend.held[0] == [1, 2]
    passes.take_back(works)
    assert backend.held[0] == []


@pytest.mark.parametrize(("max_rewind", "longest"), [(None, 7), (8, 7), (7, 7), (3, 3), (0, 0)])
def test_no_draft_is_longer_than_a_pass_or_than_what_can_be_taken_back(
    max_rewind: int | None, longest: int
) -> None:
    backend = FakeBackend(max_rows=8, max_rewind=max_rewind)
    passes = Passes(backend, Slots(backend), ReadingPace(512, 256))
    assert passes.longest_draft(64) == longest
    assert passes.longest_draft(2) == min(2, longest)


@pytest.mark.parametrize(
    ("rows", "level", "wanted", "room"),
    [
        (64, "exact", 10, 10),
        (64, "exact", 40, 17),
        (8, "exact", 40, 6),
        (8, "near", 40, 17),
    ],
    ids=["wanted", "rows of a pass", "exact rows", "near bounds nothing"],
)
def test_drafts_fit_into_the_rows_of_a_pass_and_into_what_is_exact(
    rows: int, level: str, wanted: int, room: int
) -> None:
    backend = FakeBackend(max_rows=20, exactness=Exactness(level, rows, 0.0))
    passes = Passes(backend, Slots(backend), ReadingPace(512, 256))
    assert passes.room_for_drafts(num_answers=2, num_rows=3, wanted=wanted) == room


@pytest.mark.parametrize("keeps", [False, True])
def test_drafts_get_the_cells_of_kept_prefixes_and_not_those_in_use(keeps: bool) -> None:
    backend = FakeBackend(num_slots=2, context_size=40, num_cells=40)
    slots = Slots(backend)
    (answer,) = started(backend, slots, [[1] * 30])
    passes = Passes(backend, slots, ReadingPace(512, 256))
    passes.forward([Work(answer, list(answer.tokens))])
    assert answer.slot is not None
    answer.slot.length = 30
    if keeps:
        slots.release(answer.slot, keep=True)
    assert passes.room_for_drafts(num_answers=1, num_rows=4, wanted=20) == (20 if keeps else 6)


def test_only_passes_without_prompts_say_what_a_step_costs() -> None:
    backend = FakeBackend(ToyLM(seed=1))
    slots = Slots(backend)
    passes = Passes(backend, slots, ReadingPace(512, 256))
    writing, reading = started(backend, slots, [[1, 2], [3, 4, 5]])
    assert writing.slot is not None
    passes.forward([Work(writing, [1, 2])])
    writing.slot.length = 2
    writing.tokens.append(3)
    for works, observed in (
        ([Work(writing, [3]), Work(reading, [3, 4])], 0),
        ([Work(writing, [3])], 1),
    ):
        passes.forward(works)
        passes.take_back(works)
        assert passes._meter._num_passes == observed
    assert writing.stats.verify_seconds > 0
    assert reading.stats.verify_seconds == 0


def test_the_time_of_a_pass_is_shared_by_rows() -> None:
    backend = FakeBackend(ToyLM(seed=1))
    slots = Slots(backend)
    passes = Passes(backend, slots, ReadingPace(512, 256))
    answers = started(backend, slots, [[1, 2], [3, 4]])
    passes.forward([Work(answer, list(answer.tokens)) for answer in answers])
    for answer in answers:
        assert answer.slot is not None
        answer.slot.length = 2
        answer.tokens.append(5)
    one, three = (
        Work(answer, [5], draft)
        for answer, draft in zip(answers, (Draft(), Draft((6, 7))), strict=True)
    )
    passes.forward([one, three])
    alone = one.answer.stats.verify_seconds
    assert three.answer.stats.verify_seconds == pytest.approx(3 * alone)
    assert alone > 0
