"""A fake engine for the commands, and how tests call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from copyahead import loading
from copyahead.config import LookupOptions
from copyahead.contracts import Logits, Part
from copyahead.engine import Engine
from copyahead.testing import FakeBackend, ToyLM, ToyTokenizer
from copyahead.types import Exactness

BYTES = ToyTokenizer([b"", *(bytes([value]) for value in range(256))])
LINE = "Twelve grey herons stood in the shallow water. "
EXACT = Exactness(level="exact", rows=64, max_abs_diff=0.0, batched=True)

Run = Callable[..., tuple[int, str, str]]
"""Runs a command in this process: its status, standard output and standard error."""
Done = Callable[..., tuple[str, str]]
"""The same for one that has to succeed: standard output and standard error."""


class Flipping(FakeBackend):
    """Chooses another token in passes of several rows, as a backend with rounding may."""

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        passes = super().forward(parts)
        for part, logits in zip(parts, passes, strict=True):
            if part.num_logits > 1:
                logits[1:] = 0.0
                logits[1:, 66] = 8.0
        return passes


def backend(kind: type[FakeBackend] = FakeBackend, prompt: str = LINE * 2) -> FakeBackend:
    """Answers a prompt as long as `prompt` with the line twice."""
    script = BYTES.encode(LINE * 2)
    model = ToyLM(script=script, num_prompt_tokens=len(BYTES.encode(prompt)), vocab_size=257)
    return kind(model, context_size=4096, num_slots=1, tokenizer=BYTES, exactness=EXACT)


def use_backend(monkeypatch: pytest.MonkeyPatch, make: Callable[[], FakeBackend]) -> list[Engine]:
    made: list[Engine] = []

    def load(
        path: Any = None, *, model: Any = None, lookup: Any = None, draft: Any = None
    ) -> Engine:
        loading.check_policy(lookup or LookupOptions(), draft)
        made.append(loading.make_engine(make(), lookup=lookup or LookupOptions()))
        return made[-1]

    monkeypatch.setattr(loading, "load", load)
    return made
