"""Which slot a request takes, and what it finds there."""

from __future__ import annotations

import pytest

from copyahead.engine import Engine, Request
from copyahead.engine.slots import MIN_FORK, Slots
from copyahead.testing import FakeBackend, ToyLM

SYSTEM = [1, 2, 3, 4] * 10


def filled(
    *contents: tuple[list[int], str], num_slots: int = 3, can_fork: bool = True
) -> tuple[FakeBackend, Slots]:
    """Slots that hold what finished requests left, the first one the least recently used."""
    backend = FakeBackend(num_slots=num_slots, context_size=256, can_fork=can_fork)
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


@pytest.mark.parametrize("can_fork", [False, True])
def test_a_shared_first_token_costs_no_conversation_while_a_slot_is_empty(can_fork: bool) -> None:
    backend = FakeBackend(ToyLM(seed=1), context_size=1024, num_slots=2, can_fork=can_fork)
    with Engine(backend) as engine:
        first = engine.complete(Request(prompt=[1, *[5] * 499], max_tokens=2, ignore_eos=True))
        engine.complete(Request(prompt=[1, *[6] * 20], max_tokens=2))
        turn = [1, *[5] * 499, *first.choices[0].tokens, 7, 8]
        following = engine.complete(Request(prompt=turn, max_tokens=2))
    assert following.stats.num_cached_tokens == 501


@pytest.mark.parametrize(("common", "forked"), [(1, 0), (MIN_FORK - 1, 0), (MIN_FORK, MIN_FORK)])
def test_the_shortest_prefix_that_is_forked(common: int, forked: int) -> None:
    long = [*SYSTEM[:common], *[5] * 80]
    backend, slots = filled((long, ""))
    slot, reused = slots.take([*SYSTEM[:common], 7, 8, 9])
    assert (slot.index, reused) == (1, forked)
    assert backend.held[0] == long
    slots.check()


@pytest.mark.parametrize(("common", "rest", "index"), [(40, 40, 0), (40, 41, 1), (3, 4, 1)])
def test_without_forks_a_prefix_is_worth_as_much_as_it_is_long(
    common: int, rest: int, index: int
) -> None:
    _, slots = filled(([*SYSTEM[:common], *[5] * rest], ""), can_fork=False)
    slot, reused = slots.take([*SYSTEM[:common], 7, 8, 9])
    assert (slot.index, reused) == (index, 0 if index else common)


@pytest.mark.parametrize(
    ("common", "rest", "index"), [(15, 16, 0), (16, 16, 1), (40, 70, 1), (40, 71, 0)]
)
def test_without_forks_a_prefix_is_weighed_against_the_text_that_would_go_for_it(
    common: int, rest: int, index: int
) -> None:
    newest = [*SYSTEM[:common], *[5] * rest]
    _, slots = filled(([6] * 30, ""), (newest, ""), num_slots=2, can_fork=False)
    slot, reused = slots.take([*SYSTEM[:common], 7, 8, 9])
    assert (slot.index, reused) == (index, common if index else 0)


@pytest.mark.parametrize(("rest", "index"), [(20, 1), (21, 0)])
def test_a_turn_that_is_written_a_little_differently_goes_on_in_its_slot(
    rest: int, index: int
) -> None:
    # The slot that would go first holds most of the prefix as well, as other conversations do.
    turn = [*SYSTEM, *[7] * 20]
    _, slots = filled(([*turn[:50], *[6] * 90], ""), ([*turn, *[8] * rest], ""), num_slots=2)
    slot, reused = slots.take([*turn, 9, 9])
    assert (slot.index, reused) == (index, 60 if index else 50)


def test_a_prefix_is_forked_over_the_least_recently_used() -> None:
    first, second, third = [5] * 30, [6] * 30, [*SYSTEM, *[7] * 80]
    backend, slots = filled((first, ""), (second, ""), (third, ""))
    slots.release(slots.take([*first, 8])[0], keep=True)
    slot, reused = slots.take([*SYSTEM, 8, 9])
    assert (slot.index, reused) == (1, len(SYSTEM))
    assert (backend.held[0], backend.held[2]) == (first, third)


