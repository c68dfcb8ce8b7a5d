"""Rows of a pass, shared out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from copyahead.engine.allocation import allocate
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT, Draft

FREE = StepCost.linear(0.0)


def priced(*survivals: float) -> Draft:
    return Draft(tokens=tuple(range(len(survivals))), survivals=survivals)


def fixed(length: int) -> Draft:
    return Draft(tokens=tuple(range(length)))


def lengths(drafts: list[Draft], max_rows: int, cost: StepCost, num_rows: int = 0) -> list[int]:
    rows = num_rows or len(drafts)
    return [len(draft) for draft in allocate(drafts, max_rows, rows, cost)]


def test_one_request_keeps_what_it_asked_for() -> None:
    assert lengths([priced(0.1, 0.05)], 64, StepCost.linear(1.0)) == [2]
    assert lengths([fixed(9)], 4, FREE) == [4]


def test_an_empty_draft_shortens_no_other() -> None:
    assert lengths([NO_DRAFT, fixed(5), NO_DRAFT, fixed(7)], 64, FREE) == [0, 5, 0, 7]


def test_fixed_lengths_are_capped_evenly() -> None:
    assert lengths([fixed(10), fixed(2), fixed(10)], 12, FREE) == [5, 2, 5]


def test_the_highest_survival_goes_first() -> None:
    drafts = [priced(0.9, 0.8, 0.1), priced(0.85, 0.2)]
    assert lengths(drafts, 3, FREE) == [2, 1]


def test_where_room_is_short_everybody_s_first_row_goes_first() -> None:
    certain, likely = priced(*[1.0] * 8), priced(0.7, 0.6)
    assert lengths([certain, likely], 4, FREE) == [2, 2]
    assert lengths([certain, likely], 64, FREE) == [8, 2]


def test_rows_that_cost_more_than_they_bring_are_left_out() -> None:
    drafts = [priced(0.9, 0.8, 0.1), priced(0.05, 0.01)]
    # A step of two rows emits two tokens; a row more costs an eleventh of a step.
    assert lengths(drafts, 64, StepCost.linear(0.1)) == [2, 0]
    assert lengths(drafts, 64, StepCost.linear(9.0)) == [0, 0]


def test_who_drafts_nothing_waits_only_a_quarter_longer_for_the_drafts_of_others() -> None:
    sure, sure_too = (priced(*[0.99 - k / 100 for k in range(n, 32, 2)]) for n in (0, 1))
    cost = StepCost.linear(0.125)
    # Without drafts the pass costs 1.25 steps, and with 2 drafted rows 1.5.
    assert lengths([sure, sure_too, NO_DRAFT], 64, cost) == [1, 1, 0]
    assert lengths([fixed(16), fixed(1), NO_DRAFT], 64, cost) == [1, 1, 0]
    # Who is to get 9 tokens instead of one can wait nine times as long.
    assert lengths([fixed(16), fixed(16), fixed(8)], 64, cost) == [16, 16, 8]
    assert lengths([sure, sure_too, NO_DRAFT], 64, StepCost.linear(0.005)) == [16, 16, 0]


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), max_size=20), min_size=2, max_size=6),
    st.floats(0.0, 1.0),
    st.integers(0, 100),
)
def test_no_answer_is_slowed_by_more_than_a_quarter(
    survivals: list[list[float]], row_cost: float, more_rows: int
) -> None:
    drafts = [priced(*sorted(each, reverse=True)) for each in survivals]
    cost, num_rows = StepCost.linear(row_cost), len(drafts) + more_rows
    given = allocate(drafts, 64, num_rows, cost)
    before, now = cost(num_rows), cost(num_rows + sum(map(len, given)))
    least = min(1.0 + sum(draft.survivals) for draft in given)
    assert now <= 1.25 * before * least * (1 + 1e-9)


def test_a_draft_that_was_cut_justifies_no_long_pass() -> None:
    sure, unsure = priced(*[0.99] * 8), priced(0.9, 0.5, 0.4, 0.3)
    # Stairs of four rows: the eighth costs as much as the fifth, and twice as much as two.
    stairs = StepCost({1: 1.0, 2: 1.0, 4: 1.2, 5: 3.0, 8: 3.0, 12: 6.0})
    assert lengths([sure, sure, unsure], 64, stairs) == [1, 0, 0]
    # Where each gets nine tokens for one, all can wait.
    assert lengths([sure, sure, sure], 64, StepCost.linear(0.5)) == [8, 8, 8]


def test_rows_that_only_look_cheap_make_nobody_wait() -> None:
    sure, looks, quiet = priced(*[0.99] * 8), StepCost.linear(0.01), StepCost.linear(0.25)
    drafts = [sure, NO_DRAFT]
    assert [len(draft) for draft in allocate(drafts, 64, 2, looks)] == [8, 0]
    assert [len(draft) for draft in allocate(drafts, 64, 2, looks, quiet)] == [1, 0]


def test_a_pass_that_is_full_anyhow_makes_rows_cheap() -> None:
    drafts = [priced(0.3), priced(0.3)]
    cost = StepCost.linear(0.3)
    assert lengths(drafts, 64, cost) == [0, 0]
    assert lengths(drafts, 64, cost, num_rows=200) == [1, 1]


STAIRS = StepCost({1: 1.0, 4: 1.0, 5: 3.0, 8: 3.0})
"""Four rows cost as much as one, and the fifth is dear."""


def test_a_draft_beside_a_prompt_is_priced_by_the_whole_pass() -> None:
    assert lengths([priced(0.9, 0.9, 0.9)], 64, STAIRS, num_rows=1) == [3]
    assert lengths([priced(0.9, 0.9, 0.9)], 64, STAIRS, num_rows=3) == [1]


def test_fixed_drafts_go_first_and_count_as_rows_of_the_pass() -> None:
    assert lengths([fixed(1), priced(0.9, 0.9)], 64, STAIRS) == [1, 1]
    assert lengths([fixed(3), priced(0.9, 0.8, 0.7)], 5, FREE) == [3, 2]


def test_a_row_that_brings_no_more_than_it_costs_is_left_out() -> None:
    assert lengths([priced(1.0), NO_DRAFT], 64, StepCost.linear(1.0)) == [0, 0]


@given(
    st.lists(st.lists(st.floats(0.01, 1.0), max_size=8), min_size=1, max_size=6),
    st.integers(0, 30),
    st.floats(0.0, 1.0),
)
def test_drafts_are_only_shortened_and_always_fit(
    survivals: list[list[float]], max_rows: int, row_cost: float
) -> None:
    drafts = [priced(*sorted(row, reverse=True)) for row in survivals]
    got = allocate(drafts, max_rows, len(drafts), StepCost.linear(row_cost))
    assert sum(map(len, got)) <= max_rows
    for before, after in zip(drafts, got, strict=True):
        assert after.tokens == before.tokens[: len(after)]


def test_the_price_in_shared_passes() -> None:
    cost = StepCost({1: 1.0, 4: 2.0, 8: 4.0, 16: 8.0})
    assert cost.shared(1, 1) is cost
    shared = cost.shared(4, 4)
    assert shared(2) == 2.0
    assert shared(4) == 4.0


def test_drawn_tokens_come_first_and_the_copy_behind_them_is_cut() -> None:
    probs = np.ones(2, dtype=np.float32)
    drawn = Draft(tokens=(1, 2, 3, 4), draft_probs=(probs, probs))
    assert lengths([drawn, drawn, fixed(3)], 7, FREE) == [3, 3, 1]
    assert lengths([drawn, drawn, fixed(9)], 4, FREE) == [2, 2, 0]
    assert lengths([drawn, priced(0.9, 0.8)], 3, FREE) == [3, 0]
