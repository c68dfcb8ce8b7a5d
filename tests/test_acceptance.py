"""The two acceptance rules: same distribution, and only one of them the same sample."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from copyahead.acceptance import (
    inverse_cdf,
    num_accepted,
    point_mass_rejection,
    sample_and_compare,
)

PROBS = (Fraction(1, 2), Fraction(3, 10), Fraction(1, 5))


def never(token: int) -> bool:
    return False


def compare(draft: list[int], target: list[int]) -> list[int]:
    return sample_and_compare(draft, lambda row: target[row], never)


def test_the_first_drafted_token_is_checked_too() -> None:
    assert compare([1], [2, 9]) == [2]
    assert compare([2, 9], [2, 3, 4]) == [2, 3]
    assert compare([2, 3], [2, 3, 4]) == [2, 3, 4]
    assert compare([], [7]) == [7]


@pytest.mark.parametrize("length", range(6))
def test_every_pattern_of_right_and_wrong(length: int) -> None:
    target = [10, 11, 12, 13, 14, 15]
    for right in itertools.product([True, False], repeat=length):
        draft = [target[j] if ok else 99 for j, ok in enumerate(right)]
        accepted = next((j for j, ok in enumerate(right) if not ok), length)
        emitted = compare(draft, target)
        assert emitted == target[: accepted + 1]
        assert num_accepted(draft, emitted) == accepted


def test_nothing_counts_as_accepted_after_the_first_difference() -> None:
    assert num_accepted([1, 2, 3], [1, 9, 3]) == 1
    assert num_accepted([1, 2, 3], [9, 2, 3]) == 0


def test_rows_past_the_first_difference_take_no_draw() -> None:
    asked: list[int] = []

    def choose(row: int) -> int:
        asked.append(row)
        return row

    sample_and_compare([0, 1, 7, 3, 4], choose, never)
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("end", range(5))
def test_nothing_comes_after_an_end_anywhere_in_the_block(end: int) -> None:
    target = [5, 6, 7, 8, 9]
    emitted = sample_and_compare(target[:4], lambda row: target[row], lambda t: t == target[end])
    assert emitted == target[: end + 1]


def test_both_rules_have_the_targets_distribution_exactly() -> None:
    for drafted in range(3):
        compared = dict(enumerate(PROBS))  # the target's own sample, whatever was drafted
        accept = PROBS[drafted]
        rest = [Fraction(0) if t == drafted else p for t, p in enumerate(PROBS)]
        rejected = {
            t: (accept if t == drafted else Fraction(0)) + (1 - accept) * rest[t] / sum(rest)
            for t in range(3)
        }
        assert rejected == compared


@pytest.mark.parametrize("drafted", range(3))
def test_both_rules_draw_from_the_target(drafted: int) -> None:
    trials, probs = 200_000, np.array([float(p) for p in PROBS])
    before = probs.copy()
    random = np.random.default_rng(drafted)
    compared = np.zeros(3)
    rejected = np.zeros(3)
    for _ in range(trials):
        first = inverse_cdf(probs, random.random())
        emitted = sample_and_compare([drafted], [first, 0].__getitem__, never)
        compared[emitted[0]] += 1
        rejected[point_mass_rejection(drafted, probs, random.random)] += 1
    sigma = np.sqrt(trials * probs * (1 - probs))
    assert np.all(np.abs(compared - trials * probs) < 4 * sigma)
    assert np.all(np.abs(rejected - trials * probs) < 4 * sigma)
    assert np.array_equal(probs, before)


def test_only_comparing_gives_the_same_sample() -> None:
    probs = np.array([float(p) for p in PROBS])

    def plain(seed: int) -> list[int]:
        random = np.random.default_rng(seed)
        return [inverse_cdf(probs, random.random()) for _ in range(20)]

    def compared(seed: int, draft: list[int]) -> list[int]:
        random = np.random.default_rng(seed)
        out: list[int] = []
        while len(out) < 20:
            out += sample_and_compare(
                draft[: 19 - len(out)], lambda _row: inverse_cdf(probs, random.random()), never
            )
        return out

    def rejected(seed: int) -> list[int]:
        random = np.random.default_rng(seed)
        return [point_mass_rejection(1, probs, random.random) for _ in range(20)]

    for seed in range(20):
        for draft in ([], [0], [1, 1, 2], [2, 2, 2, 2, 2]):
            assert compared(seed, draft) == plain(seed)
    assert any(rejected(seed) != plain(seed) for seed in range(20))


def test_inverse_cdf_never_gives_a_token_without_weight() -> None:
    weights = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    assert inverse_cdf(weights, 0.0) == 1
    assert inverse_cdf(weights, 0.5) == 3
    assert inverse_cdf(weights, 1.0) == 3
