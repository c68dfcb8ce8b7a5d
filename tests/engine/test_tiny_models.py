"""Four architectures of llama.cpp, tiny and random: the same tokens with lookup on and off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.config import LookupOptions
from copyahead.engine import Completion, Request
from copyahead.loading import make_engine
from copyahead.sampling import SamplingOptions
from tests.tiny_models import REAL_VOCAB

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
    settings = LlamaSettings(threads=2, ctx=256, parallel=parallel)
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
