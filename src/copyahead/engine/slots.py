"""The backend's slots: which tokens each holds, how many cells they take, who goes first.

A finished request's tokens stay in its slot as a prefix for a next turn, until the cells are
needed. Slots that were forked share the cells of their common prefix, and are counted once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from copyahead.contracts import Backend
from copyahead.errors import BackendError
from copyahead.types import Token

Tokens = npt.NDArray[np.int32]
Gains = dict["Slot", int]
"""How many tokens of a prompt each idle slot holds and can keep."""

MIN_FORK = 16
"""Fewer tokens than this are computed again rather than forked from another slot."""


class SharedPrefix:
    """Cells that forked slots hold together."""

    def __init__(self) -> None:
        self.members: set[Slot] = set()

    @property
    def cells(self) -> int:
        """Cells still held by some member."""
        return max((slot.num_shared for slot in self.members), default=0)


class Slot:
    """One place for a sequence in the backend."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.length = 0
        """Tokens that the backend holds here and that are committed."""
        self.kept: Tokens = np.empty(0, dtype=np.int32)
        """The tokens themselves, once no sequence runs here."""
        self.live: Sequence[Token] | None = None
        """The running sequence's own growing list; its first `length` tokens are held."""
        self.last_used = 0
        self.tenant = ""
        """Whose tokens they are."""
        self.prefix: SharedPrefix | None = None
        self.num_shared = 0
        """How many of its first tokens lie in cells of `prefix`. Only ever falls: what is
        written after a cut lies in cells of its own."""

    @property
    def num_own(self) -> int:
        """Cells that no other slot holds."""
        return self.length - self.num_shared

    @property
    def busy(self) -> bool:
        """Whether a sequence runs here."""
        return self.live is not None

    def tokens(self) -> Tokens:
        """The held tokens, shape `[length]`."""
        if self.live is not None:
            return np.asarray(self.live[: self.length], dtype=np.int32)
        return self.kept[: self.length]

    def common_prefix(self, prompt: Tokens) -> int:
        """How many tokens the slot holds in common with the start of `prompt`."""
        if self.length == 0 or self._first() != prompt[0]:
            return 0
        held = self.tokens()
        count = min(len(held), len(prompt))
        differs = held[:count] != prompt[:count]
        first = int(differs.argmax()) if count else 0
        return first if count and differs[first] else count

    def _first(self) -> Token:
        return int(self.live[0]) if self.live is not None else int(self.kept[0])


