"""Known faults: cancelled, preempted, failed and refused requests (rows 42-44, 100, 107, 113)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from copyahead.contracts import Logits, Part
from copyahead.engine import Chunk, Engine, Request
from copyahead.engine.scheduler import EngineOptions
from copyahead.errors import ConfigError, RequestError
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM
from copyahead.types import FinishReason
from tests.engine.cases.models import lookup_engine
from tests.toys import plain, run, same

A, B, C, D = 1, 2, 3, 6


class Interrupting(FakeBackend):
    """Calls back in the middle of a pass: before the model ran, or after."""

    def __init__(self, when: str, number: int, action: Callable[[], None]) -> None:
        super().__init__(ToyLM(seed=3), num_slots=2)
        self._when, self._number, self._action = when, number, action

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        due = self.num_passes + 1 == self._number
        if due and self._when == "before":
            self.num_passes += 1
            self._action()
        logits = super().forward(parts)
        if due and self._when == "after":
            self._action()
        return logits


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 8))
def test_case_42_an_interrupt_in_a_pass_leaves_a_usable_engine(when: str, number: int) -> None:
    request = Request(prompt=[A, B, C] * 5, max_tokens=30, ignore_eos=True)
    other = Request(prompt=[D, B], max_tokens=30, ignore_eos=True)
    backend = Interrupting(when, number, interrupt)
    engine = Engine(backend, make_drafter=ForcedDrafter(lambda h: h[-6:-1]))
    seen: list[Chunk] = []
    neighbour = engine.submit(other, seen.append)
    with pytest.raises(KeyboardInterrupt):
        list(engine.generate(request))
    engine.check()
    assert engine.num_active == 1
    assert backend.num_samplers == 1
    assert same(engine.complete(request), plain(FakeBackend(ToyLM(seed=3)), request))
    while not neighbour.done:
        engine.step()
    text = "".join(chunk.text for chunk in seen)
    assert text == plain(FakeBackend(ToyLM(seed=3)), other).text
    assert backend.num_samplers == engine.num_active == 0


@pytest.mark.parametrize("after", range(12))
@pytest.mark.parametrize("whom", ["self", "other", "queued"])
def test_case_42_and_43_a_cancel_ends_one_request_and_no_other(after: int, whom: str) -> None:
    wanted = [
        Request(prompt=[A, B, place + 1], max_tokens=25, ignore_eos=True) for place in range(3)
    ]
    backend = FakeBackend(ToyLM(seed=3), num_slots=2)
    engine = Engine(backend, make_drafter=ForcedDrafter(lambda h: h[-4:-1]))
    target = {"self": 0, "other": 1, "queued": 2}[whom]
    texts = ["", "", ""]
    chunks = 0

    def sink(place: int) -> Callable[[Chunk], None]:
        def take(chunk: Chunk) -> None:
            nonlocal chunks
            texts[place] += chunk.text
            chunks += place == 0
            # From inside the step, while others of it have not been handed out yet.
            if place == 0 and chunks == after:
                engine.cancel(handles[target])
                engine.cancel(handles[target])

        return take

    handles = [engine.submit(request, sink(place)) for place, request in enumerate(wanted)]
    if after == 0:
        engine.cancel(handles[target])
    while not all(handle.done for handle in handles):
        engine.step()
        engine.check()
    for place, request in enumerate(wanted):
        expected = plain(FakeBackend(ToyLM(seed=3)), request).text
        reason = handles[place].answers[0].finish_reason
        if place == target and reason is FinishReason.CANCELLED:
            assert expected.startswith(texts[place])
        else:
            assert texts[place] == expected
    assert backend.num_samplers == engine.num_active == 0
    again = engine.complete(wanted[target])
    assert same(again, plain(FakeBackend(ToyLM(seed=3)), wanted[target]))


def test_case_43_a_sink_that_fails_cancels_its_own_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = [
        Request(prompt=[A, B, place + 1], max_tokens=25, ignore_eos=True) for place in range(2)
    ]
    engine = Engine(FakeBackend(ToyLM(seed=3)), make_drafter=ForcedDrafter({}))
    seen: list[Chunk] = []

    def broken(_chunk: Chunk) -> None:
        raise ConnectionError("the client has gone")

    with caplog.at_level(logging.ERROR):
        first = engine.submit(wanted[0], broken)
        second = engine.submit(wanted[1], seen.append)
        while engine.step():
            engine.check()
    assert first.answers[0].finish_reason is FinishReason.CANCELLED
    assert second.done
    expected = plain(FakeBackend(ToyLM(seed=3)), wanted[1])
    assert "".join(chunk.text for chunk in seen) == expected.text
    assert "the client has gone" in caplog.text
    assert engine.num_active == 0


@pytest.mark.parametrize("num_steps", range(6))
def test_case_44_a_cancel_around_the_first_token_keeps_a_true_prefix(num_steps: int) -> None:
    prompt = [1 + i % 7 for i in range(30)]
    backend = FakeBackend(ToyLM(seed=3), num_slots=1)
    engine = Engine(backend, options=EngineOptions(chunk_tokens=10))
    handle = engine.submit(Request(prompt=prompt), lambda _: None)
    for _ in range(num_steps):
        engine.step()
    engine.cancel(handle)
    engine.check()
    held = len(backend.held[0])
    again = Request(prompt=[*prompt, A, B], max_tokens=10)
    got = engine.complete(again)
    assert same(got, plain(FakeBackend(ToyLM(seed=3)), again))
    assert got.stats.num_cached_tokens == min(held, 30)
    assert held >= min(10 * num_steps, 30)


@pytest.mark.parametrize("chunk", [1, 3, 7, 50])
def test_case_100_nothing_is_drafted_before_the_prompt_is_in(chunk: int) -> None:
    prompt = [A, B, C] * 8

    class Watched(FakeBackend):
        def forward(self, parts: Sequence[Part]) -> list[Logits]:
            for part in parts:
                if part.start < len(prompt) - 1:
                    assert list(part.tokens) == prompt[part.start : part.start + len(part.tokens)]
                    assert part.num_logits == (part.start + len(part.tokens) == len(prompt))
            return super().forward(parts)

    request = Request(prompt=prompt, max_tokens=20)
    options = EngineOptions(chunk_tokens=chunk, busy_chunk_tokens=chunk)
    backend = Watched(ToyLM(seed=2), num_slots=1)
    got = run(backend, [request], lambda h: h[-5:-1], options=options)[0]
    assert same(got, plain(FakeBackend(ToyLM(seed=2)), request))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_100_preempted_and_resumed_is_uninterrupted(temperature: float) -> None:
    wanted = [
        Request(
            prompt=[A, B, place + 1],
            max_tokens=50,
            ignore_eos=True,
            logprobs=1,
            sampling=SamplingOptions(temperature=temperature, seed=place, frequency_penalty=0.2),
        )
        for place in range(3)
    ]
    backend = FakeBackend(ToyLM(seed=2), context_size=64, num_slots=3, num_cells=80)
    got = run(backend, wanted, lambda h: h[-6:-1])
    assert sum(completion.stats.preemptions for completion in got) > 0
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=2)), request))


@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("in_a_row", [1, 2])
def test_case_107_a_failed_pass_is_tried_again_without_drafts(number: int, in_a_row: int) -> None:
    wanted = [
        Request(prompt=[A, B, place + 1], max_tokens=25, ignore_eos=True) for place in range(2)
    ]
    failing = range(number, number + in_a_row)
    backend = FakeBackend(ToyLM(seed=2), fail_on=lambda n, _parts: n in failing)
    got = run(backend, wanted, lambda h: h[-5:-1])
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=2)), request))
    assert sum(completion.stats.retries for completion in got) >= 1


@pytest.mark.parametrize("n", [1, 2])
def test_case_107_a_request_that_always_fails_is_the_only_one_to(n: int) -> None:
    # Passes over the slot that holds a D first fail; so that request can never go on.
    def fails(_number: int, parts: Sequence[Part]) -> bool:
        return any(part.start == 0 and part.tokens[0] == D for part in parts)

    wanted = [
        Request(prompt=[A, B], max_tokens=20),
        Request(prompt=[D, A], n=n),
        Request(prompt=[C, B], max_tokens=20),
    ]
    backend = FakeBackend(ToyLM(seed=2), fail_on=fails)
    got = run(backend, wanted, lambda h: h[-5:-1])
    assert [c.finish_reason for c in got[1].choices] == [FinishReason.ERROR] * n
    assert all("pass" in (c.error or "") for c in got[1].choices)
    for place in (0, 2):
        assert same(got[place], plain(FakeBackend(ToyLM(seed=2)), wanted[place]))
    assert not any(len(held) > 0 and held[0] == D for held in backend.held)


def test_case_113_what_cannot_be_done_is_refused_before_any_work() -> None:
    backend = FakeBackend()
    with lookup_engine(backend) as engine:
        with pytest.raises(RequestError, match="exclude"):
            engine.submit(Request(prompt=[A], grammar="g", json_schema="{}"), lambda _: None)
        with pytest.raises(RequestError, match="unknown"):
            engine.submit(Request(prompt=[A], policy="no such policy"), lambda _: None)
        assert engine.num_active == backend.num_passes == backend.num_samplers == 0
    with pytest.raises(ConfigError, match="unknown"):
        lookup_engine(FakeBackend(), "no such policy")
    for rewind, longest in ((0, 0), (3, 3), (None, 64)):
        assert lookup_engine(FakeBackend(max_rewind=rewind)).max_draft_tokens == longest
