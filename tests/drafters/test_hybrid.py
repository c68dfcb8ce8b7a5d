"""A copy beside another drafter's draft: who takes the block, and who learns from it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from copyahead.contracts import DraftSession, Load
from copyahead.drafters import HybridDrafter, HybridSession, LookupDrafter
from copyahead.drafters.hybrid import Rule, agree, replace
from copyahead.history.pool import HistoryPool
from copyahead.policies import parse_policy
from copyahead.types import NO_DRAFT, Draft, Source, Token


def copied(*tokens: int, match: int = 5) -> Draft:
    return Draft(tokens, Source.PROMPT, match, (), 0)


def drafted(*tokens: int) -> Draft:
    return Draft(tokens, Source.MODEL, survivals=(0.5,) * len(tokens))


@pytest.mark.parametrize(
    ("copy", "other", "takes"),
    [
        (copied(1, 2, match=8), drafted(3, 4), True),
        (copied(1, 2, match=7), drafted(3, 4), False),
        (copied(1, 2, 3, match=2), drafted(1, 2, 9), True),
        (copied(1, 2, 3, match=7), drafted(1, 3), False),
        (copied(1, 2, 3, match=7), drafted(1), False),
        (copied(1, match=7), drafted(1, 2), False),
        (copied(1, match=8), drafted(1, 2), True),
        (copied(1, 2, match=7), NO_DRAFT, False),
        (copied(1, 2, match=8), NO_DRAFT, True),
        (NO_DRAFT, drafted(1, 2), False),
    ],
)
def test_agree(copy: Draft, other: Draft, takes: bool) -> None:
    assert agree(copy, other) is (copy if takes else other)


@pytest.mark.parametrize(
    ("copy", "other", "takes"),
    [
        (copied(1, 2), drafted(3, 4), True),
        (copied(1, 2), drafted(3), True),
        (copied(1), drafted(3, 4), False),
        (copied(1), NO_DRAFT, True),
        (NO_DRAFT, drafted(1), False),
    ],
)
def test_replace(copy: Draft, other: Draft, takes: bool) -> None:
    assert replace(copy, other) is (copy if takes else other)
    assert replace(NO_DRAFT, NO_DRAFT) == NO_DRAFT


class FixedDrafter:
    """Another drafter: a fixed draft, and a record of its rounds."""

    window: int | None = None

    def __init__(self, *tokens: int) -> None:
        self.draft = drafted(*tokens) if tokens else NO_DRAFT
        self.told: list[tuple[tuple[int, ...], list[int]]] = []
        self.length = -1
        self.closed = 0

    def open(
        self,
        prompt: Sequence[Token],
        *,
        slot: int,
        tenant: str = "",
        prediction: Sequence[Token] = (),
    ) -> FixedDrafter:
        return self

    def propose(self, limit: int) -> Draft:
        return self.draft.first(limit)

    def forget(self) -> None:
        """Nothing to forget."""

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        return [s.propose(limit) for s, limit in zip(sessions, limits, strict=True)]

    def check(self) -> None:
        assert self.closed <= 1, "closed twice"

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        self.told.append((draft.tokens, list(emitted)))

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None:
        self.closed += 1


def hybrid(
    other: FixedDrafter,
    rule: Rule,
    policy: str,
    prompt: list[int],
    *,
    grammar: bool = False,
    load: Load | None = None,
) -> tuple[HybridSession, HistoryPool]:
    pool = HistoryPool(1, 500, 100)
    drafter = HybridDrafter(LookupDrafter(pool, parse_policy(policy), load), other, rule)
    return drafter.open(prompt, slot=0, grammar=grammar), pool


REPEAT = list(range(20)) * 2


def test_a_verified_copy_is_a_plain_round_for_the_other_drafter() -> None:
    other = FixedDrafter(50, 51)
    session, pool = hybrid(other, "agree", "hysteresis", REPEAT)
    draft = session.propose(4)
    assert draft.tokens == (0, 1, 2, 3)
    session.settle(draft, [0, 1, 9])
    assert other.told == [((), [0, 1, 9])]
    assert pool.tokens(0)[-3:] == [0, 1, 9]


def test_a_verified_draft_is_a_plain_round_for_the_copies() -> None:
    other = FixedDrafter(50, 51)
    session, pool = hybrid(other, "agree", "hysteresis:min_match_after_empty=64", [1, 2, 3])
    for _ in range(3):
        draft = session.propose(8)
        assert draft.source is Source.MODEL
        session.settle(draft, [60])
    assert other.told == [((50, 51), [60])] * 3
    # Three rejected drafts are no empty rounds of the copies: their gate has not narrowed.
    session.settle(NO_DRAFT, REPEAT)
    assert session.propose(3).tokens == (0, 1, 2)
    assert pool.length(0) == 46


def test_a_miss_of_the_lookup_does_not_cool_the_other_drafter() -> None:
    other = FixedDrafter(50, 51)
    session, _ = hybrid(other, "replace", "window", [1, 2, 3])
    for token in range(10, 30):
        assert session.propose(8) == other.draft
        session.settle(NO_DRAFT, [token])
    assert session.propose(8) == other.draft


def test_the_window_is_not_asked_for_less_than_the_other_draft() -> None:
    session, _ = hybrid(FixedDrafter(50, 51, 52, 53), "replace", "window", REPEAT)
    assert session.propose(8).tokens == (0, 1, 2, 3)


def test_the_window_is_that_of_the_copies() -> None:
    other = FixedDrafter(50, 51, 52, 53)
    session, _ = hybrid(other, "replace", "window:start=4", REPEAT)
    assert session.window == 4
    session.settle(session.propose(8), [0, 1, 2, 3, 4])
    assert session.window == 8
    without, _ = hybrid(other, "replace", "single", REPEAT)
    assert without.window is None


def test_a_copy_cut_below_the_other_draft_does_not_replace_it() -> None:
    other = FixedDrafter(50, 51, 52, 53, 54)
    session, _ = hybrid(other, "replace", "window", REPEAT)
    assert session.propose(8) == other.draft


def test_in_a_batch_a_draft_above_three_is_never_replaced() -> None:
    load = Load(active_requests=2)
    other = FixedDrafter(50, 51, 52, 53)
    session, _ = hybrid(other, "replace", "window", REPEAT, load=load)
    assert session.propose(8) == other.draft
    session, _ = hybrid(FixedDrafter(50, 51, 52), "replace", "window", REPEAT, load=load)
    assert session.propose(8).tokens == (0, 1, 2)


def test_no_copy_under_a_grammar() -> None:
    other = FixedDrafter(50)
    session, _ = hybrid(other, "replace", "window", REPEAT, grammar=True)
    assert session.propose(8) == other.draft


def test_a_limit_of_zero_drafts_nothing() -> None:
    session, _ = hybrid(FixedDrafter(50), "agree", "hysteresis", REPEAT)
    assert session.propose(0) == NO_DRAFT


def test_truncate_and_close_reach_both() -> None:
    other = FixedDrafter()
    session, pool = hybrid(other, "agree", "hysteresis", REPEAT)
    session.truncate(5)
    assert (pool.length(0), other.length) == (5, 5)
    session.close()
    assert other.closed == 1


def test_a_batch_is_the_sessions_one_by_one() -> None:
    other = FixedDrafter(50, 51, 52)
    pool = HistoryPool(2, 500, 100)
    copies = LookupDrafter(pool, parse_policy("window"))
    drafter = HybridDrafter(copies, other, "replace")
    sessions = [drafter.open(REPEAT, slot=0), drafter.open([1, 2], slot=1)]
    drafts = drafter.propose_batch(sessions, [8, 8])
    assert drafts == [session.propose(8) for session in sessions]
    assert [draft.source for draft in drafts] == [Source.PROMPT, Source.MODEL]
