"""Who is admitted next, who gives its place up, and how prompts share a pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from copyahead.contracts import Logits, Part
from copyahead.engine import Choice, Chunk, Engine, Request
from copyahead.engine.answer import Answer
from copyahead.engine.handle import collector
from copyahead.engine.scheduler import EngineOptions
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import FinishReason


class Noting(FakeBackend):
    """Notes how many tokens of each prompt a pass takes, by the prompt's first token."""

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """A pass."""
        self.last = {(self.held[p.slot] or p.tokens)[0]: len(p.tokens) for p in parts}
        return super().forward(parts)


def test_who_gave_its_place_up_is_the_next_to_get_one() -> None:
    backend = FakeBackend(ToyLM(seed=2), context_size=64, num_slots=2, num_cells=80)
    ended: list[int] = []

    def submit(engine: Engine, place: int) -> Answer:
        def note(chunk: Chunk) -> None:
            ended.extend([place] * (chunk.finish_reason is not None))

        request = Request(prompt=[1, 2, place + 3], max_tokens=50, ignore_eos=True)
        return engine.submit(request, note).answers[0]

    with Engine(backend) as engine:
        first, second, third = (submit(engine, place) for place in range(3))
        while not second.stats.preemptions:
            assert engine.step()
        assert list(engine._scheduler.waiting) == [second, third]
        while engine.step():
            engine.check()
    assert first.stats.preemptions == 0
    assert ended == [0, 1, 2]


@pytest.mark.parametrize(
    ("sizes", "chunk", "shares"),
    [
        ((100, 50, 10), 40, [20, 10, 10]),
        ((100, 10, 50), 40, [20, 10, 10]),
        ((100, 10, 50), 41, [21, 10, 10]),
        ((100, 30, 40), 40, [20, 20, 0]),
        ((100, 10, 5), 80, [65, 10, 5]),
        ((100, 10, 5), 1, [1, 0, 0]),
        ((5, 50, 60), 40, [5, 35, 0]),
    ],
)
def test_half_of_a_pass_is_the_oldest_prompts_and_the_rest_goes_to_the_shortest_first(
    sizes: tuple[int, ...], chunk: int, shares: list[int]
) -> None:
    backend = Noting()
    with Engine(backend, options=EngineOptions(chunk_tokens=chunk)) as engine:
        for first, size in enumerate(sizes, start=1):
            engine.submit(Request(prompt=[first] * size), lambda _: None)
        engine.step()
    assert [backend.last.get(first, 0) for first in range(1, 4)] == shares


def test_prompts_get_the_smaller_chunk_while_an_answer_is_written() -> None:
    backend = Noting(ToyLM(seed=1))
    options = EngineOptions(chunk_tokens=40, busy_chunk_tokens=8)
    with Engine(backend, options=options) as engine:
        engine.submit(Request(prompt=[1], ignore_eos=True), lambda _: None)
        engine.step()
        engine.submit(Request(prompt=[2] * 50), lambda _: None)
        engine.step()
    assert backend.last == {1: 1, 2: 8}


@pytest.mark.parametrize(("cells", "running"), [(20 + 20 + 32, 2), (20 + 20 + 31, 1)])
def test_a_prompt_is_admitted_beside_others_where_cells_are_left_to_go_on(
    cells: int, running: int
) -> None:
    backend = FakeBackend(ToyLM(seed=1), context_size=64, num_slots=2, num_cells=cells)
    with Engine(backend) as engine:
        engine.submit(Request(prompt=[1] * 20), lambda _: None)
        engine.step()
        engine.submit(Request(prompt=[2] * 20), lambda _: None)
        engine._scheduler.shares()
        assert len(engine._scheduler.running) == running


def test_nothing_of_a_failed_answer_is_kept_as_a_prefix() -> None:
    # Its first chunk is read, and then passes fail until it is given up.
    backend = FakeBackend(ToyLM(seed=1), fail_on=lambda number, _: 2 <= number <= 4)
    request = Request(prompt=[1, 2, 3] * 8, max_tokens=3)
    with Engine(backend, options=EngineOptions(chunk_tokens=16)) as engine:
        failed = engine.complete(request)
        assert failed.choices[0].finish_reason is FinishReason.ERROR
        assert not any(backend.held)
        again = engine.complete(request)
    assert again.choices[0].error is None
    assert again.stats.num_cached_tokens == 0


