"""T(n): a measured curve, and how it is kept current."""

from __future__ import annotations

import pytest

from copyahead.step_cost import StepCost, StepCostMeter

STAIRS = {1: 0.01, 2: 0.0144, 4: 0.0207, 8: 0.0375, 16: 0.066}


def test_points_are_in_units_of_one_row_and_linear_between() -> None:
    cost = StepCost(STAIRS)
    assert cost(1) == 1.0
    assert cost(4) == pytest.approx(2.07)
    assert cost(12) == pytest.approx((3.75 + 6.6) / 2)
    assert cost(24) == pytest.approx(6.6 + 8 * (6.6 - 3.75) / 8)


def test_a_curve_never_falls() -> None:
    assert StepCost({1: 1.0, 2: 1.5, 3: 1.2})(3) == 1.5


def test_the_limit_is_the_best_rate_of_a_copy() -> None:
    assert StepCost.linear(0.5).limit(64) == pytest.approx(64 / 32.5)
    assert StepCost(STAIRS).limit(16) == pytest.approx(16 / 6.6)


def test_one_row_is_needed() -> None:
    with pytest.raises(ValueError, match="one row"):
        StepCost({2: 1.0})


def test_a_machine_that_is_slower_all_over_has_the_same_curve() -> None:
    meter = StepCostMeter(StepCost(STAIRS))
    for _ in range(20):
        for rows, seconds in STAIRS.items():
            meter.observe(rows, 3 * seconds)
    assert meter.cost(8) == pytest.approx(3.75)
    assert meter.cost(5) == pytest.approx(StepCost(STAIRS)(5))


def test_rows_that_become_dear_change_the_curve_and_one_slow_pass_does_not() -> None:
    meter = StepCostMeter(StepCost.linear(0.1))
    for number in range(64):
        meter.observe(1, 0.01 if number % 20 else 1.0)
        meter.observe(9, 0.036)
    assert meter.cost(9) == pytest.approx(3.6)
    assert 1.0 < meter.cost(5) < 3.6
    assert meter.cost(1) == 1.0


def test_nothing_changes_before_there_is_enough_to_go_by() -> None:
    start = StepCost.linear(0.1)
    meter = StepCostMeter(start)
    for rows in (1, 2, 3, 4, 5, 6, 9, 10, 17, 18, 33, 34, 65, 66):
        meter.observe(rows, 1.0)
    for _ in range(StepCostMeter.EVERY):
        meter.observe(1000, 1.0)
    assert meter.cost is start


def test_lengths_that_seldom_come_again_are_taken_together() -> None:
    meter = StepCostMeter(StepCost.linear(0.6))
    cheaper = StepCost.linear(0.4)
    lengths = (5, 6, 7, 8, 10, 13, 15, 20, 25, 31, 40, 50, 61)
    for rows in lengths:
        for _ in range(2):
            meter.observe(1, 0.01)
        meter.observe(rows, 0.01 * cheaper(rows))
    for rows in (6, 13, 25, 50):
        assert meter.cost(rows) == pytest.approx(cheaper(rows), rel=0.03)
    # What 2 rows cost was not seen: it lies between.
    assert 1.4 < meter.cost(2) < 1.6


def test_old_times_no_longer_count() -> None:
    meter = StepCostMeter(StepCost.linear(0.1))
    for _ in range(32):
        meter.observe(1, 0.01)
        meter.observe(9, 0.1)
    assert meter.cost(9) == pytest.approx(10.0)
    for _ in range(StepCostMeter.LIFE + 32):
        meter.observe(1, 0.01)
    assert meter.cost(9) == pytest.approx(1.8)
