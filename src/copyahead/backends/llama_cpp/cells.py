"""Where the tokens of all sequences stand in llama.cpp's unified KV cache.

llama.cpp puts new tokens into the first free cells. A cell freed in the middle would be taken by
another sequence, whose newer tokens would then stand before its older ones: attention would add
them up in another order and round differently. So only the last cells are ever freed. The others
go to one sequence that nobody reads, until there are so many that all are packed anew.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from copyahead.contracts import Part
from copyahead.errors import BackendError

_MIN_WASTE = 1024
_NO_RUN = (-1, -1)


class OrderedCells:
    """Keeps every sequence's cells in the order of its positions."""

    def __init__(self, library: Any, context: Any, *, num_slots: int, num_cells: int) -> None:
        """`num_slots` sequences are in use; the one after them holds what is given up."""
        self._library = library
        self._context = context
        self._memory = library.llama_get_memory(context)
        self._num_cells = num_cells
        self._waste_slot = num_slots
        self._cursor = 0
        """Cells below it are taken, those from it on are free."""
        self._runs = [_NO_RUN] * num_slots
        """First and end of the unbroken run of cells that ends each slot's own."""
        self._in_order = True

    def reserve(self, rows: int, lengths: Sequence[int]) -> None:
        """Make sure that the next `rows` cells are free and in order; packs when they are not."""
        held = sum(lengths)
        waste = self._cursor - held
        full = self._cursor + rows > self._num_cells
        if full or not self._in_order or waste > max(_MIN_WASTE, held):
            self.pack(lengths)

    def placed(self, parts: Sequence[Part]) -> None:
        """A pass has put the rows of `parts` into the next cells, in order."""
        for part in parts:
            begin, self._cursor = self._cursor, self._cursor + len(part.tokens)
            first, end = self._runs[part.slot]
            self._runs[part.slot] = (first if end == begin else begin, self._cursor)

    def failed(self, parts: Sequence[Part]) -> None:
        """A pass has failed: take its rows out, wherever they are."""
        for part in parts:
            self._library.llama_memory_seq_rm(self._memory, part.slot, part.start, -1)
        self._in_order = False

    def release(self, slot: int, held: int, length: int) -> None:
        """Take `slot` from `held` tokens back to `length`."""
        library, memory = self._library, self._memory
        first, end = self._runs[slot]
        if end == self._cursor and held - length <= end - first:
            self._cursor -= held - length
            self._runs[slot] = (first, self._cursor)
        else:
            library.llama_memory_seq_cp(memory, slot, self._waste_slot, length, -1)
            self._runs[slot] = _NO_RUN
        library.llama_memory_seq_rm(memory, slot, length, -1)

    def share(self, source: int, target: int, length: int) -> None:
        """Give `target`, which is empty, the first `length` cells of `source`."""
        self._library.llama_memory_seq_cp(self._memory, source, target, 0, length)
        # What both hold is no longer free when one gives it up.
        self._runs[source] = self._runs[target] = _NO_RUN

    def check(self, lengths: Sequence[int]) -> None:
        """Raise AssertionError unless the books agree with the slots' `lengths`. For tests."""
        assert max(lengths) <= self._cursor <= self._num_cells, (
            f"slots of {list(lengths)} tokens are said to take {self._cursor} of "
            f"{self._num_cells} cells"
        )
        taken = 0
        # A run that was given back whole says nothing.
        runs = [(first, end, slot) for slot, (first, end) in enumerate(self._runs) if first < end]
        for first, end, slot in sorted(runs):
            assert taken <= first < end <= self._cursor, (
                f"slot {slot}: others have cells between {first} and {end}"
            )
            assert end - first <= lengths[slot], (
                f"slot {slot} holds {lengths[slot]} tokens, and {end - first} cells in a row"
            )
            taken = end

    def pack(self, lengths: Sequence[int]) -> None:
        """Copy every sequence out and back in, one after the other: no cell is wasted."""
        library, context = self._library, self._context
        states = {}
        for slot, length in enumerate(lengths):
            if length > 0:
                size = library.llama_state_seq_get_size(context, slot)
                data = (ctypes.c_uint8 * size)()
                library.llama_state_seq_get_data(context, data, size, slot)
                states[slot] = data
        library.llama_memory_clear(self._memory, False)
        self._cursor = 0
        self._runs = [_NO_RUN] * len(lengths)
        for slot, data in states.items():
            if not library.llama_state_seq_set_data(context, data, len(data), slot):
                raise BackendError("llama.cpp could not pack its KV cache")
            begin, self._cursor = self._cursor, self._cursor + lengths[slot]
            self._runs[slot] = (begin, self._cursor)
        self._in_order = True
