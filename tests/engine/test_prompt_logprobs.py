"""Log-probabilities of a prompt, however it was read: in chunks, again, beside others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from copyahead.contracts import Logits, Part
from copyahead.engine import Engine, Request
from copyahead.engine.scheduler import SCORED_ROWS, EngineOptions
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import FinishReason
from tests.toys import oracle, plain, run, same

MODEL = ToyLM(seed=3)
PROMPT = tuple(int(token) for token in np.random.default_rng(5).integers(1, MODEL.vocab_size, 100))
GREEDY = SamplingOptions(temperature=0.0)


class Counting(FakeBackend):
    """Notes how many rows of logits each part of each pass asks for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(MODEL, context_size=400, **options)
        self.asked: list[int] = []

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """A pass."""
        self.asked += [part.num_logits for part in parts]
        return super().forward(parts)


def request(**options: Any) -> Request:
    given: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 8, "sampling": GREEDY}
    return Request(**{**given, "ignore_eos": True, "prompt_logprobs": 3, **options})


def expected(prompt: Sequence[int]) -> list[float]:
    """Straight from the model: of every token but the first."""
    values = []
    for place in range(1, len(prompt)):
        row = MODEL.logits(prompt[:place]).astype(np.float64)
        values.append(float(row[prompt[place]] - np.log(np.exp(row).sum())))
    return values


@pytest.mark.parametrize("max_tokens", [0, 1, 8])
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_they_are_the_models_own_in_any_chunks(max_tokens: int, chunk: int) -> None:
    options = EngineOptions(chunk_tokens=chunk, busy_chunk_tokens=chunk)
    backend = Counting()
    with Engine(backend, options=options) as engine:
        answer = engine.complete(request(max_tokens=max_tokens)).choices[0]
    assert answer.finish_reason is FinishReason.LENGTH
    assert len(answer.tokens) == max_tokens
    assert [entry.token for entry in answer.prompt_logprobs] == list(PROMPT[1:])
    assert [e.logprob for e in answer.prompt_logprobs] == pytest.approx(expected(PROMPT), abs=1e-5)
    assert {len(entry.top) for entry in answer.prompt_logprobs} == {3}
    assert max(backend.asked) <= SCORED_ROWS
    assert backend.num_samplers == 0


def test_what_was_kept_of_the_prompt_is_read_again_for_them() -> None:
    with Engine(FakeBackend(MODEL, context_size=400)) as engine:
        first = engine.complete(request(prompt_logprobs=None))
        assert first.choices[0].prompt_logprobs == []
        scored = engine.complete(request())
        assert scored.stats.num_cached_tokens == 0
        assert len(scored.choices[0].prompt_logprobs) == len(PROMPT) - 1
        assert scored.choices[0].tokens == first.choices[0].tokens
        after = engine.complete(request(prompt_logprobs=None))
        assert after.stats.num_cached_tokens > 0


def test_they_are_the_same_with_drafts_beside_others_and_after_giving_way() -> None:
    alone = plain(FakeBackend(MODEL, context_size=400), request(max_tokens=60))
    plan = oracle(PROMPT, alone.choices[0].tokens, 5)
    others = [request(prompt=PROMPT[:60], max_tokens=60, n=2), request(max_tokens=60)]
    backend = FakeBackend(MODEL, context_size=400, num_slots=4, num_cells=330)
    answers = run(backend, [*others, request(max_tokens=60)], plan, arrivals=[0, 1, 2])
    assert sum(answer.stats.preemptions for answer in answers) > 0
    assert same(answers[2], alone)
    for answer in (*answers[2].choices, *answers[1].choices):
        assert answer.prompt_logprobs == alone.choices[0].prompt_logprobs
    for answer in answers[0].choices:
        assert answer.prompt_logprobs == alone.choices[0].prompt_logprobs[:59]


def test_a_prompt_of_one_token_has_none() -> None:
    for max_tokens in (0, 2):
        answer = plain(FakeBackend(MODEL), request(prompt=(4,), max_tokens=max_tokens)).choices[0]
        assert answer.prompt_logprobs == []
        assert len(answer.tokens) == max_tokens


def test_an_answer_that_is_cancelled_while_its_prompt_is_scored_gives_its_place_back() -> None:
    backend = FakeBackend(MODEL, context_size=400)
    with Engine(backend) as engine:
        chunks = engine.generate(request())
        assert len(next(chunks).prompt_logprobs) == SCORED_ROWS
        chunks.close()  # type: ignore[attr-defined]
        assert engine.num_active == 0
        assert backend.num_samplers == 0
        engine.check()
