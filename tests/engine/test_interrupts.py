"""A step that is left early: whatever raises, and wherever, the answers go on as if nothing had."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from copyahead.backends.numpy_sampler import NumpySampler
from copyahead.engine import Engine, Request
from copyahead.engine.answer import Answer
from copyahead.engine.async_engine import AsyncEngine
from copyahead.engine.drafting import Drafting
from copyahead.engine.handle import collector
from copyahead.engine.passes import Passes
from copyahead.engine.request import Choice
from copyahead.engine.scheduler import Scheduler
from copyahead.engine.slots import Slots
from copyahead.engine.text import TextStream
from copyahead.sampling import SamplingOptions
from copyahead.stats import CopyStats
from copyahead.testing import FakeBackend, ForcedDrafter, ForcedSession, ToyLM
from copyahead.types import FinishReason

PLACES: list[tuple[type, str]] = [
    (Engine, "_plan"), (Engine, "_settle"), (Engine, "_catch_up"), (Engine, "_emit"),
    (Passes, "forward"), (Passes, "take_back"), (Passes, "room_for_drafts"),
    (Scheduler, "shares"), (Scheduler, "retire"), (Scheduler, "_start"), (Scheduler, "_preempt"),
    (Slots, "take"), (Slots, "cut"), (Slots, "release"), (Slots, "make_room"),
    (Drafting, "propose"), (Drafting, "settle"), (Drafting, "open"), (Drafting, "close"),
    (Answer, "verify"), (Answer, "_choose"), (Answer, "_accept"), (Answer, "settle"),
    (TextStream, "push"), (NumpySampler, "sample"), (CopyStats, "record_round"),
    (ForcedSession, "propose"), (ForcedSession, "settle"),
    (FakeBackend, "forward"), (FakeBackend, "truncate"), (FakeBackend, "fork"),
]  # fmt: skip

REQUESTS = [
    Request(prompt=[1, 2, 3], max_tokens=5, ignore_eos=True),
    Request(prompt=[2, 4], max_tokens=14, ignore_eos=True, n=2,
            sampling=SamplingOptions(temperature=1.0, seed=3)),
    Request(prompt=[3] * 20, max_tokens=9, ignore_eos=True, stop=("END",), logprobs=1),
    Request(prompt=[1], max_tokens=0),
]  # fmt: skip


def drafted(history: tuple[int, ...]) -> list[int]:
    """Some right, some wrong."""
    return [*history[-3:], *history[-2:]]


class Planted(KeyboardInterrupt):
    """What is raised, once."""


class Plant:
    """Raises in one call of a method: before its work, or after it."""

    def __init__(self, call: int, after: bool) -> None:
        self.call, self.after = call, after
        self.num_calls = 0

    @contextmanager
    def at(self, owner: type, name: str) -> Iterator[None]:
        method = getattr(owner, name)

        def planted(*arguments: Any, **options: Any) -> Any:
            self.num_calls += 1
            now = self.num_calls == self.call
            if now and not self.after:
                raise Planted
            result = method(*arguments, **options)
            if now:
                raise Planted
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, planted)
            yield


def answers(plant: Plant, place: tuple[type, str] | None) -> list[list[Choice]]:
    """All answers, written together by an engine with too few slots and cells for them."""
    backend = FakeBackend(ToyLM(seed=5), num_slots=3, context_size=64, num_cells=70)
    engine = Engine(backend, make_drafter=ForcedDrafter(drafted))
    choices = [[Choice(index=i) for i in range(request.n)] for request in REQUESTS]
    handles = [
        engine.submit(request, collector(mine))
        for request, mine in zip(REQUESTS, choices, strict=True)
    ]

    def run() -> None:
        for _ in range(500):
            if engine.num_active:
                engine.step()
                engine.check()
        assert not engine.num_active, "the engine does not come to an end"

    if place is not None:
        with plant.at(*place):
            try:
                run()
            except Planted:
                engine.check()
                run()
    run()
    assert all(handle.done for handle in handles)
    assert backend.num_samplers == 0
    for handle, mine in zip(handles, choices, strict=True):
        assert handle.stats.num_output_tokens == sum(len(choice.tokens) for choice in mine)
    return choices


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_an_interrupt_changes_no_text(place: tuple[type, str], after: bool) -> None:
    expected = answers(Plant(0, False), None)
    for call in range(1, 200):
        plant = Plant(call, after)
        for mine, right in zip(answers(plant, place), expected, strict=True):
            for choice, whole in zip(mine, right, strict=True):
                if choice.finish_reason is FinishReason.ERROR:
                    # It was cut off while it drew a token; what it had is right.
                    assert choice.error == "interrupted while a token was chosen"
                    assert choice.tokens == whole.tokens[: len(choice.tokens)]
                    assert choice.logprobs == whole.logprobs[: len(choice.tokens)]
                else:
                    assert choice.tokens == whole.tokens
                    assert choice.text == whole.text
                    assert choice.logprobs == whole.logprobs
                    assert choice.finish_reason == whole.finish_reason
        if plant.num_calls < call:
            break


def test_only_an_interrupted_draw_ends_an_answer() -> None:
    plant = Plant(2, False)
    (first,), *others = answers(plant, (NumpySampler, "sample"))
    reasons = [choice.finish_reason for mine in others for choice in mine]
    assert [first.finish_reason, *reasons].count(FinishReason.ERROR) == 1


def test_what_is_asked_for_at_once_ends_when_it_is_left() -> None:
    backend = FakeBackend(ToyLM(seed=5))
    engine = Engine(backend)
    with Plant(2, False).at(FakeBackend, "forward"), pytest.raises(Planted):
        engine.complete_all(REQUESTS)
    assert engine.num_active == 0
    assert backend.num_samplers == 0


async def test_an_answer_of_no_tokens_has_its_prompt_counted() -> None:
    """Its end comes when the request has been taken on, never before."""
    async with AsyncEngine(Engine(FakeBackend())) as engine:
        submit = engine._engine.submit

        def slow(*arguments: Any) -> Any:
            handle = submit(*arguments)
            # Time for the chunk, were there one, to be read.
            for _ in range(20_000):
                pass
            return handle

        engine._engine.submit = slow  # type: ignore[assignment,method-assign]
        for _ in range(50):
            stream = engine.generate(Request(prompt=[1, 2, 3], max_tokens=0))
            chunks = [chunk async for chunk in stream]
            assert chunks[0].finish_reason is FinishReason.LENGTH
            assert stream.stats.num_prompt_tokens == 3
