"""Rejection of drawn drafts: the target's distribution, and the choice that would spoil it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.acceptance import rejection

Probs = npt.NDArray[np.float64]


def outcome(drafted: int, draft_probs: Probs, target_probs: Probs) -> Probs:
    """The distribution of `rejection`, by asking for it at every draw that makes a difference."""
    keep = min(1.0, target_probs[drafted] / draft_probs[drafted])
    found = np.zeros(len(target_probs))
    found[drafted] += keep
    if keep < 1.0:
        points = 500
        for place in range(points):
            draws = iter([keep + (1.0 - keep) / 2, (place + 0.5) / points])
            token = rejection(drafted, draft_probs, target_probs, draws.__next__)
            found[token] += (1.0 - keep) / points
    return found


def distributions(size: int) -> st.SearchStrategy[Probs]:
    weights = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    return weights.map(lambda w: np.array(w, dtype=np.float64) / sum(w))


@given(distributions(4), distributions(4))
@settings(deadline=None)
def test_rejection_gives_the_targets_distribution(draft: Probs, target: Probs) -> None:
    found = np.zeros(4)
    for token in np.flatnonzero(draft):
        found += draft[token] * outcome(int(token), draft, target)
    assert found == pytest.approx(target, abs=5e-3)


def test_what_is_kept_depends_on_the_draw_alone() -> None:
    draft, target = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    assert rejection(0, draft, target, lambda: 0.49) == 0
    assert rejection(0, draft, target, lambda: 0.51) == 1
    assert rejection(1, draft, target, lambda: 0.99) == 1


def test_equal_distributions_reject_nothing_and_a_wider_target_is_fine() -> None:
    same = np.array([0.5, 0.5])
    assert rejection(1, same, same, lambda: 0.999999) == 1
    wider = np.array([0.0, 0.0, 1.0])
    assert rejection(1, same, wider, lambda: 0.5) == 2


# The trap. The first token is 0 or 1; the target takes 0 with 0.8, the draft model draws 0 with
# 0.5. A copy that begins with 0 is there, and is taken where the drawn token agrees with it.

TARGET = np.array([0.8, 0.2])
DRAWN = np.array([0.5, 0.5])
COPY = 0


def test_a_copy_gated_on_a_drawn_token_is_wrong_with_its_prefix_taken_as_verified() -> None:
    """The wrong rule: on agreement the copy's first token is kept as a point mass; and what was
    drawn and did not agree is verified by rejection."""
    found = np.zeros(2)
    for token in (0, 1):
        agreed = token == COPY
        if agreed:
            # A point mass: kept with its target probability, else the rest of the target.
            found += DRAWN[token] * TARGET
        else:
            found += DRAWN[token] * outcome(token, DRAWN, TARGET)
    # Of the half that agreed 0.8 are token 0; of the other half min(1, 0.2 / 0.5) are token 1.
    assert found[0] == pytest.approx(0.5 * 0.8 + 0.5 * 0.6, abs=5e-3)
    assert found[0] == pytest.approx(0.70, abs=5e-3)


def test_the_same_gate_with_sample_and_compare_is_right() -> None:
    """Ours: what a choice has looked at is verified by sampling the target, whatever was drawn."""
    found = sum(DRAWN[token] * TARGET for token in (0, 1))
    assert found == pytest.approx(TARGET)
    assert TARGET[0] == 0.80


def test_dropping_a_drawn_token_that_looks_unlikely_is_wrong_too() -> None:
    """Why a drawn token is verified whatever it is: here those of token 1 are left out."""
    found = np.zeros(2)
    for token in (0, 1):
        found += DRAWN[token] * (outcome(token, DRAWN, TARGET) if token == 0 else TARGET)
    assert found[0] == pytest.approx(0.9, abs=5e-3)
