"""Requests that arrive while others run, predictions drafted, write what they write alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.config import LookupOptions
from copyahead.engine import Choice, Engine, Request
from copyahead.loading import make_engine
from copyahead.sampling import SamplingOptions
from tests.tiny_models import REAL_VOCAB

KINDS = ["plain", "sliding_window", "hybrid"]
POLICY = LookupOptions(policy="fixed:num_draft_tokens=7,shortest_key=1")


def requests(count: int, seed: int) -> list[Request]:
    random = np.random.default_rng(seed)
    shared = random.integers(3, REAL_VOCAB, 40).tolist()
    made = []
    for number in range(count):
        own = random.integers(3, REAL_VOCAB, int(random.integers(1, 60))).tolist()
        sampled = SamplingOptions(temperature=0.7, seed=number)
        made.append(
            Request(
                prompt=[*(shared if number % 2 else []), *own],
                max_tokens=int(random.integers(1, 40)),
                sampling=sampled if number % 3 else SamplingOptions(),
                ignore_eos=True,
            )
        )
    return made


def alone(path: Path, asked: Sequence[Request]) -> list[list[int]]:
    settings = LlamaSettings(threads=1, ctx=256)
    with make_engine(LlamaBackend(path, settings), lookup=LookupOptions(lookup=False)) as engine:
        answers = []
        for request in asked:
            answers.append(engine.complete(request).choices[0].tokens)
            engine.reset()
    return answers


def predicted(
    asked: Sequence[Request], answers: Sequence[Sequence[int]], seed: int
) -> list[Request]:
    """With the answers as predictions, of which some tokens are wrong."""
    random = np.random.default_rng(seed)
    made = []
    for request, answer in zip(asked, answers, strict=True):
        wrong = random.random(len(answer)) < 0.15
        prediction = np.where(wrong, random.integers(3, REAL_VOCAB, len(answer)), answer)
        made.append(
            Request(
                prompt=request.prompt,
                max_tokens=request.max_tokens,
                sampling=request.sampling,
                ignore_eos=True,
                prediction=prediction.tolist(),
            )
        )
    return made


def together(engine: Engine, asked: Sequence[Request], seed: int) -> tuple[list[list[int]], int]:
    """The answers, and how many drafted tokens were kept; the books agree after every step."""
    random = np.random.default_rng(seed)
    choices = [Choice(index=0) for _ in asked]
    handles = []
    for request, choice in zip(asked, choices, strict=True):
        handles.append(engine.submit(request, choice.add))
        for _ in range(int(random.integers(0, 12))):
            engine.step()
            engine.check()
    while not all(handle.done for handle in handles):
        engine.step()
        engine.check()
    kept = sum(handle.stats.num_accepted_tokens for handle in handles)
    return [choice.tokens for choice in choices], kept


def answers_differ(path: Path, count: int, seed: int) -> int:
    asked = requests(count, seed)
    expected = alone(path, asked)
    backend = LlamaBackend(path, LlamaSettings(threads=1, ctx=256, parallel=4))
    with make_engine(backend, lookup=POLICY) as engine:
        found, kept = together(engine, predicted(asked, expected, seed), seed)
    assert kept > count
    return sum(one != other for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_arrivals_change_no_answer(kind: str, tiny_models: dict[str, Path]) -> None:
    assert answers_differ(tiny_models[kind], 25, seed=1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_arrivals_change_no_answer(kind: str, tiny_models: dict[str, Path]) -> None:
    assert [answers_differ(tiny_models[kind], 180, seed) for seed in range(6)] == [0] * 6
