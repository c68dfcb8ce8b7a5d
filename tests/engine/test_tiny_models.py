"""Four architectures of llama.cpp, tiny and random: the same tokens with lookup on and off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.config import LookupOptions
from copyahead.contracts import Part
from copyahead.engine import Completion, Request
from copyahead.loading import make_engine
from copyahead.sampling import SamplingOptions
from tests.machine import THREADS
from tests.tiny_models import REAL_VOCAB, VOCAB, write_plain

KINDS = ["plain", "sliding_window", "recurrent", "hybrid"]


def requests() -> list[Request]:
    """Prompts that repeat themselves, so that something is drafted whatever the model writes."""
    random = np.random.default_rng(4)
    runs = [[int(token) for token in random.integers(3, REAL_VOCAB, 9)] for _ in range(3)]
    samplings = [SamplingOptions(), SamplingOptions(temperature=0.3, seed=3), SamplingOptions()]
    return [
        Request(prompt=run * 6, sampling=sampling, max_tokens=60, ignore_eos=True)
        for run, sampling in zip(runs, samplings, strict=True)
    ]


def answers(path: Path, *, lookup: bool, parallel: int) -> list[Completion]:
    settings = LlamaSettings(threads=THREADS, ctx=256, parallel=parallel)
    options = LookupOptions(lookup=lookup, policy="fixed:num_draft_tokens=6,shortest_key=1")
    with make_engine(LlamaBackend(path, settings), lookup=options) as engine:
        return engine.complete_all(requests())


@pytest.mark.parametrize("kind", KINDS)
def test_lookup_changes_no_token(kind: str, tiny_models: dict[str, Path]) -> None:
    plain = answers(tiny_models[kind], lookup=False, parallel=1)
    for parallel in (1, 3):
        drafted = answers(tiny_models[kind], lookup=True, parallel=parallel)
        for alone, got in zip(plain, drafted, strict=True):
            assert got.choices[0].tokens == alone.choices[0].tokens
        num_draft_tokens = sum(got.stats.num_draft_tokens for got in drafted)
        assert (num_draft_tokens == 0) == (kind == "recurrent")


@pytest.mark.parametrize(("spelling", "num_ids"), [("<unused{}>", VOCAB), ("[PAD{}]", REAL_VOCAB)])
def test_ids_that_are_kept_for_later_are_sampled_and_padding_is_not(
    spelling: str, num_ids: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write_plain(path, last_ids=spelling)
    backend = LlamaBackend(path, LlamaSettings(threads=1, ctx=256))
    prompt = [1, 40, 50]
    row = backend.forward([Part(0, 0, prompt, 1)])[0][0][:num_ids].astype(np.float64)
    own = row - np.log(np.exp(row).sum())
    backend.truncate(0, 0)
    sampling = SamplingOptions(temperature=5.0, seed=1)
    request = Request(
        prompt=prompt, sampling=sampling, max_tokens=200, ignore_eos=True, logprobs=20
    )
    with make_engine(backend, lookup=LookupOptions()) as engine:
        choice = engine.complete(request).choices[0]
    assert (max(choice.tokens) >= REAL_VOCAB) == (num_ids == VOCAB)
    for token, logprob in choice.logprobs[0].top:
        assert logprob == pytest.approx(own[token], abs=1e-6)
