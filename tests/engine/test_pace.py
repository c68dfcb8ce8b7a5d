"""How much of the prompts a pass reads."""

from __future__ import annotations

import pytest

from copyahead.engine.pace import FEWEST_ROWS, FIRST_ROWS, ReadingPace


def test_a_pass_is_as_long_as_its_time_allows() -> None:
    pace = ReadingPace(512, 256)
    assert pace.num_rows(writing=False) == pace.num_rows(writing=True) == FIRST_ROWS
    pace.observe(0.256, 128, 0.0)
    assert (pace.num_rows(writing=False), pace.num_rows(writing=True)) == (62, 50)


@pytest.mark.parametrize(
    ("row_seconds", "alone", "busy"),
    [(0.0, 512, 256), (1e-5, 512, 256), (1.0, FEWEST_ROWS, FEWEST_ROWS)],
)
def test_it_reads_no_more_than_a_chunk_and_no_fewer_than_pay(
    row_seconds: float, alone: int, busy: int
) -> None:
    pace = ReadingPace(512, 256)
    pace.observe(100 * row_seconds, 100, 0.0)
    assert (pace.num_rows(writing=False), pace.num_rows(writing=True)) == (alone, busy)
    small = ReadingPace(8, 4)
    assert (small.num_rows(writing=False), small.num_rows(writing=True)) == (8, 4)


def test_one_slow_pass_changes_little() -> None:
    pace = ReadingPace(512, 256)
    for seconds in (0.1, 0.1, 60.0, 0.1, 0.1):
        pace.observe(seconds, 100, 0.0)
    assert pace.num_rows(writing=True) == 100


def test_those_who_write_get_as_much_time_as_the_reading_beside_them_took() -> None:
    pace = ReadingPace(512, 256)
    assert not pace.owes
    pace.observe(0.35, 64, 0.05)  # 0.3 s more than without.
    turns = []
    for seconds in (0.1, 0.1, 0.09, 0.02):
        turns.append(pace.owes)
        pace.observe(seconds, 0, seconds)
    assert [*turns, pace.owes] == [True, True, True, True, False]


def test_nothing_is_owed_where_nobody_wrote() -> None:
    pace = ReadingPace(512, 256)
    pace.observe(0.35, 64, 0.05)
    pace.observe(0.5, 64, 0.0)
    assert not pace.owes


def test_a_pass_that_was_faster_than_foretold_owes_nothing() -> None:
    pace = ReadingPace(512, 256)
    pace.observe(0.04, 64, 0.05)
    assert not pace.owes
    assert pace.num_rows(writing=True) == 256


def test_a_pass_during_which_the_machine_slept_does_not_hold_prompts_up_for_as_long() -> None:
    pace = ReadingPace(512, 256)
    pace.observe(3600.0, 64, 0.05)
    pace.observe(10.0, 0, 0.05)
    assert not pace.owes
