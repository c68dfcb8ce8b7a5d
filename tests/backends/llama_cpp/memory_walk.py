"""Random operations on the memory of a backend, every row compared with a pass of one row.

A slot always holds the beginning of one of two texts, which begin alike, and its rows must be
those of that text read token by token in a backend of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import ROWS_PER_REQUEST, LlamaSettings
from copyahead.contracts import Logits, Part
from copyahead.errors import BackendError

WIDTHS = (1, 1, 2, 3, 3, 8, 21, ROWS_PER_REQUEST)
"""Rows of a slot in a pass, wrong ones included."""


def two_texts(
    random: np.random.Generator, shared: int, length: int, num_ids: int
) -> list[list[int]]:
    """Two texts of `length` random tokens; the first `shared` are the same."""
    first, second = (random.integers(3, num_ids, length) for _ in range(2))
    second[:shared] = first[:shared]
    return [[int(token) for token in text] for text in (first, second)]


def one_row_passes(path: Path, settings: LlamaSettings, texts: list[list[int]]) -> list[Logits]:
    """The slow oracle: the logits after each token, every one from a pass of one row."""
    found = []
    for text in texts:
        backend = LlamaBackend(path, settings)
        rows = [backend.forward([Part(0, i, [t], 1)])[0][0].copy() for i, t in enumerate(text)]
        backend.close()
        found.append(np.array(rows))
    return found


class MemoryWalk:
    """One backend under random passes, cuts, forks, packs, drops and failures."""

    def __init__(
        self,
        backend: LlamaBackend,
        texts: list[list[int]],
        expected: list[Logits],
        *,
        shared: int,
        random: np.random.Generator,
        chunk: int = ROWS_PER_REQUEST,
    ) -> None:
        """`chunk`: most rows of one slot in a pass."""
        self.widths = [*WIDTHS, *[chunk] * 4]
        self.backend = backend
        self.texts = texts
        self.expected = expected
        self.shared = shared
        self.random = random
        self.num_slots = backend.capabilities.num_slots
        self.text = [0] * self.num_slots
        """Which text each slot holds the beginning of."""
        self.rewindable = [0] * self.num_slots
        """How many tokens can be taken back, where that is limited."""
        self.done: list[str] = []
        self.num_compared = 0

    def step(self) -> None:
        """One operation, mostly a pass. AssertionError when a row is wrong."""
        kinds = [self.run_pass, self.cut, self.fork, self.pack, self.drop, self.fail]
        kind = self.random.choice(len(kinds), p=[0.6, 0.14, 0.1, 0.08, 0.04, 0.04])
        kinds[kind]()

    def run_pass(self) -> None:
        """Right tokens, then wrong ones that are taken back, of some slots in any order."""
        parts, kept = [], {}
        rewind = self.backend.capabilities.max_rewind
        most = ROWS_PER_REQUEST - 1 if rewind is None else rewind
        for slot in map(int, self.random.permutation(self.num_slots)):
            held = self.backend.length(slot)
            if held == 0:
                self.text[slot] = int(self.random.integers(2))
            left = self.texts[self.text[slot]][held:]
            width = int(self.random.choice(self.widths))
            wrong = int(self.random.integers(0, width)) if self._chance(0.5) else 0
            wrong = min(wrong, most)
            count = min(width - wrong, len(left))
            if count == 0 or self._chance(0.25):
                continue
            kept[slot] = count
            rows = [*left[:count], *[5] * wrong]
            parts.append(Part(slot, held, rows, min(len(rows), ROWS_PER_REQUEST)))
        if not parts:
            return
        self.done.append("pass " + ", ".join(f"{p.slot}:{p.start}+{len(p.tokens)}" for p in parts))
        for part, logits in zip(parts, self.backend.forward(parts), strict=True):
            count, without = kept[part.slot], len(part.tokens) - len(logits)
            self._compare(part.slot, part.start + without, logits[: count - without])
            wrong = len(part.tokens) - count
            if wrong:
                self.backend.truncate(part.slot, part.start + count)
            self.rewindable[part.slot] = 0 if wrong else count - 1

    def cut(self) -> None:
        """Take a slot back to any length that it allows."""
        slot = int(self.random.integers(self.num_slots))
        held = self.backend.length(slot)
        limit = self.backend.capabilities.max_rewind
        most = held if limit is None else min(limit, self.rewindable[slot])
        if most == 0:
            return
        # Half of the time a little, so that sequences get long.
        back = int(self.random.integers(1, (min(most, 40) if self._chance(0.5) else most) + 1))
        self.done.append(f"cut {slot}: {held}-{back}")
        self.backend.truncate(slot, held - back)
        self.rewindable[slot] = 0

    def fork(self) -> None:
        """Give a slot the beginning of another; it may go on with the other text."""
        source, target = (int(s) for s in self.random.permutation(self.num_slots)[:2])
        length = self.backend.length(source)
        if self.backend.capabilities.can_fork:
            length = int(self.random.integers(0, length + 1))
        self.done.append(f"fork {source}>{target}: {length}")
        self.backend.fork(source, target, length)
        self.text[target] = self.text[source]
        self.rewindable[target] = 0
        if length <= self.shared and self._chance(0.5):
            self.text[target] = 1 - self.text[target]

    def pack(self) -> None:
        """Have the next pass pack the cells."""
        self.done.append("pack")
        self.backend.pack()

    def drop(self) -> None:
        """Empty a slot."""
        slot = int(self.random.integers(self.num_slots))
        self.done.append(f"drop {slot}")
        self.backend.truncate(slot, 0)
        self.rewindable[slot] = 0

    def fail(self) -> None:
        """A pass that llama.cpp refuses, which must change nothing."""
        slots = [int(s) for s in self.random.permutation(self.num_slots)[:2]]
        held = [self.backend.length(slot) for slot in range(self.num_slots)]
        bad = self.backend.capabilities.logits_width
        self.done.append(f"fail {slots}")
        try:
            self.backend.forward([Part(slot, held[slot], [5, bad], 1) for slot in slots])
        except BackendError:
            assert held == [self.backend.length(slot) for slot in range(self.num_slots)]
            return
        raise AssertionError("a token outside the vocabulary was taken")

    def _compare(self, slot: int, start: int, logits: Logits) -> None:
        expected = self.expected[self.text[slot]][start : start + len(logits)]
        off = float(np.abs(logits - expected).max())
        history = "\n".join(self.done[-12:])
        assert np.array_equal(logits, expected), f"slot {slot}: logits off by {off}\n{history}"
        self.num_compared += len(logits)

    def _chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)


def walk(
    path: Path,
    settings: LlamaSettings,
    seeds: Iterable[int],
    *,
    steps: int,
    seconds: float = 1e9,
    shared: int = 60,
    length: int = 160,
    chunk: int = ROWS_PER_REQUEST,
) -> int:
    """Walk with each seed for so many steps, until the seconds (the oracle's apart) are over.

    The texts have `length` tokens. Returns how many rows were compared.
    """
    alone = msgspec.structs.replace(settings, parallel=1)
    num_compared = 0
    for seed in seeds:
        random = np.random.default_rng(seed)
        backend = LlamaBackend(path, settings)
        texts = two_texts(random, shared, length, backend.tokenizer.vocab_size)
        expected = one_row_passes(path, alone, texts)
        memory = MemoryWalk(backend, texts, expected, shared=shared, random=random, chunk=chunk)
        begin = time.monotonic()
        try:
            for _ in range(steps):
                if time.monotonic() - begin > seconds:
                    break
                memory.step()
        except AssertionError as error:
            at = f"seed {seed} of {path.name}, step {len(memory.done)}"
            raise AssertionError(f"{at}: {error}") from None
        finally:
            backend.close()
        num_compared += memory.num_compared
        seconds -= time.monotonic() - begin
        if seconds <= 0:
            break
    return num_compared
