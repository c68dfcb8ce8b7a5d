"""What the engine tells of its requests and tells its drafters, and what a reset leaves."""

from __future__ import annotations

from functools import partial

import pytest

from copyahead.config import LookupOptions
from copyahead.engine import Chunk, Engine, Request
from copyahead.engine.scheduler import EngineOptions
from copyahead.loading import make_engine
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM


def test_the_prompt_of_several_choices_counts_once() -> None:
    request = Request(prompt=[1, 2] * 20, n=3, max_tokens=4, ignore_eos=True)
    with Engine(FakeBackend(ToyLM(seed=1))) as engine:
        first = engine.complete(request)
        second = engine.complete(request)
    assert (first.stats.num_prompt_tokens, first.stats.num_cached_tokens) == (40, 0)
    assert (second.stats.num_prompt_tokens, second.stats.num_cached_tokens) == (40, 39)
    assert second.stats.num_output_tokens == 12
    # Its own total, after all that have ended.
    assert engine.stats.num_output_tokens == 24


def test_a_window_is_reported_where_the_policy_has_one() -> None:
    request = Request(prompt=[1, 2], max_tokens=4, ignore_eos=True)
    for policy, window in (("window", 2), ("single", None)):
        backend = FakeBackend(ToyLM(seed=1))
        with make_engine(backend, lookup=LookupOptions(policy=policy)) as engine:
            assert engine.complete(request).stats.window == window


@pytest.mark.parametrize("num_requests", [1, 3])
def test_drafters_are_told_how_many_requests_are_active(num_requests: int) -> None:
    with Engine(FakeBackend(ToyLM(seed=1)), make_drafter=ForcedDrafter({})) as engine:
        for _ in range(num_requests):
            engine.submit(Request(prompt=[1, 2], ignore_eos=True), lambda _: None)
        engine.step()
        assert engine._drafting.load.active_requests == num_requests


def test_a_reset_leaves_no_prefix() -> None:
    backend = FakeBackend(ToyLM(seed=1))
    request = Request(prompt=[1, 2] * 20, max_tokens=4, ignore_eos=True)
    with Engine(backend) as engine:
        engine.complete(request)
        assert engine.cells_in_use > 0
        engine.reset()
        assert engine.cells_in_use == 0
        assert not any(backend.held)
        assert engine.complete(request).stats.num_cached_tokens == 0


def test_who_waits_for_a_slot_is_told_before_the_prompt_is_read() -> None:
    told: list[int] = []
    chunks: list[Chunk] = []
    backend = FakeBackend(ToyLM(seed=1), num_slots=1)
    with Engine(backend, options=EngineOptions(chunk_tokens=8)) as engine:
        for place, size in enumerate((2, 40)):
            handle = engine.submit(Request(prompt=[1] * size, max_tokens=2), chunks.append)
            handle.on_start = partial(told.append, place)
        engine.step()
        assert told == [0]
        while engine._handles.keys() != {1}:
            engine.step()
        chunks.clear()
        engine.step()
        assert told == [0, 1]
        assert chunks == []
        while engine.step():
            pass
    assert told == [0, 1]
