"""Texts that are told apart by their content, and what is learnt from the ids of the next call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from copyahead.config import LookupOptions
from copyahead.errors import ConfigError
from copyahead.plugins import by_content
from copyahead.plugins.by_content import DraftsByContent
from copyahead.step_cost import StepCost
from copyahead.testing import ForcedDrafter

PHRASE = [11, 12, 13, 14, 15, 16, 17, 18]


def ids(*tokens: int) -> Any:
    return np.array(tokens, dtype=np.int32)


def drafts(**given: int) -> DraftsByContent:
    return DraftsByContent(LookupOptions(policy="fixed"), step_cost=StepCost.linear(0.05), **given)


def test_a_draft_is_what_followed_before_and_no_longer_than_asked() -> None:
    asked = drafts()
    assert asked.draft(ids(*PHRASE, 1, *PHRASE[:4]), 3).tokens == (15, 16, 17)
    assert asked.draft(ids(*PHRASE, 1, *PHRASE[:5]), 0).tokens == ()
    assert asked.draft(ids(5), 8).tokens == ()


def test_texts_that_take_turns_are_told_apart() -> None:
    asked, first, second = drafts(), [*PHRASE, 1], [*reversed(PHRASE), 2]
    for token, other in zip(PHRASE, reversed(PHRASE), strict=True):
        first.append(token)
        second.append(other)
        one, two = asked.draft(ids(*first), 4), asked.draft(ids(*second), 4)
        assert asked.draft(ids(*first), 4) == one  # Asked again: begun anew, the same draft.
        following = [*PHRASE[PHRASE.index(token) + 1 :], 1]
        if len(first) > 12:
            assert one.tokens[: len(following)] == tuple(following)[: len(one.tokens)]
            assert two.tokens != one.tokens


def test_a_session_learns_what_was_kept_of_its_draft() -> None:
    asked = DraftsByContent(LookupOptions(policy="window"), step_cost=StepCost.linear(0.05))
    text = [*PHRASE, *PHRASE, *PHRASE, *PHRASE]
    windows: list[Any] = []
    for _ in range(4):
        draft = asked.draft(ids(*text), 16)
        (held,) = asked._texts.values()
        windows.append(held.session.window)
        text += [*draft.tokens, PHRASE[len(text + list(draft.tokens)) % 8]]
    assert windows == sorted(windows)
    assert windows[-1] > windows[0]
    assert asked.draft(ids(*text), 16)
    text.append(99)  # Nothing of that draft was kept.
    asked.draft(ids(*text), 16)
    assert held.session.window < windows[-1]


def test_the_oldest_text_makes_room_and_one_that_was_cut_keeps_its_row() -> None:
    asked = drafts(num_texts=2)
    for start in (100, 200, 300):
        asked.draft(ids(*range(start, start + 20)), 4)
    assert sorted(asked._pool.tokens(row)[0] for row in asked._texts) == [200, 300]
    asked.draft(ids(*range(200, 215), 7), 4)
    assert sorted(asked._pool.tokens(row)[0] for row in asked._texts) == [200, 300]


def test_a_text_longer_than_the_pool_gets_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_content, "FIRST_CAPACITY", 128)
    asked = drafts()
    text = PHRASE * 30
    assert asked.draft(ids(*text, *PHRASE[:4]), 3).tokens == (15, 16, 17)


def test_a_fault_costs_the_draft_and_not_the_call(caplog: pytest.LogCaptureFixture) -> None:
    asked = drafts()
    asked.draft(ids(*PHRASE, 1, *PHRASE[:4]), 3)
    (held,) = asked._texts.values()
    held.session = ForcedDrafter(lambda _history: 1 / 0).open([], slot=0)  # type: ignore[arg-type, return-value]
    assert asked.draft(ids(*PHRASE, 1, *PHRASE[:5]), 3).tokens == ()
    assert caplog.text.count("a drafter failed") == 1
    assert asked.draft(ids(*PHRASE, 1, *PHRASE[:6]), 1).tokens == (17,)


def test_the_cost_of_passes_is_measured_unless_it_is_given() -> None:
    asked = DraftsByContent(LookupOptions(policy="fixed"))
    before = asked._load.step_cost
    for length in range(10, 10 + 40):
        asked.draft(ids(*range(length)), 4)
    assert asked._load.step_cost is not before
    given = drafts()
    for length in range(10, 10 + 40):
        given.draft(ids(*range(length)), 4)
    assert given._load.step_cost.points() == StepCost.linear(0.05).points()


def test_a_wrong_policy_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="policy"):
        DraftsByContent(LookupOptions(policy="no_such_rule"))