def test_the_least_recently_used_is_cut_rather_than_a_newer_one_forked_over() -> None:
    oldest, newer = [*SYSTEM, *[7] * 80], [6] * 30
    backend, slots = filled((oldest, ""), (newer, ""), num_slots=2)
    slot, reused = slots.take([*SYSTEM, 8, 9])
    assert (slot.index, reused) == (0, len(SYSTEM))
    assert backend.held[1] == newer


def test_an_empty_slot_is_taken_before_an_older_one_that_keeps_something() -> None:
    backend, slots = filled(([5] * 30, ""), ([6] * 30, ""), num_slots=2)
    slot, _ = slots.take([6] * 40)
    slots.release(slot, keep=False)
    assert slots.take([7] * 10)[0].index == 1
    assert backend.held[0] == [5] * 30


@pytest.mark.parametrize(("more", "index"), [(MIN_FORK - 1, 1), (MIN_FORK, 2)])
def test_a_running_sequence_is_forked_where_that_saves_enough(more: int, index: int) -> None:
    running = [*SYSTEM, *[7] * more, *[8] * 60]
    _, slots = filled((running, ""), (SYSTEM, ""))
    assert slots.take([*running, 9])[0].index == 0
    slot, reused = slots.take([*SYSTEM, *[7] * more, 9, 9])
    assert slot.index == index
    assert reused == len(SYSTEM) + (more if index == 2 else 0)


def test_a_slot_was_last_used_when_its_request_ended() -> None:
    backend = FakeBackend(num_slots=2)
    slots = Slots(backend)
    first, second = (slots.take([token] * 9)[0] for token in (5, 6))
    for slot in (second, first):
        backend.held[slot.index] = [5] * 8
        slot.length = 8
        slots.release(slot, keep=True)
    assert slots.take([7] * 9)[0] is second


@pytest.mark.parametrize(("lost", "reused"), [(0, 30), (4, 26), (5, 0)])
def test_a_slot_is_taken_back_as_far_as_the_backend_can(lost: int, reused: int) -> None:
    backend = FakeBackend(num_slots=1, max_rewind=4)
    slots = Slots(backend)
    slot, _ = slots.take([5] * 31)
    backend.held[0], slot.length = [5] * 30, 30
    slots.release(slot, keep=True)
    assert slots.take([*[5] * (30 - lost), *[6] * 8])[1] == reused
    assert len(backend.held[0]) == reused


def test_what_cannot_be_taken_back_is_not_forked_either() -> None:
    backend = FakeBackend(num_slots=2, max_rewind=100)
    slots = Slots(backend)
    slot, _ = slots.take([*SYSTEM, *[5] * 81])
    backend.held[0], slot.length = [*SYSTEM, *[5] * 80], 120
    slots.release(slot, keep=True)
    slot, reused = slots.take([*SYSTEM, 7, 8, 9])
    assert (slot.index, reused) == (1, 0)
    assert backend.held[1] == []


@pytest.mark.parametrize(
    ("common", "rest", "index"), [(60, 20, 0), (60, 21, 1), (20, 16, 0), (20, 17, 1)]
)
def test_a_little_at_the_end_of_a_slot_is_cut_rather_than_another_slot_used(
    common: int, rest: int, index: int
) -> None:
    backend, slots = filled(([6] * 30, ""), ([*[7] * common, *[8] * rest], ""), num_slots=3)
    slot, reused = slots.take([*[7] * common, 9])
    assert (slot.index, reused) == (2 if index else 1, common)
    assert len(backend.held[1]) == common + (rest if index else 0)
    assert backend.held[0] == [6] * 30


@pytest.mark.parametrize(("rest", "index"), [(50, 1), (51, 0)])
def test_what_two_slots_have_in_common_with_a_prompt_speaks_for_neither(
    rest: int, index: int
) -> None:
    turn = [*SYSTEM, *[7] * 20]
    older, newer = [*SYSTEM, *[6] * 30], [*turn, *[5] * rest]
    _, slots = filled((older, ""), (newer, ""), num_slots=2, can_fork=False)
    slot, reused = slots.take([*turn, 9])
    assert (slot.index, reused) == (index, 60 if index else 40)
