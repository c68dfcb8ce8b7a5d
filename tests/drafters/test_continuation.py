"""The copy behind a chain: what it is, and that looking at it changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copyahead.drafters.priced import PricedDrafter, PricedSession
from copyahead.history.pool import HistoryPool
from copyahead.kernels import features
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT

VOCAB = 60


def opened(text: list[int], capacity: int = 1000) -> tuple[PricedDrafter, PricedSession]:
    drafter = PricedDrafter(HistoryPool(1, capacity, VOCAB), StepCost.linear(0.02))
    return drafter, drafter.open(text, slot=0)


texts = st.lists(st.integers(0, 5), min_size=1, max_size=60)
chains = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@given(texts, chains)
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
def test_it_is_what_would_be_copied_had_the_chain_been_read(
    text: list[int], chain: list[int]
) -> None:
    drafter, session = opened(text)
    session.propose(0)
    drafter.states[0, features.PATH_LENGTH] = 0  # As if nothing had been foretold.
    found = drafter.continuation(session, chain)
    other, read = opened(text)
    read.settle(NO_DRAFT, chain)
    # Settling a plain round moves the credit and the rate, and the place of the last break.
    other.request_rates[0] = 0.0
    read.propose(0)
    wanted = other.path(read)
    # Keys that end in the chain are not indexed: what they would find is what may be missing.
    if found.tokens and wanted.tokens:
        same = found.tokens[0] == wanted.tokens[0]
        assert same or wanted.origins[0] >= len(text) or found.chances[0] < 0.9


def test_it_goes_on_behind_the_chain() -> None:
    passage = list(range(20, 50))
    drafter, session = opened([*passage, 1, 2, 3])
    assert session.propose(8) == NO_DRAFT
    found = drafter.continuation(session, [20, 21, 22])
    assert found.tokens[:10] == tuple(range(23, 33))
    assert found.origins[:3] == (3, 4, 5)
    assert len(found.chances) == len(found.tokens)
    assert all(0.0 < chance < 1.0 for chance in found.chances)


def test_looking_at_it_teaches_nothing_and_leaves_the_rounds_own_path() -> None:
    text = [*range(20, 50), 1, 2, 3, *range(20, 26)]
    drafter, session = opened(text)
    draft = session.propose(16)
    watched: list[Any] = [drafter.states, drafter.models, drafter.tables, drafter.credits]
    before = [array.copy() for array in watched]
    path = drafter.path(session)
    assert path.tokens[: len(draft)] == draft.tokens
    for chain in ([26, 27], [9, 9, 20, 21], [26] * 30):
        drafter.continuation(session, chain)

    assert all(np.array_equal(old, new) for old, new in zip(before, watched, strict=True))
    assert drafter.path(session) == path
    assert session.propose(16) == draft


def test_a_path_has_the_survivals_of_its_draft() -> None:
    drafter, session = opened([*range(20, 50), 1, 2, 3, *range(20, 26)])
    draft = session.propose(16)
    path = drafter.path(session)
    assert np.cumprod(path.chances)[: len(draft)] == pytest.approx(draft.survivals)
    assert path.match_length == draft.match_length
    assert path.origins[0] == draft.origin


def test_there_is_none_without_room_or_behind_what_is_no_token() -> None:
    text = [*range(20, 50), 1, 2, 3]
    drafter, session = opened(text, capacity=len(text))
    session.propose(4)
    assert drafter.continuation(session, [20, 21, 22]).tokens == ()
    drafter, session = opened(text)
    session.propose(4)
    assert drafter.continuation(session, [20, 21, VOCAB]).tokens == ()
    assert drafter.continuation(session, [-1]).tokens == ()


def test_what_a_round_costs_beside_its_pass_is_taken_off_the_credit() -> None:
    _, session = opened([1, 2, 3])
    session.propose(4)
    session.settle(NO_DRAFT, [5], 2.5)
    assert session.credit == pytest.approx(-2.5 + 0.005)
