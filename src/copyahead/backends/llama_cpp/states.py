"""Where the recurrent states of all sequences stand in llama.cpp's memory.

llama.cpp has one cell for each sequence's state, and a snapshot of it beside the cell for each
row that can be taken back. A new sequence gets the first free cell, and a pass moves states so
that those of its sequences are neighbours, but it leaves their snapshots behind: going back then
reads another sequence's. So here every state stays in the cell of its slot's own number. A cell
is given up only by the pass that fills it again, and passes go through the slots in order: then
llama.cpp finds every state where it wants it, and moves none.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from copyahead.contracts import Part
from copyahead.errors import BackendError

_REFUSED = frozenset({-1, 1})
"""Results of `llama_decode` that say that it has touched nothing: a wrong batch, no free cells."""


class PinnedStates:
    """Keeps the state of every slot in the cell of its own number."""

    def __init__(self, library: Any, context: Any, *, num_slots: int, max_rewind: int) -> None:
        """`max_rewind`: how many snapshots a state has."""
        self._library = library
        self._context = context
        self._memory = library.llama_get_memory(context)
        self._max_rewind = max_rewind
        self._rewindable = [0] * num_slots
        """Snapshots are of the rows of a slot's last pass only."""
        self._without_cell = set(range(num_slots))
        self._take_cells()

    def reserve(self, parts: Sequence[Part], lengths: Sequence[int]) -> None:
        """Make ready for a pass over `parts`, which are in order of slots."""
        self._take_cells()
        for part in parts:
            if lengths[part.slot] == 0:
                self._give_up_cell(part.slot)

    def placed(self, parts: Sequence[Part]) -> None:
        """The pass over `parts` has been made."""
        for part in parts:
            self._without_cell.discard(part.slot)
            self._rewindable[part.slot] = len(part.tokens) - 1

    def failed(self, parts: Sequence[Part], status: int) -> list[int]:
        """The pass over `parts` has failed; returns the slots that hold nothing any more.

        Which states a pass has changed before it failed cannot be told: all of its slots' go.
        """
        if status in _REFUSED:
            return []
        slots = [part.slot for part in parts]
        for slot in slots:
            self._give_up_cell(slot)
        return slots

    def release(self, slot: int, held: int, length: int) -> None:
        """Take `slot` from `held` tokens back to `length`; its cell stays its own."""
        if length > 0:
            limit = min(self._max_rewind, self._rewindable[slot])
            if held - length > limit:
                raise BackendError(
                    f"slot {slot} cannot go back {held - length} tokens: its recurrent state "
                    f"can be taken back {limit}"
                )
            if not self._library.llama_memory_seq_rm(self._memory, slot, length, -1):
                raise BackendError(f"llama.cpp could not cut slot {slot} to {length} tokens")
        self._rewindable[slot] = 0

    def share(self, source: int, target: int, length: int) -> None:
        """Give `target`, which is empty, a copy of all of `source`."""
        if length == 0:
            return
        self._take_cells()
        library, context = self._library, self._context
        # `llama_memory_seq_cp` would have both use one cell, and the first to go on leave it.
        size = library.llama_state_seq_get_size(context, source)
        data = (ctypes.c_uint8 * size)()
        library.llama_state_seq_get_data(context, data, size, source)
        if not library.llama_state_seq_set_data(context, data, size, target):
            raise BackendError(f"llama.cpp could not copy slot {source} to slot {target}")

    def pack_next(self) -> None:
        """Nothing: there is one cell a slot, and all are in their places."""

    def check(self, lengths: Sequence[int]) -> None:
        """Raise AssertionError unless the books agree with the slots' `lengths`. For tests."""
        for slot, length in enumerate(lengths):
            # The cell of an empty slot holds whatever was there before.
            held = self._library.llama_memory_seq_pos_max(self._memory, slot) + 1
            assert length in (0, held), (
                f"slot {slot} is said to hold {length} tokens, and llama.cpp holds {held}"
            )
            assert not (length and slot in self._without_cell), f"slot {slot} has no cell"

    def _give_up_cell(self, slot: int) -> None:
        self._library.llama_memory_seq_rm(self._memory, slot, -1, -1)
        self._without_cell.add(slot)
        self._rewindable[slot] = 0

    def _take_cells(self) -> None:
        """One row for every slot without a cell, in order: each gets that of its number."""
        slots = sorted(self._without_cell)
        if not slots:
            return
        batch = self._library.llama_batch_init(len(slots), 0, 1)
        for row, slot in enumerate(slots):
            batch.token[row] = batch.pos[row] = batch.logits[row] = 0
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = slot
        batch.n_tokens = len(slots)
        status = self._library.llama_decode(self._context, batch)
        self._library.llama_batch_free(batch)
        if status != 0:
            raise BackendError(f"llama.cpp could not place recurrent states (status {status})")
        self._without_cell.clear()
