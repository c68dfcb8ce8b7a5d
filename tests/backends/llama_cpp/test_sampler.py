"""llama.cpp's samplers behind ours: order, penalties, seeds, masks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.backends.numpy_sampler import NumpySampler
from copyahead.contracts import Logits
from copyahead.sampling import SamplingOptions
from tests.tiny_models import REAL_VOCAB, VOCAB

LOWEST = -np.inf


@pytest.fixture(scope="module")
def backend(tiny_models: dict[str, Path]) -> Iterator[LlamaBackend]:
    backend = LlamaBackend(tiny_models["plain"], LlamaSettings(ctx=256))
    yield backend
    backend.close()


def row(**logits: float) -> Logits:
    """A row with the given logits, `t7=1.0` for token 7, and -20 elsewhere."""
    values = np.full(VOCAB, -20.0, dtype=np.float32)
    for name, logit in logits.items():
        values[int(name[1:])] = logit
    return values


def noise(seed: int) -> Logits:
    return np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)


def draw(backend: LlamaBackend, logits: Logits, count: int = 1, **options: Any) -> list[int]:
    sampler = backend.sampler(SamplingOptions(**options), [])
    chosen = [sampler.sample(logits.copy()) for _ in range(count)]
    sampler.close()
    return chosen


KINDS: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.3, "typical_p": 0.8},
    {"temperature": 0.7, "repetition_penalty": 1.2, "presence_penalty": 0.4},
    {"temperature": 0.9, "frequency_penalty": 0.3, "dry_multiplier": 0.8},
]


@pytest.mark.parametrize("options", KINDS)
def test_equal_logits_and_seed_give_equal_tokens_whatever_runs_between(
    backend: LlamaBackend, options: dict[str, Any]
) -> None:
    rows = [noise(seed) for seed in range(30)]

    def tokens(busy: bool) -> list[int]:
        sampler = backend.sampler(SamplingOptions(seed=7, **options), [5, 6])
        other = backend.sampler(SamplingOptions(seed=8, **options), [9])
        chosen = []
        for logits in rows:
            chosen.append(sampler.sample(logits.copy()))
            if busy:
                other.sample(noise(99))
        sampler.close()
        other.close()
        return chosen

    assert tokens(busy=False) == tokens(busy=True)
    assert len(set(tokens(busy=False))) > 5


def test_the_distribution_is_softmax(backend: LlamaBackend) -> None:
    logits = row(t5=1.0, t6=0.0)
    count = 20_000
    chosen = draw(backend, logits, count, temperature=0.5, seed=3)
    share = chosen.count(5) / count
    expected = 1 / (1 + np.exp(-2.0))
    assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize(
    "options",
    [{"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.3}, {"typical_p": 0.5}],
    ids=lambda options: next(iter(options)),
)
def test_a_filter_removes_the_unlikely(backend: LlamaBackend, options: dict[str, Any]) -> None:
    logits = row(t5=3.0, t6=2.5, t7=-1.0)
    assert 7 in draw(backend, logits, 2000, temperature=1.0, seed=1)
    assert 7 not in draw(backend, logits, 2000, temperature=1.0, seed=1, **options)


def test_temperature_comes_after_the_filters(backend: LlamaBackend) -> None:
    # At temperature 10 the second token would have a share of almost a half.
    logits = row(t5=3.0, t6=0.0)
    assert set(draw(backend, logits, 200, temperature=10.0, min_p=0.5, seed=1)) == {5}


@pytest.mark.parametrize("options", [{}, *KINDS])
def test_a_masked_logit_is_never_chosen(backend: LlamaBackend, options: dict[str, Any]) -> None:
    logits = np.full(VOCAB, LOWEST, dtype=np.float32)
    logits[[20, 30]] = [-50.0, -51.0]
    assert set(draw(backend, logits, 300, **options)) <= {20, 30}
    logits[20] = LOWEST
    assert set(draw(backend, logits, 20, **options)) == {30}


@pytest.mark.parametrize("options", [{}, *KINDS])
def test_padding_is_never_chosen(backend: LlamaBackend, options: dict[str, Any]) -> None:
    logits = np.zeros(VOCAB, dtype=np.float32)
    logits[REAL_VOCAB:] = 50.0
    assert max(draw(backend, logits, 100, **options)) < REAL_VOCAB


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"repetition_penalty": 1.1}])
def test_a_bias_of_minus_100_bars(backend: LlamaBackend, options: dict[str, Any]) -> None:
    logits = row(t5=1000.0, t6=1.0)
    assert set(draw(backend, logits, 50, **options)) == {5}
    assert 5 not in draw(backend, logits, 50, logit_bias={5: -100.0}, **options)


def test_a_bias_is_added(backend: LlamaBackend) -> None:
    logits = row(t5=2.0, t6=1.0)
    assert draw(backend, logits, logit_bias={6: 1.5}) == [6]
    assert draw(backend, logits, logit_bias={6: 0.5, VOCAB + 3: 90.0}) == [5]


def test_frequency_counts_the_output_and_not_the_prompt(backend: LlamaBackend) -> None:
    logits = row(t5=2.0, t6=0.8)
    sampler = backend.sampler(SamplingOptions(frequency_penalty=0.5), [5] * 50)
    # 2.0, 1.5, 1.0, then 0.5 < 0.8.
    assert [sampler.sample(logits.copy()) for _ in range(4)] == [5, 5, 5, 6]
    sampler.close()


def test_presence_is_taken_once(backend: LlamaBackend) -> None:
    logits = row(t5=2.0, t6=0.8)
    assert draw(backend, logits, 20, presence_penalty=1.0) == [5] * 20
    assert draw(backend, logits, 2, presence_penalty=1.5) == [5, 6]


def test_repetition_sees_the_prompt(backend: LlamaBackend) -> None:
    logits = row(t5=2.0, t6=1.5)
    fresh = backend.sampler(SamplingOptions(repetition_penalty=1.5), [9])
    seen = backend.sampler(SamplingOptions(repetition_penalty=1.5), [9, 5, 9])
    assert (fresh.sample(logits.copy()), seen.sample(logits.copy())) == (5, 6)
    fresh.close()
    seen.close()


def test_penalties_reach_back_over_the_whole_context(backend: LlamaBackend) -> None:
    logits = row(t5=2.0, t6=1.5)
    sampler = backend.sampler(SamplingOptions(repetition_penalty=1.5), [5, *[9] * 250])
    assert sampler.sample(logits.copy()) == 6
    sampler.close()


def test_dry_breaks_a_repeated_run(backend: LlamaBackend) -> None:
    logits = row(t7=2.0, t8=1.0)
    run = [100, 101, 102, 103, 7, 120, 121, 100, 101, 102, 103]
    plain = backend.sampler(SamplingOptions(), run)
    dry = backend.sampler(SamplingOptions(dry_multiplier=2.0), run)
    assert (plain.sample(logits.copy()), dry.sample(logits.copy())) == (7, 8)
    plain.close()
    dry.close()


def test_greedy_tiny_temperature_and_top_1_agree(backend: LlamaBackend) -> None:
    for seed in range(20):
        logits = noise(seed)
        kinds: list[dict[str, Any]] = [{}, {"temperature": 1e-30}, {"temperature": 1e-6}]
        kinds.append({"temperature": 2.0, "top_k": 1})
        assert len({draw(backend, logits, **kind)[0] for kind in kinds}) == 1


def test_every_seed_is_reproducible_and_none_is_fresh(backend: LlamaBackend) -> None:
    logits = np.zeros(VOCAB, dtype=np.float32)

    def tokens(seed: int | None) -> list[int]:
        return draw(backend, logits, 12, temperature=1.0, seed=seed)

    for seed in (0, 1, 2**32 - 1):
        assert tokens(seed) == tokens(seed)
    assert tokens(None) != tokens(None)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, *KINDS], ids=str)
def test_target_probs_are_what_is_drawn_from(
    backend: LlamaBackend, options: dict[str, Any]
) -> None:
    sampling = SamplingOptions(seed=1, logit_bias={5: 2.0, 6: -100.0}, **options)
    ours, plain = backend.sampler(sampling, [1, 2, 3]), NumpySampler(sampling, [1, 2, 3])
    for place in range(4):
        masked = noise(place)
        masked[::3] = LOWEST
        masked[REAL_VOCAB:] = LOWEST
        found = ours.target_probs(masked.copy())
        assert found.sum() == pytest.approx(1.0)
        assert found == pytest.approx(plain.target_probs(masked)[: len(found)], abs=1e-4)
        drawn = ours.sample(masked.copy())
        assert found[drawn] > 0.0
        plain.record(drawn)
    assert 0.0 <= ours.draw() < 1.0
    ours.close()


def test_a_recorded_token_counts_as_a_sampled_one(backend: LlamaBackend) -> None:
    options = SamplingOptions(frequency_penalty=1.5)
    logits = row(t7=3.0, t8=2.0)
    sampler = backend.sampler(options, [])
    sampler.record(7)
    assert sampler.sample(logits.copy()) == 8
    sampler.close()