class Slots:
    """All slots of one backend."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._capabilities = backend.capabilities
        self._slots = [Slot(index) for index in range(backend.capabilities.num_slots)]
        self._clock = 0

    @property
    def free_cells(self) -> int:
        """Cells that hold nothing at all."""
        prefixes = {id(slot.prefix): slot.prefix for slot in self._slots if slot.prefix}
        used = sum(prefix.cells for prefix in prefixes.values())
        used += sum(slot.num_own for slot in self._slots)
        return self._capabilities.num_cells - used

    @property
    def num_idle(self) -> int:
        """Slots without a running sequence."""
        return sum(not slot.busy for slot in self._slots)

    @property
    def busy_cells(self) -> int:
        """Tokens that slots with a running sequence hold."""
        return sum(slot.length for slot in self._slots if slot.busy)

    @property
    def evictable_cells(self) -> int:
        """Cells that `make_room` could free: those of idle slots (shared ones are not counted)."""
        return sum(slot.num_own for slot in self._slots if not slot.busy)

    def take(
        self, tokens: list[Token], tenant: str = "", limit: int | None = None
    ) -> tuple[Slot, int]:
        """An idle slot for a sequence of `tokens`, and how many of them it already holds.

        The slot with the longest common prefix is taken, unless that would overwrite more than it
        gains: then it is the one that can best be spared. From a slot in use, and from one that
        keeps much more than the prefix, the prefix is forked. What one tenant left is never
        another's: how fast a prompt is read would tell. At least the last token is always left
        to compute, and with a `limit` no more than so many are reused. Needs an idle slot.
        """
        prompt = np.asarray(tokens, dtype=np.int32)
        most = len(tokens) - 1 if limit is None else min(limit, len(tokens) - 1)
        common = {
            slot: min(slot.common_prefix(prompt), most)
            for slot in self._slots
            if slot.tenant == tenant
        }
        idle = sorted((slot for slot in self._slots if not slot.busy), key=_age)
        gains = {slot: self._reusable(slot, common.get(slot, 0)) for slot in idle}
        # An empty slot if there is one, and otherwise the least recently used.
        spare = next((slot for slot in idle if slot.length == 0), idle[0])
        best = max(gains, key=gains.__getitem__)
        taken = best if _worth_overwriting(best, spare, gains) else spare
        donor = max(common, key=common.__getitem__, default=None)
        if donor is not None and self._worth_forking(common[donor], spare, taken, gains):
            taken, reused = spare, common[donor]
            self._fork(donor, taken, reused)
        else:
            reused = self.cut_if_possible(taken, gains[taken])
        taken.live, taken.kept, taken.tenant = tokens, np.empty(0, dtype=np.int32), tenant
        self._touch(taken)
        return taken, reused

    def release(self, slot: Slot, *, keep: bool) -> None:
        """The sequence in `slot` is done; with `keep` its tokens stay for a next turn."""
        self.cut_if_possible(slot, slot.length if keep else 0)
        slot.kept = slot.tokens()
        slot.live = None
        self._touch(slot)

    def cut(self, slot: Slot, length: int) -> None:
        """Hold no more than the first `length` tokens, in the ledger and in the backend."""
        try:
            self._backend.truncate(slot.index, length)
        finally:
            # Also where an interrupt comes in between: it holds what the backend holds.
            slot.length = min(slot.length, self._backend.length(slot.index))
            slot.num_shared = min(slot.num_shared, slot.length)
            if slot.num_shared == 0 and slot.prefix is not None:
                slot.prefix.members.discard(slot)
                slot.prefix = None

    def cut_if_possible(self, slot: Slot, length: int) -> int:
        """`cut`, or empty the slot where the backend cannot go back that far; its new length.

        With the slot's own length: drop rows that the backend holds and the ledger does not.
        """
        try:
            self.cut(slot, length)
        except BackendError:
            self.cut(slot, 0)
        return slot.length

    def make_room(self, num_cells: int) -> bool:
        """Empty idle slots, least recently used first, until `num_cells` are free."""
        idle = sorted((s for s in self._slots if not s.busy and s.length), key=_age)
        for slot in idle:
            if self.free_cells >= num_cells:
                break
            self.cut(slot, 0)
        return self.free_cells >= num_cells

    def clear(self) -> None:
        """Empty every idle slot."""
        for slot in self._slots:
            if not slot.busy:
                self.cut(slot, 0)

    def check(self) -> None:
        """Raise AssertionError unless the ledger is consistent. For tests."""
        assert self.free_cells >= 0, f"{-self.free_cells} cells more are used than there are"
        for slot in self._slots:
            held = self._backend.length(slot.index)
            assert held == slot.length, (
                f"slot {slot.index} is said to hold {slot.length} tokens and holds {held}"
            )
            assert slot.length <= len(slot.live if slot.live is not None else slot.kept)
            assert slot.num_shared <= slot.length
            assert (slot.prefix is None) == (slot.num_shared == 0)
            assert slot.prefix is None or slot in slot.prefix.members

    def _reusable(self, slot: Slot, common: int) -> int:
        limit = self._capabilities.max_rewind
        return common if limit is None or slot.length - common <= limit else 0

    def _worth_forking(self, common: int, spare: Slot, taken: Slot, gains: Gains) -> bool:
        """Whether to fork `common` tokens into `spare` rather than go on in `taken`."""
        capabilities = self._capabilities
        if not capabilities.can_fork or capabilities.max_rewind is not None:
            return False
        if common - gains[spare] < MIN_FORK:
            return False
        lost = taken.length - gains[taken]
        return (
            taken is spare
            or lost > max(MIN_FORK, taken.length // 4)
            or common - gains[taken] >= MIN_FORK
        )

    def _fork(self, donor: Slot, target: Slot, length: int) -> None:
        self.cut(target, 0)
        self._backend.fork(donor.index, target.index, length)
        if donor.prefix is None:
            donor.prefix, donor.num_shared = SharedPrefix(), length
            donor.prefix.members.add(donor)
        target.prefix, target.num_shared = donor.prefix, min(length, donor.num_shared)
        target.prefix.members.add(target)
        target.length = length

    def _touch(self, slot: Slot) -> None:
        self._clock += 1
        slot.last_used = self._clock


def _age(slot: Slot) -> int:
    return slot.last_used


def _worth_overwriting(slot: Slot, spare: Slot, gains: Gains) -> bool:
    """Whether what `slot` has in common is worth the rest of what it holds.

    Most of a slot always is worth the rest. A few tokens are not worth many, even where `spare`
    holds a text of its own, which is older; a longer prefix is weighed against that as well.
    """
    gained, lost = gains[slot] - gains[spare], slot.length - gains[slot]
    if gained >= MIN_FORK:
        gained += spare.length - gains[spare]
    return lost <= max(slot.length // 4, gained)