def test_who_gave_its_place_up_still_says_what_it_found_at_first() -> None:
    backend = FakeBackend(ToyLM(seed=2), context_size=64, num_slots=2, num_cells=80)
    kept = [3] * 16
    with Engine(backend) as engine:
        engine.complete(Request(prompt=kept, max_tokens=1, ignore_eos=True))
        longer = Request(prompt=[1, 2, 5], max_tokens=60, ignore_eos=True)
        engine.submit(longer, lambda _: None)
        engine.step()
        following = Request(prompt=[*kept, 4], max_tokens=45, ignore_eos=True)
        (answer,) = engine.submit(following, lambda _: None).answers
        while engine.step():
            engine.check()
    assert answer.stats.preemptions > 0
    assert answer.stats.num_cached_tokens == 16


def test_a_choice_that_waits_for_the_prompt_to_be_read_holds_up_nobody_behind_it() -> None:
    with Engine(FakeBackend(ToyLM(seed=2)), options=EngineOptions(chunk_tokens=8)) as engine:
        leader, follower = engine.submit(Request(prompt=[1] * 40, n=2), lambda _: None).answers
        (other,) = engine.submit(Request(prompt=[2, 3]), lambda _: None).answers
        engine.step()
        assert engine._scheduler.running == [leader, other]
        assert list(engine._scheduler.waiting) == [follower]


def lasting(*prompt: int, **options: Any) -> Request:
    """A request whose answers go on for as long as the context lasts."""
    return Request(prompt=list(prompt), ignore_eos=True, **options)


def slots_of(engine: Engine) -> list[int]:
    """How many slots the answers to each prompt hold, by the prompt's first token."""
    held = Counter(answer.tokens[0] for answer in engine._scheduler.running)
    return [held[first] for first in range(1, 5)]


def test_many_answers_of_one_request_give_a_slot_up_for_another_that_has_none() -> None:
    with Engine(FakeBackend(ToyLM(seed=1), num_slots=3)) as engine:
        engine.submit(lasting(1, n=9), lambda _: None)
        for _ in range(3):
            engine.step()
        assert slots_of(engine) == [3, 0, 0, 0]
        engine.submit(lasting(2), lambda _: None)
        engine.step()
        assert slots_of(engine) == [2, 1, 0, 0]
        engine.submit(lasting(3), lambda _: None)
        engine.step()
        engine.submit(lasting(4), lambda _: None)
        engine.step()
        assert slots_of(engine) == [1, 1, 1, 0]
        engine.check()


def test_requests_of_one_group_share_slots_as_one() -> None:
    with Engine(FakeBackend(ToyLM(seed=1), num_slots=3)) as engine:
        for _ in range(5):
            engine.submit(lasting(1, group="batch"), lambda _: None)
        engine.step()
        assert slots_of(engine) == [3, 0, 0, 0]
        engine.submit(lasting(2, n=4), lambda _: None)
        engine.step()
        assert slots_of(engine) == [2, 1, 0, 0]


def test_a_free_slot_goes_to_the_tenant_that_holds_fewest() -> None:
    with Engine(FakeBackend(ToyLM(seed=1), num_slots=2)) as engine:
        first = engine.submit(lasting(1, tenant="a"), lambda _: None)
        for _ in range(3):
            engine.submit(lasting(1, tenant="a"), lambda _: None)
        engine.submit(lasting(2, tenant="b"), lambda _: None)
        engine.step()
        assert slots_of(engine) == [1, 1, 0, 0]
        engine.cancel(first)
        engine.step()
        assert slots_of(engine) == [1, 1, 0, 0]


def test_answers_that_gave_a_slot_up_have_the_text_that_they_have_alone() -> None:
    with Engine(FakeBackend(ToyLM(seed=1), num_slots=3, context_size=64)) as engine:
        request = lasting(1, 2, 3, n=5, sampling=SamplingOptions(temperature=1.0, seed=7))
        alone = engine.complete(request)
        choices = [Choice(index=index) for index in range(5)]
        handle = engine.submit(request, collector(choices))
        others = []
        for number in range(60):
            if number % 6 == 0:
                others.append(engine.submit(lasting(4, max_tokens=5), lambda _: None))
            engine.step()
            engine.check()
        while engine.step():
            pass
        assert handle.stats.preemptions > 1
        assert all(other.done for other in others)
    assert [choice.tokens for choice in choices] == [c.tokens for c in alone.choices]


def test_prompts_wait_while_it_is_the_turn_of_those_who_write() -> None:
    backend = Noting(ToyLM(seed=1))
    with Engine(backend) as engine:
        pace = engine._passes._pace
        engine.submit(lasting(1), lambda _: None)
        engine.step()
        engine.submit(Request(prompt=[2] * 200), lambda _: None)
        engine.submit(lasting(*[3] * 8), lambda _: None)
        pace.observe(100.0, 50, 1.0)
        engine.step()
        assert backend.last == {1: 1, 3: 8}
        pace.observe(200.0, 0, 0.0)
        engine.step()
        assert backend.last.keys() == {1, 2, 3}
