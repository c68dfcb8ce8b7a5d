"""A copy beside another drafter's draft: who takes the block, and who learns from it."""

from __future__ import annotations

import pytest

from copyahead.config import HybridRule
from copyahead.contracts import Load, NextToken
from copyahead.drafters import HybridDrafter, HybridSession, LookupDrafter
from copyahead.drafters.rounds import agree, longer
from copyahead.errors import ConfigError
from copyahead.history.pool import HistoryPool
from copyahead.policies import parse_policy
from copyahead.testing import ScriptedChainDrafter
from copyahead.types import NO_DRAFT, Draft, Source


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
def test_longer(copy: Draft, other: Draft, takes: bool) -> None:
    assert longer(copy, other) is (copy if takes else other)
    assert longer(NO_DRAFT, NO_DRAFT) == NO_DRAFT


def test_first_takes_any_copy_and_asks_nobody() -> None:
    other = fixed(50, 51)
    session, _ = hybrid(other, "first", "single", REPEAT)
    assert session.propose(8).tokens == (0,)
    assert other.calls == []
    session.settle(NO_DRAFT, [70, 71])
    assert session.propose(8).tokens == (50, 51)
    assert (session.use.num_passes, session.use.num_skips) == (2, 1)


def test_priced_refuses_copies_without_survivals() -> None:
    with pytest.raises(ConfigError, match="--policy priced"):
        hybrid(fixed(50), "priced", "hysteresis", REPEAT)


def fixed(*tokens: int) -> ScriptedChainDrafter:
    """A draft model that has the same chain to offer, whatever the text is."""

    def guess(text: tuple[int, ...]) -> NextToken | None:
        session = drafter.sessions[-1]
        place = len(text) - len(session.history)
        return NextToken(tokens[place], 0.5) if place < len(tokens) else None

    drafter = ScriptedChainDrafter(guess, max_chain=max(1, len(tokens)))
    return drafter


def told(other: ScriptedChainDrafter) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What the draft model was told of its rounds: its own draft, and what was emitted."""
    return [(draft.tokens, emitted) for draft, emitted in other.sessions[-1].settled]


def hybrid(
    other: ScriptedChainDrafter,
    rule: HybridRule,
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
    other = fixed(50, 51)
    session, pool = hybrid(other, "agree", "hysteresis", REPEAT)
    draft = session.propose(4)
    assert draft.tokens == (0, 1, 2, 3)
    session.settle(draft, [0, 1, 9])
    assert told(other) == [((), (0, 1, 9))]
    assert pool.tokens(0)[-3:] == [0, 1, 9]


def test_a_verified_draft_is_a_plain_round_for_the_copies() -> None:
    other = fixed(50, 51)
    session, pool = hybrid(other, "agree", "hysteresis:min_match_after_empty=64", [1, 2, 3])
    for _ in range(3):
        draft = session.propose(8)
        assert draft.source is Source.MODEL
        session.settle(draft, [60])
    assert told(other) == [((50, 51), (60,))] * 3
    # Three rejected drafts are no empty rounds of the copies: their gate has not narrowed.
    session.settle(NO_DRAFT, REPEAT)
    assert session.propose(3).tokens == (0, 1, 2)
    assert pool.length(0) == 46


def test_a_miss_of_the_lookup_does_not_cool_the_other_drafter() -> None:
    other = fixed(50, 51)
    session, _ = hybrid(other, "longer", "window", [1, 2, 3])
    for token in range(10, 30):
        assert session.propose(8).tokens == (50, 51)
        session.settle(NO_DRAFT, [token])
    assert session.propose(8).tokens == (50, 51)


def test_the_window_is_not_asked_for_less_than_the_other_draft() -> None:
    session, _ = hybrid(fixed(50, 51, 52, 53), "longer", "window", REPEAT)
    assert session.propose(8).tokens == (0, 1, 2, 3)


def test_the_window_is_that_of_the_copies() -> None:
    other = fixed(50, 51, 52, 53)
    session, _ = hybrid(other, "longer", "window:start=4", REPEAT)
    assert session.window == 4
    session.settle(session.propose(8), [0, 1, 2, 3, 4])
    assert session.window == 8
    without, _ = hybrid(other, "longer", "single", REPEAT)
    assert without.window is None


def test_a_copy_cut_below_the_other_draft_does_not_replace_it() -> None:
    other = fixed(50, 51, 52, 53, 54)
    session, _ = hybrid(other, "longer", "window", REPEAT)
    assert session.propose(8).tokens == (50, 51, 52, 53, 54)


def test_in_a_batch_a_draft_above_three_is_never_displaced() -> None:
    load = Load(active_requests=2)
    other = fixed(50, 51, 52, 53)
    session, _ = hybrid(other, "longer", "window", REPEAT, load=load)
    assert session.propose(8).tokens == (50, 51, 52, 53)
    session, _ = hybrid(fixed(50, 51, 52), "longer", "window", REPEAT, load=load)
    assert session.propose(8).tokens == (0, 1, 2)


def test_no_copy_under_a_grammar() -> None:
    other = fixed(50)
    session, _ = hybrid(other, "longer", "window", REPEAT, grammar=True)
    assert session.propose(8).tokens == (50,)


def test_a_limit_of_zero_drafts_nothing() -> None:
    session, _ = hybrid(fixed(50), "agree", "hysteresis", REPEAT)
    assert session.propose(0) == NO_DRAFT


def test_truncate_and_close_reach_both() -> None:
    other = fixed()
    session, pool = hybrid(other, "agree", "hysteresis", REPEAT)
    session.truncate(5)
    assert (pool.length(0), len(other.sessions[0].history)) == (5, 5)
    session.close()
    assert other.sessions[0].closed


def test_a_batch_is_the_sessions_one_by_one() -> None:
    other = fixed(50, 51, 52)
    pool = HistoryPool(2, 500, 100)
    copies = LookupDrafter(pool, parse_policy("window"))
    drafter = HybridDrafter(copies, other, "longer")
    sessions = [drafter.open(REPEAT, slot=0), drafter.open([1, 2], slot=1)]
    drafts = drafter.propose_batch(sessions, [8, 8])
    assert drafts == [session.propose(8) for session in sessions]
    assert [draft.source for draft in drafts] == [Source.PROMPT, Source.MODEL]
