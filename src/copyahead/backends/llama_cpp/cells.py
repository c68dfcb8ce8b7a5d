"""Where the tokens of all sequences stand in llama.cpp's unified KV cache.

llama.cpp puts new tokens into the first free cells. A cell freed in the middle would be taken by
another sequence, whose newer tokens would then stand before its older ones: attention would add
them up in another order and round differently. So only the last cells are ever freed. The others
go to one sequence that nobody reads, until there are so many that all are packed anew.

In a layer with a sliding window llama.cpp holds a cell for free once the window has passed it,
though its sequence may still be cut or forked to before that. It looks for free cells from the
one after the last that it filled, so it meets no such cell while all below are taken; only
packing makes it start from the first, and guards them.
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
        self._must_pack = False
        self._guarded = False
        """Whether the waste slot holds every cell, so that none looks free."""

    def reserve(self, parts: Sequence[Part], lengths: Sequence[int]) -> None:
        """Make sure that the next cells are free and in order; packs when they are not.

        Raises BackendError when that fails; then every slot is empty.
        """
        rows = sum(len(part.tokens) for part in parts)
        held = sum(lengths)
        waste = self._cursor - held
        full = self._cursor + rows > self._num_cells
        if full or self._must_pack or waste > max(_MIN_WASTE, held):
            self._pack(lengths)

    def placed(self, parts: Sequence[Part]) -> None:
        """A pass has put the rows of `parts` into the next cells, in order."""
        if self._guarded:
            self._library.llama_memory_seq_rm(self._memory, self._waste_slot, -1, -1)
            self._guarded = False
        for part in parts:
            begin, self._cursor = self._cursor, self._cursor + len(part.tokens)
            first, end = self._runs[part.slot]
            self._runs[part.slot] = (first if end == begin else begin, self._cursor)

    def failed(self, parts: Sequence[Part], status: int) -> list[int]:
        """A pass has failed: take its rows out, wherever they are.

        Returns the slots that hold nothing any more: none.
        """
        for part in parts:
            self._library.llama_memory_seq_rm(self._memory, part.slot, part.start, -1)
        self._must_pack = True
        return []

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
        if not library.llama_memory_seq_rm(memory, slot, length, -1):
            raise BackendError(f"llama.cpp could not cut slot {slot} to {length} tokens")

    def share(self, source: int, target: int, length: int) -> None:
        """Give `target`, which is empty, the first `length` cells of `source`."""
        self._library.llama_memory_seq_cp(self._memory, source, target, 0, length)
        # What both hold is no longer free when one gives it up.
        self._runs[source] = self._runs[target] = _NO_RUN

    def check(self, lengths: Sequence[int]) -> None:
        """Raise AssertionError unless the books agree with the slots' `lengths`. For tests."""
        check_held(self._library, self._memory, lengths)
        assert max(lengths) <= self._cursor, (
            f"slots of {list(lengths)} tokens are said to take {self._cursor} cells"
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

    def pack_next(self) -> None:
        """Have the next pass pack all cells."""
        self._must_pack = True

    def _pack(self, lengths: Sequence[int]) -> None:
        """Copy all cells out and, without the wasted ones, back in, in their order.

        All at once: of one sequence llama.cpp copies only what its sliding windows still see.
        """
        library, context, memory = self._library, self._context, self._memory
        library.llama_memory_seq_rm(memory, self._waste_slot, -1, -1)
        for slot, length in enumerate(lengths):
            if length > 0:
                library.llama_memory_seq_cp(memory, slot, self._waste_slot, -1, -1)
        size = library.llama_state_get_size(context)
        data = (ctypes.c_uint8 * size)()
        library.llama_state_get_data(context, data, size)
        packed = library.llama_state_set_data(context, data, size) == size
        if not packed:
            library.llama_memory_clear(memory, True)
        # At most: cells that slots share are counted more than once.
        self._cursor = sum(lengths) if packed else 0
        self._runs = [_NO_RUN] * len(lengths)
        self._must_pack, self._guarded = False, packed
        if not packed:
            raise BackendError("llama.cpp could not pack its KV cache")


def check_held(library: Any, memory: Any, lengths: Sequence[int]) -> None:
    """Raise AssertionError unless llama.cpp holds as many tokens of each slot. For tests."""
    for slot, length in enumerate(lengths):
        held = library.llama_memory_seq_pos_max(memory, slot) + 1
        assert held == length, (
            f"slot {slot} is said to hold {length} tokens, and llama.cpp holds {held}"
        )
