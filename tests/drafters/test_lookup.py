"""Lookup sessions: what is proposed, what a policy is told, and what a row remembers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.contracts import Load, Query
from copyahead.drafters import LookupDrafter, LookupSession
from copyahead.history.pool import HistoryPool
from copyahead.policies import parse_policy
from copyahead.types import NO_DRAFT, Draft, Source

PRESETS = ["hysteresis", "window", "single", "adaptive_k", "fixed"]
LOOSE = "hysteresis:min_match=2,min_match_running=2"


class Recorder:
    """A policy that asks for the same every round and writes down what it is told."""

    window: int | None = None

    def __init__(self, load: Load | None = None, *, key: int = 2, max_tokens: int = 4) -> None:
        self.key = key
        self.max_tokens = max_tokens
        self.told: list[tuple[int, int, bool]] = []

    def query(self, limit: int, at_least: int = 0) -> Query | None:
        wanted = min(limit, self.max_tokens)
        return Query(keys=(self.key,), min_match=1, max_tokens=wanted)

    def trim(self, length: int) -> int:
        return length

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int, continues: bool) -> None:
        self.told.append((num_draft_tokens, num_accepted_tokens, continues))


def session_on(prompt: list[int], policy: str | None = None) -> LookupSession:
    pool = HistoryPool(1, 500, 1000)
    make = Recorder if policy is None else parse_policy(policy)
    return LookupDrafter(pool, make).open(prompt, slot=0)


def told(session: LookupSession) -> list[tuple[int, int, bool]]:
    assert isinstance(session.policy, Recorder)
    return session.policy.told


def test_a_round() -> None:
    session = session_on([1, 2, 3, 4, 5, 1, 2])
    draft = session.propose(64)
    assert draft == Draft((3, 4, 5, 1), Source.PROMPT, 2, (), 2)
    assert session.propose(64) == draft
    assert session.propose(2) == draft.first(2)
    assert session.propose(0) == NO_DRAFT


@pytest.mark.parametrize(
    ("emitted", "accepted", "continues"),
    [
        ([3, 4, 5, 1, 2], 4, True),
        ([3, 4, 5, 1, 9], 4, False),
        ([3, 4, 5, 1], 4, True),
        ([3, 4, 9], 2, False),
        ([3, 4], 2, True),
        ([9], 0, False),
    ],
)
def test_what_the_policy_is_told(emitted: list[int], accepted: int, continues: bool) -> None:
    session = session_on([1, 2, 3, 4, 5, 1, 2])
    session.settle(session.propose(64), emitted)
    assert told(session) == [(4, accepted, continues)]


def test_a_shortened_draft_is_settled_as_what_was_verified() -> None:
    session = session_on([1, 2, 3, 4, 5, 1, 2])
    session.settle(session.propose(64).first(1), [3, 4])
    assert told(session) == [(1, 1, True)]


def test_a_plain_round_goes_on_while_the_copied_text_does() -> None:
    session = session_on([1, 2, 3, 4, 5, 6, 7, 1, 2])
    session.settle(NO_DRAFT, [3])
    session.settle(session.propose(64).first(1), [4, 5])
    session.settle(NO_DRAFT, [6])
    session.settle(NO_DRAFT, [9])
    session.settle(NO_DRAFT, [1])
    continues = [goes_on for _, _, goes_on in told(session)]
    assert continues == [False, True, True, False, False]


def test_a_copy_goes_on_in_its_own_tokens() -> None:
    session = session_on([7] * 6)
    session.settle(session.propose(64), [7] * 5)
    session.settle(NO_DRAFT, [7])
    session.settle(NO_DRAFT, [8])
    assert [goes_on for _, _, goes_on in told(session)] == [True, True, False]


def test_truncation_breaks_the_copy_and_forgets_what_was_cut() -> None:
    session = session_on([1, 2, 3, 4, 5, 1, 2])
    session.settle(session.propose(64), [3, 4, 5, 1, 2])
    session.truncate(9)
    session.truncate(9)
    session.settle(NO_DRAFT, [5])
    assert told(session)[-1] == (0, 0, False)
    session.truncate(5)
    session.settle(NO_DRAFT, [6, 3, 4])
    assert session.propose(3).tokens == (5, 6, 3)


def test_hysteresis_end_to_end() -> None:
    text = list(range(100, 130))
    session = session_on([*text, 5, *text[12:15], 77, 88, 6, *text[:11]], "hysteresis")
    assert session.propose(64) == NO_DRAFT
    session.settle(NO_DRAFT, [text[11]])
    draft = session.propose(64)
    assert (draft.match_length, draft.tokens[:18]) == (12, tuple(text[12:]))
    session.settle(draft.first(3), [*text[12:15], 77])
    resumed = session.propose(64)
    assert (resumed.match_length, resumed.tokens[0]) == (4, 88)
    session.settle(resumed, [89])
    session.settle(NO_DRAFT, text[3:7])
    assert session.propose(64) == NO_DRAFT


def test_rows_open_once_and_keep_a_prefix_for_the_next_turn() -> None:
    pool = HistoryPool(2, 100, 1000)
    drafter = LookupDrafter(pool, parse_policy(LOOSE))
    session = drafter.open([1, 2, 3], slot=0)
    with pytest.raises(ValueError, match="row 0 has an open session"):
        drafter.open([1], slot=0)
    session.settle(NO_DRAFT, [4, 5])
    session.close()
    session.close()
    again = drafter.open([1, 2, 3, 4, 5, 9, 2, 3], slot=0)
    assert again.propose(2) == Draft((4, 5), Source.PROMPT, 2, (), 3)
    session.close()
    with pytest.raises(ValueError, match="row 0"):
        drafter.open([1], slot=0)


def test_a_new_request_starts_with_a_fresh_policy() -> None:
    pool = HistoryPool(1, 500, 1000)
    drafter = LookupDrafter(pool, parse_policy("window"))
    prompt = list(range(20)) * 2
    session = drafter.open(prompt, slot=0)
    session.settle(session.propose(64), [999])
    assert session.propose(64) == NO_DRAFT
    session.close()
    assert len(drafter.open(prompt, slot=0).propose(64)) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(PRESETS))
def test_a_batch_is_the_sessions_one_by_one(seed: int, policy: str) -> None:
    rng = random.Random(seed)
    load = Load(active_requests=rng.choice([1, 2]))
    drafter = LookupDrafter(HistoryPool(6, 400, 3), parse_policy(policy), load)
    prompts = [rng.choices(range(-1, 3), k=rng.randrange(120)) for _ in range(6)]
    sessions = [drafter.open(prompt, slot=row) for row, prompt in enumerate(prompts)]
    for _ in range(5):
        rng.shuffle(sessions)
        some = sessions[: rng.randrange(7)]
        limits = [rng.choice([0, 1, 3, 64]) for _ in some]
        drafts = drafter.propose_batch(some, limits)
        assert drafts == [s.propose(limit) for s, limit in zip(some, limits, strict=True)]
        for session, draft in zip(some, drafts, strict=True):
            kept = rng.randrange(len(draft) + 1)
            session.settle(draft, [*draft.tokens[:kept], rng.randrange(3)])


@pytest.mark.parametrize("policy", PRESETS)
def test_any_text_is_followed_to_its_end(policy: str) -> None:
    """Drafts change how many rounds a text takes, never what is settled."""
    rng = random.Random(5)
    block = [rng.randrange(50) for _ in range(40)]
    text = [*block, *block, *rng.choices(range(50), k=60), *block]
    pool = HistoryPool(1, 1000, 50)
    session = LookupDrafter(pool, parse_policy(policy)).open(text[:60], slot=0)
    done, rounds = 60, 0
    while done < len(text):
        draft = session.propose(min(64, len(text) - done - 1))
        kept = 0
        while kept < len(draft) and draft.tokens[kept] == text[done + kept]:
            kept += 1
        emitted = text[done : done + kept + 1]
        session.settle(draft, emitted)
        done += len(emitted)
        rounds += 1
    assert pool.tokens(0) == text
    assert rounds < len(text) - 60


def test_a_copy_that_was_cut_off_does_not_go_on() -> None:
    session = session_on([1, 2, 3, 4, 1, 2])
    draft = session.propose(2)
    session.settle(draft, [3, 4])
    session.truncate(4)
    # What the copied text holds where the copy would have gone on.
    session.settle(NO_DRAFT, [1])
    assert told(session) == [(2, 2, True), (0, 0, False)]
