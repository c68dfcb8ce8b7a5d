"""Which slot a request takes, and what it finds there."""

from __future__ import annotations

from copyahead.engine.slots import Slots
from copyahead.testing import FakeBackend

SYSTEM = [1, 2, 3, 4] * 10


def filled(*contents: tuple[list[int], str]) -> tuple[FakeBackend, Slots]:
    """Slots that hold what finished requests left, the first one the least recently used."""
    backend = FakeBackend(num_slots=3, context_size=256)
    slots = Slots(backend)
    taken = []
    for tokens, tenant in contents:
        slot, _ = slots.take([*tokens, 19], tenant)
        backend.held[slot.index] = list(tokens)
        slot.length = len(tokens)
        taken.append(slot)
    for slot in taken:
        slots.release(slot, keep=True)
    slots.check()
    return backend, slots


def test_the_next_turn_takes_its_own_slot() -> None:
    _, slots = filled(([5] * 30, ""), ([6] * 30, ""))
    slot, reused = slots.take([6] * 40)
    assert (slot.index, reused) == (1, 30)


def test_at_least_one_token_is_left_to_compute() -> None:
    _, slots = filled(([5] * 30, ""))
    assert slots.take([5] * 30)[1] == 29


def test_what_one_tenant_left_is_not_anothers() -> None:
    _, slots = filled(([5] * 30, "a"))
    slot, reused = slots.take([5] * 40, "b")
    assert reused == 0
    assert slot.index != 0


def test_a_conversation_is_not_cut_for_a_shared_beginning() -> None:
    backend, slots = filled(([*SYSTEM, *[5] * 80], ""))
    slot, reused = slots.take([*SYSTEM, 7, 8, 9])
    assert reused == len(SYSTEM)
    assert slot.index != 0
    assert backend.held[0] == [*SYSTEM, *[5] * 80]
    assert backend.held[slot.index] == SYSTEM
    slots.check()


def test_shared_cells_are_counted_once() -> None:
    backend, slots = filled(([*SYSTEM, *[5] * 80], ""))
    before = slots.free_cells
    slots.take([*SYSTEM, 7, 8, 9])
    assert slots.free_cells == before
    assert backend.capabilities.num_cells - before == len(SYSTEM) + 80


def test_the_least_recently_used_makes_room_first() -> None:
    _, slots = filled(([5] * 30, ""), ([6] * 30, ""))
    assert slots.make_room(slots.free_cells + 1)
    assert slots.take([6] * 40)[1] == 30
