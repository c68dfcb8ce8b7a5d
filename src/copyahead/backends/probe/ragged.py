"""Whether what runs beside a sequence, and what was done to it before, changes its logits.

Several sequences share passes, each with another number of rows; drafts are taken back by any
number of rows; cells are packed, and sequences forked and cut. All of it is drawn at random, from
seeds that are always the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from copyahead.backends.probe.measured import MeasuredBackend
from copyahead.contracts import Logits, Part
from copyahead.types import Token

SEEDS = range(4)
ROUNDS = 5
NUM_PASSES = len(SEEDS) * ROUNDS
_WIDTHS = (2, 3, 5, 8, 13, 21, 34, 65)
_MEASURED = 0.75
"""How often a slot, beside the second, holds the measured text."""
_CHANGES = 0.3
"""How often a slot is cut, forked anew or emptied before a pass."""


class RaggedPasses:
    """Slots from 1 on, some with the measured text and some with another."""

    def __init__(
        self,
        backend: MeasuredBackend,
        *,
        prefix: int,
        rest: Sequence[Token],
        other: Sequence[Token],
        same: Callable[[Logits, int], bool],
    ) -> None:
        """Slot 0 holds the measured text's first `prefix` tokens, and `rest` goes on from there.

        `same` says whether logits are those of one-row passes over `rest` from an index on.
        """
        self._backend = backend
        self._prefix = prefix
        self._rest = rest
        self._other = other
        self._same = same
        self._rewind = backend.capabilities.max_rewind
        self._slots = range(1, backend.capabilities.num_slots)
        self._measured: set[int] = set()

    def check(self) -> bool:
        """Whether every measured row was right."""
        same = all(self._check_seed(np.random.default_rng(seed)) for seed in SEEDS)
        if self._rewind:
            same = self._check_arrivals(np.random.default_rng(0)) and same
        return same

    def _check_arrivals(self, random: np.random.Generator) -> bool:
        """Slots that have arrived in any order, then a draft of one before two others' rows.

        llama.cpp places recurrent states in order of arrival, and may move them in such a pass.
        """
        same = True
        for order in itertools.permutations(self._slots):
            for drafted in (self._slots[0], self._slots[-1]):
                for slot in order:
                    self._begin(slot, measured=False)
                for slot in order:
                    self._begin(slot, measured=True)
                    same = self._run_pass([self._part(slot, 1, random)]) and same
                few, many = (int(width) for width in random.choice(_WIDTHS, 2, replace=False))
                others = [slot for slot in self._slots if slot != drafted]
                shares = [self._part(drafted, many, random)]
                shares += [self._part(slot, few, random) for slot in others]
                same = self._run_pass(shares) and same
                same = self._run_pass([self._part(s, 1, random) for s in self._slots]) and same
        return same

    def _check_seed(self, random: np.random.Generator) -> bool:
        same = True
        # They arrive one by one, in any order; the second slot is always measured.
        for slot in map(int, random.permutation(self._slots)):
            self._begin(slot, measured=slot == 2 or random.random() < _MEASURED)
            same = self._run_pass([self._part(slot, 1, random)]) and same
        for number in range(ROUNDS):
            if number == ROUNDS // 2:
                self._backend.pack()
            same = self._run_pass(self._ragged(random)) and same
            for slot in self._slots:
                if random.random() < _CHANGES:
                    self._change(slot, random)
        return same

    def _begin(self, slot: int, *, measured: bool) -> None:
        if measured:
            self._backend.fork(0, slot, self._prefix)
            self._measured.add(slot)
        else:
            self._backend.truncate(slot, 0)
            self._measured.discard(slot)

    def _change(self, slot: int, random: np.random.Generator) -> None:
        done = self._backend.length(slot) - self._prefix
        if slot in self._measured and self._rewind is None and done > 0:
            self._backend.truncate(slot, self._prefix + int(random.integers(0, done)))
        else:
            self._begin(slot, measured=slot == 2 or random.random() < _MEASURED)

    def _ragged(self, random: np.random.Generator) -> list[tuple[Part, int]]:
        """Rows of the slots, in any order: one has another number of rows than the rest.

        llama.cpp runs neighbours with as many rows together, and others apart.
        """
        few, odd = (int(width) for width in random.choice(_WIDTHS, 2))
        slots = [int(slot) for slot in random.permutation(self._slots)]
        place = int(random.integers(len(slots)))
        widths = [odd if index == place else few for index in range(len(slots))]
        return [self._part(slot, n, random) for slot, n in zip(slots, widths, strict=True)]

    def _run_pass(self, shares: list[tuple[Part, int]]) -> bool:
        """A pass over parts of which so many rows are right; whether the logits are.

        The others are taken back.
        """
        same = True
        found = self._backend.forward([part for part, _ in shares])
        for (part, count), logits in zip(shares, found, strict=True):
            if part.slot in self._measured:
                same = self._same(logits[:count], part.start - self._prefix) and same
            self._backend.truncate(part.slot, part.start + count)
        return same

    def _part(self, slot: int, width: int, random: np.random.Generator) -> tuple[Part, int]:
        """The rows of `slot`, the last of them wrong, and how many are right."""
        measured = slot in self._measured
        if self._at_end(slot):
            self._begin(slot, measured=measured)
        start = self._backend.length(slot)
        text, done = (self._rest, start - self._prefix) if measured else (self._other, start)
        if self._rewind is not None:
            width = min(width, 1 + self._rewind)
        count = min(int(random.integers(1, width + 1)), len(text) - done)
        wrong = [self._other[int(random.integers(len(self._other)))]] * (width - count)
        rows = [*text[done : done + count], *wrong]
        return Part(slot, start, rows, len(rows)), count

    def _at_end(self, slot: int) -> bool:
        """Whether the slot's text is read to its end."""
        text, before = (self._rest, self._prefix) if slot in self._measured else (self._other, 0)
        return self._backend.length(slot) - before >= len(text)
