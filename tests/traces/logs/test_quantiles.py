"""Quantiles in bounded memory, against sorting all numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.traces.logs.quantiles import ERROR, EXACT, Buckets, Inverse, Sketch

POSITIVE = st.floats(1e-6, 1e9)


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


@given(st.lists(POSITIVE, min_size=1, max_size=EXACT), st.floats(0, 1))
def test_of_few_numbers_quantiles_are_exact(values: list[float], share: float) -> None:
    assert sketch_of(values).at(share) == pytest.approx(np.quantile(values, share), rel=1e-9)


@given(st.lists(POSITIVE, min_size=EXACT + 1, max_size=EXACT + 300), st.floats(0, 1))
def test_of_many_numbers_quantiles_are_within_the_error(values: list[float], share: float) -> None:
    found = sketch_of(values).at(share)
    exact = np.quantile(values, share, method="lower")
    assert found == pytest.approx(exact, rel=ERROR * 1.0001)


@pytest.mark.parametrize("sizes", [(3, 4), (3, 400), (400, 3), (400, 500), (200, 200)])
def test_merged_is_as_if_added(sizes: tuple[int, int]) -> None:
    random = np.random.default_rng(5)
    one, other = (random.lognormal(2, 2, size).tolist() for size in sizes)
    merged = sketch_of(one)
    merged.merge(sketch_of(other))
    together = sketch_of(one + other)
    assert merged.count == together.count == sum(sizes)
    for share in (0, 0.05, 0.5, 0.95, 1):
        assert merged.at(share) == together.at(share)


def test_memory_does_not_grow_with_what_is_added() -> None:
    sketch = Sketch()
    for exponent in np.linspace(-300, 300, 40_000):
        sketch.add(10.0**exponent)
    assert sketch.count == 40_000
    assert sketch.num_held <= 2_420


def test_what_is_no_finite_number_is_left_out() -> None:
    sketch = sketch_of([math.inf, math.nan, 3.0])
    assert (sketch.count, sketch.at(0.5)) == (1, 3.0)
    assert Sketch().at(0.5) is None


def test_a_histogram_is_read_as_prometheus_reads_it() -> None:
    buckets = Buckets({1.0: 10.0, 2.0: 30.0, 4.0: 40.0, math.inf: 41.0})
    assert buckets.at(0.0) == 0.0
    assert buckets.at(10 / 41) == pytest.approx(1.0)
    assert buckets.at(0.5) == pytest.approx(1 + (20.5 - 10) / 20)
    # Nothing is known of what lies above the last bound.
    assert buckets.at(1.0) == 4.0
    assert Buckets({}).at(0.5) is None
    assert Buckets({1.0: 0.0, math.inf: 0.0}).at(0.5) is None


def test_speeds_are_times_turned_over() -> None:
    times = sketch_of([0.01, 0.02, 0.05])
    speeds = Inverse(times)
    assert [speeds.at(share) for share in (0, 0.5, 1)] == pytest.approx([20, 50, 100])
    assert Inverse(Sketch()).at(0.5) is None
