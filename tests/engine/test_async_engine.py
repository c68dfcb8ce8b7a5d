"""The engine in its thread: streams, cancelling, neighbours, faults."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence

import pytest

from copyahead.contracts import Logits, Part
from copyahead.engine import Engine, Request
from copyahead.engine.async_engine import AsyncEngine
from copyahead.errors import EngineStopped, RequestError
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import FinishReason
from tests.toys import plain, same

LONG = Request(prompt=[1, 2, 3], max_tokens=200, ignore_eos=True)


class Gated(FakeBackend):
    """A backend whose passes wait for a permit, so that a test decides when they happen."""

    def __init__(self, *, num_slots: int) -> None:
        super().__init__(ToyLM(seed=1), num_slots=num_slots)
        self.permits = threading.Semaphore(0)
        self.waits = threading.Event()

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        self.waits.set()
        assert self.permits.acquire(timeout=10)
        self.waits.clear()
        return super().forward(parts)

    async def is_in_a_pass(self) -> None:
        """Wait until a pass waits for its permit."""
        assert await asyncio.to_thread(self.waits.wait, 10)


async def test_streams_side_by_side_equal_their_plain_runs() -> None:
    requests = [
        Request(
            prompt=[1, 2, seed], max_tokens=40, sampling=SamplingOptions(temperature=1, seed=seed)
        )
        for seed in range(8)
    ]
    async with AsyncEngine(Engine(FakeBackend(ToyLM(seed=2), num_slots=3))) as engine:
        together = await asyncio.gather(*(engine.complete(request) for request in requests))
    for request, got in zip(requests, together, strict=True):
        assert same(got, plain(FakeBackend(ToyLM(seed=2)), request))


async def test_leaving_a_stream_frees_its_slot_within_one_step() -> None:
    backend = Gated(num_slots=1)
    async with AsyncEngine(Engine(backend)) as engine:
        stream = engine.generate(LONG)
        backend.permits.release(3)
        chunks = aiter(stream)
        await anext(chunks)
        await chunks.aclose()  # type: ignore[attr-defined]
        passes = backend.num_passes
        backend.permits.release(1000)
        other = await engine.complete(Request(prompt=[4, 5], max_tokens=5, ignore_eos=True))
        assert other.stats.num_output_tokens == 5
        # At most the pass in flight and one more belonged to the request that left.
        assert backend.num_passes - passes <= 4 + 5
        assert engine.num_active == 0
    assert backend.num_samplers == 0


async def test_a_queued_request_that_leaves_does_not_touch_the_running_one() -> None:
    backend = Gated(num_slots=1)
    async with AsyncEngine(Engine(backend)) as engine:
        running = asyncio.create_task(engine.complete(LONG))
        await backend.is_in_a_pass()
        queued = engine.generate(LONG)
        reading = asyncio.ensure_future(anext(aiter(queued)))
        await passing(backend, queued.accepted())
        assert engine.num_active == 2
        assert not queued._started.is_set()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert not running.done()
        backend.permits.release(1000)
        assert same(await running, plain(FakeBackend(ToyLM(seed=1)), LONG))
        assert queued.handle is not None
        assert queued.handle.answers[0].finish_reason is FinishReason.CANCELLED
        assert queued.stats.num_output_tokens == 0


async def test_a_bad_request_is_refused_before_any_chunk() -> None:
    async with AsyncEngine(Engine(FakeBackend())) as engine:
        with pytest.raises(RequestError, match="prompt is empty"):
            await engine.complete(Request(prompt=[]))
        good = await engine.complete(Request(prompt=[1], max_tokens=3, ignore_eos=True))
        assert good.choices[0].finish_reason is FinishReason.LENGTH


async def test_closing_ends_running_streams_with_an_error() -> None:
    backend = Gated(num_slots=1)
    engine = AsyncEngine(Engine(backend))
    stream = engine.generate(LONG)
    backend.permits.release(2)
    chunks = aiter(stream)
    await anext(chunks)
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    while engine.running:
        await asyncio.sleep(0.001)
    backend.permits.release(5)
    with pytest.raises(EngineStopped):
        async for _ in chunks:
            pass
    await closing
    assert backend.closed
    with pytest.raises(EngineStopped):
        await engine.complete(LONG)


async def test_the_event_loop_is_free_while_a_pass_runs() -> None:
    backend = Gated(num_slots=1)
    async with AsyncEngine(Engine(backend)) as engine:
        task = asyncio.create_task(engine.complete(LONG))
        await backend.is_in_a_pass()
        for _ in range(20):
            await asyncio.sleep(0)
        assert backend.waits.is_set()
        assert not task.done()
        backend.permits.release(1000)
        await task


async def passing(backend: Gated, wanted: Coroutine[None, None, None]) -> None:
    """Let passes happen, a few at a time, until `wanted` is there."""
    task = asyncio.ensure_future(wanted)
    while not task.done():
        backend.permits.release()
        await asyncio.sleep(0.002)
    await task


async def test_a_stream_tells_when_it_is_accepted_and_when_it_holds_a_slot() -> None:
    backend = Gated(num_slots=1)
    async with AsyncEngine(Engine(backend)) as engine:
        first, second = engine.generate(LONG), engine.generate(LONG)
        await passing(backend, first.started())
        await passing(backend, second.accepted())
        assert not second._started.is_set()
        with pytest.raises(RequestError, match="prompt is empty"):
            await passing(backend, engine.generate(Request(prompt=[])).accepted())
        first.close()
        backend.permits.release(1000)
        await second.started()
        second.close()


async def test_a_request_that_the_worker_never_took_ends_when_the_engine_closes() -> None:
    backend = Gated(num_slots=1)
    engine = AsyncEngine(Engine(backend))
    engine.generate(LONG)
    await backend.is_in_a_pass()
    # The worker waits inside a pass: this order is still in the queue when it is told to stop.
    late = engine.generate(LONG)
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    while engine.running:
        await asyncio.sleep(0.001)
    assert len(engine._orders) == 1
    backend.permits.release(1000)
    with pytest.raises(EngineStopped):
        await asyncio.wait_for(late.accepted(), timeout=10)
    await closing


async def test_a_stream_that_is_never_read_is_not_kept() -> None:
    request = Request(prompt=[1], max_tokens=3, ignore_eos=True, n=2)
    async with AsyncEngine(Engine(FakeBackend())) as engine:
        unread = [engine.generate(request) for _ in range(5)]
        # It comes after them and is longer.
        await engine.complete(Request(prompt=[1], max_tokens=40, ignore_eos=True))
        assert not engine._streams
        assert all(stream.handle is not None and stream.handle.done for stream in unread)
        choices = [chunk.index async for chunk in unread[0] if chunk.finish_reason is not None]
        assert sorted(choices) == [0, 1]
