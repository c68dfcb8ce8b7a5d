"""Models, backends and drafts that the tests of known faults share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from copyahead.config import LookupOptions
from copyahead.contracts import Logits
from copyahead.engine import Choice, Chunk, Completion, Engine, Request
from copyahead.loading import make_engine
from copyahead.testing import FakeBackend, Plan, ToyLM, ToyTokenizer
from tests.toys import run

EMOJI = "\N{GRINNING FACE}"


class RowLM(ToyLM):
    """A model whose row is a function of the whole prefix."""

    def __init__(self, row: Callable[[Sequence[int]], Sequence[float]], vocab_size: int) -> None:
        super().__init__(vocab_size=vocab_size)
        self._row = row

    def logits(self, prefix: Sequence[int]) -> Logits:
        return np.asarray(self._row(prefix), dtype=np.float32).copy()


def favourites(scores: Mapping[int, float], vocab_size: int = 20) -> list[float]:
    """A row of zeros, but for some scores."""
    return [scores.get(token, 0.0) for token in range(vocab_size)]


def always(scores: Mapping[int, float]) -> RowLM:
    """The same row after every prefix."""
    row = favourites(scores)
    return RowLM(lambda _prefix: row, len(row))


def repeating(script: Sequence[int], **options: Any) -> FakeBackend:
    """A backend whose model writes `script` over and over after a prompt of one token."""
    width = max(20, max(script) + 1)

    def row(prefix: Sequence[int]) -> list[float]:
        return favourites({script[(len(prefix) - 1) % len(script)]: 8.0}, width)

    return FakeBackend(RowLM(row, width), **options)


def pieces(size: int) -> ToyTokenizer:
    """A tokenizer of `size` ids, each a word of its own; 0 ends a text."""
    return ToyTokenizer([b"", *(b"<%d>" % i for i in range(1, size))])


def drafted_run(
    backend: FakeBackend, request: Request, plan: Plan | dict[int, Sequence[int]]
) -> Completion:
    """One request with forced drafts, the books checked at every step."""
    return run(backend, [request], plan)[0]


def lookup_engine(backend: FakeBackend, policy: str = "single", **options: Any) -> Engine:
    """An engine that copies for itself."""
    return make_engine(backend, lookup=LookupOptions(policy=policy, **options))


def chunks_of(engine: Engine, request: Request) -> list[Chunk]:
    """What a streaming client sees."""
    return list(engine.generate(request))


def choice_of(chunks: Sequence[Chunk]) -> Choice:
    """The first answer, put together from its chunks."""
    choice = Choice(index=0)
    for chunk in chunks:
        choice.add(chunk)
    return choice
