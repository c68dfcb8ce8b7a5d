"""The default policy: what it weighs, what it learns, and what it may cost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.contracts import Load
from copyahead.drafters import prior
from copyahead.drafters.priced import MAX_TENANTS, PricedDrafter, PricedSession, price_list
from copyahead.errors import ConfigError
from copyahead.history.pool import HistoryPool
from copyahead.kernels import candidates, features, pricing
from copyahead.policies.registry import PricedKnobs
from copyahead.step_cost import StepCost
from copyahead.training.train import follow
from copyahead.types import NO_DRAFT, Draft, Source
from tests.naive import NaiveHistory, view_of

CHEAP = StepCost.linear(0.03)
VOCAB = 1000


def drafter_of(
    *, rows: int = 1, cost: StepCost | Load = CHEAP, vocab: int = VOCAB, **more: object
) -> PricedDrafter:
    return PricedDrafter(HistoryPool(rows, 6000, vocab), cost, **more)  # type: ignore[arg-type]


def session_on(prompt: Sequence[int], **more: object) -> tuple[PricedSession, PricedDrafter]:
    drafter = drafter_of(**more)  # type: ignore[arg-type]
    return drafter.open(list(prompt), slot=0), drafter


def words(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(count)]


# What it may cost


def costs() -> st.SearchStrategy[StepCost]:
    """Any monotone curve, staircases among them."""
    steps = st.lists(st.sampled_from([0.0, 0.001, 0.03, 0.3, 1.0, 5.0]), min_size=65, max_size=65)
    return steps.map(
        lambda rises: StepCost({n: 1.0 + float(sum(rises[: n - 1])) for n in range(1, 66)})
    )


class Adversary:
    """Writes whatever costs the drafter most, as often as it likes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rejecting = rng.choice([0.2, 0.5, 0.9, 1.0])
        self.width = rng.choice([1, 2, 5, 200])

    def answer(self, draft: Draft) -> list[int]:
        kept = 0
        while kept < len(draft) and self.rng.random() > self.rejecting:
            kept += 1
        emitted = list(draft.tokens[:kept])
        other = self.rng.randrange(self.width)
        if kept < len(draft) and other == draft.tokens[kept]:
            other = (other + 1) % VOCAB
        if kept == len(draft) and draft and self.rng.random() < 0.2:
            return emitted
        return [*emitted, other]


def check_budget(seed: int, cost: StepCost, num_rounds: int) -> None:
    rng = random.Random(seed)
    period = rng.choices(range(5), k=rng.randrange(1, 30))
    # A small credit and an eager threshold make the bound bite in most rounds.
    knobs = rng.choice([PricedKnobs(), PricedKnobs(credit=2.0, credit_cap=1.0, threshold=0.5)])
    session, drafter = session_on(period * rng.randrange(1, 20), cost=cost, knobs=knobs)
    adversary = Adversary(rng)
    paid = emitted_tokens = 0.0
    for _ in range(num_rounds):
        if rng.random() < 0.01:
            drafter.step_cost = cost = rng.choice([cost, StepCost.linear(rng.random())])
        if rng.random() < 0.05 or not emitted_tokens:
            adversary = Adversary(rng)
        draft = session.propose(rng.choice([0, 1, 7, 64, 64]))
        draft = draft.first(rng.choice([1, 64, 64]))
        emitted = adversary.answer(draft)
        session.settle(draft, emitted)
        paid += cost(1 + len(draft))
        emitted_tokens += len(emitted)
        assert paid <= 1.005 * emitted_tokens + knobs.credit + 1e-6
        assert session.credit >= -knobs.credit - 1e-9
    drafter.check()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), costs())
def test_no_request_costs_more_than_plain_decoding_and_the_credit(
    seed: int, cost: StepCost
) -> None:
    check_budget(seed, cost, 300)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None)
@given(st.integers(0, 2**32), costs())
def test_the_same_on_ten_thousand_texts_and_costs(seed: int, cost: StepCost) -> None:
    check_budget(seed, cost, 120)


@pytest.mark.parametrize("row_cost", [0.0, 0.01, 0.3, 1.0, 10.0])
def test_text_without_repeats_costs_what_plain_decoding_does(row_cost: float) -> None:
    cost = StepCost.linear(row_cost)
    session, _ = session_on([], cost=cost)
    drafts = follow(session, words(4000))
    paid = sum(cost(1 + len(draft)) for draft in drafts)
    assert 4000 / paid >= 0.98


def test_a_request_in_debt_drafts_again_when_copies_hold() -> None:
    cost = StepCost.linear(0.3)
    session, _ = session_on(words(200, 1), cost=cost)
    rng = random.Random(2)
    adversary = Adversary(rng)
    adversary.rejecting, adversary.width = 1.0, 3
    for _ in range(2000):
        draft = session.propose(64)
        session.settle(draft, adversary.answer(draft))
    assert session.credit < 0
    drafts = follow(session, words(200, 1))
    assert sum(len(draft) for draft in drafts[-60:]) > 60
    assert len(drafts) < 200


# What is drafted


def test_a_copy_is_drafted_in_long_blocks() -> None:
    text = words(400)
    session, _ = session_on([*text, 5, 6, 7])
    drafts = follow(session, text)
    assert len(drafts) <= 30
    assert max(len(draft) for draft in drafts) == 64


def test_an_edited_copy_resumes_after_the_edit() -> None:
    text = words(300)
    new = next(token for token in range(VOCAB) if token not in text)
    edited = [*text[:100], new, *text[101:200], *text[204:]]
    session, _ = session_on([*text, 5, 6, 7])
    follow(session, edited[:102])
    # One token after the edit is enough: what follows is where the copy broke off.
    draft = session.propose(64)
    assert draft.match_length == 1
    assert draft.tokens[:3] == tuple(text[102:105])
    follow(session, edited[102:200])
    assert len(follow(session, edited[200:])) <= 12


def test_a_run_goes_on_in_its_own_tokens() -> None:
    session, _ = session_on([7] * 100)
    drafts = follow(session, [7] * 600)
    assert len(drafts[-2]) == 64
    assert set(drafts[-2].tokens) == {7}
    assert len(drafts) < 40


def test_a_costly_row_shortens_drafts() -> None:
    text = words(300)
    lengths = []
    for row_cost in (0.01, 0.1, 0.3, 0.8):
        session, _ = session_on([*text, *words(200, 1), *text[:3]], cost=StepCost.linear(row_cost))
        lengths.append(len(session.propose(64)))
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[1] > lengths[-1] == 0


# A small model on two cores: no copy can go faster than 1.71 tokens a step.
DEAR = StepCost({1: 1.0, 2: 2.04, 4: 3.18, 8: 5.19, 16: 9.87, 32: 18.94, 64: 37.37})


def speed(drafts: Sequence[Draft], num_tokens: int, cost: StepCost) -> float:
    return num_tokens / sum(cost(1 + len(draft)) for draft in drafts)


def test_dear_rows_do_not_hold_back_a_copy_that_never_breaks() -> None:
    text = words(400)
    session, drafter = session_on([*text, 5, 6, 7], cost=DEAR)
    assert speed(follow(session, text), 400, DEAR) >= 0.9 * DEAR.limit()
    rate = pricing.running_rate(drafter.models[0], drafter.request_rates[0], drafter.prices)
    assert 1 < rate <= DEAR.limit()


def test_a_rate_from_cheaper_times_is_no_higher_than_this_machine_can_go() -> None:
    session, drafter = session_on([])
    follow(session, [7] * 2000)
    session.close()
    model, own = drafter.models[0], drafter.request_rates[0]
    assert pricing.running_rate(model, own, drafter.prices) > 3
    drafter.step_cost = DEAR
    assert pricing.running_rate(model, own, drafter.prices) == pytest.approx(DEAR.limit(65))


def test_copies_that_break_shorten_drafts_and_clean_ones_lengthen_them() -> None:
    """The odds of a break follow what this tenant's copies did, within one short request."""
    text = words(3000)
    clean, edited = text[:200], list(text[:200])
    for place in range(9, 200, 10):
        edited[place] = 999
    odds = []
    for answer in (clean, edited):
        session, drafter = session_on([*text, 5, 6, 7], cost=DEAR)
        follow(session, answer)
        odds.append(pricing.break_odds(drafter.models[0]))
    assert pricing.LEAST_BREAKS <= odds[0] < 0.5 < 1 < odds[1]


def test_a_few_breaks_are_news_however_long_nothing_broke() -> None:
    _, drafter = session_on([])
    model = drafter.models[0]
    for _ in range(3000):
        pricing.note_copied(model, 0.9, False)
    assert pricing.break_odds(model) == pytest.approx(pricing.LEAST_BREAKS)
    for _ in range(2):
        pricing.note_copied(model, 0.99, True)
    assert pricing.break_odds(model) > 2.5 * pricing.LEAST_BREAKS


@pytest.mark.parametrize("limit", [3, 6, 9])
def test_the_end_of_an_answer_is_drafted_though_it_does_not_reach_the_running_rate(
    limit: int,
) -> None:
    """Only long drafts pay what the request is used to; short ones still beat plain steps."""
    cost = StepCost({1: 1.0, 2: 2.2, 64: 2.2 + 62 * 0.55})
    text = words(300)
    session, drafter = session_on([*text, 5], cost=cost)
    follow(session, text[:200])
    rate = pricing.running_rate(drafter.models[0], drafter.request_rates[0], drafter.prices)
    assert rate * (cost(1 + limit) - 1) > limit > cost(1 + limit) - 1
    assert len(session.propose(limit)) == limit
    assert len(session.propose(64)) > limit


def test_a_staircase_is_filled_to_its_edge() -> None:
    """Where rows come in fours at one price, no draft stops one row after an edge."""
    cost = StepCost({n: 1.0 + 0.4 * ((n - 1) // 4) for n in range(1, 67)})
    text = words(300)
    session, _ = session_on([*text, 5], cost=cost)
    lengths = {len(draft) for draft in follow(session, text)[:-3] if len(draft) < 64}
    assert lengths
    assert all((1 + length) % 4 == 0 for length in lengths - {0, 32})


def test_survivals_fall_along_a_draft() -> None:
    text = words(200)
    session, _ = session_on([*text, *text[:20]])
    draft = session.propose(64)
    assert len(draft.survivals) == len(draft.tokens) > 0
    assert list(draft.survivals) == sorted(draft.survivals, reverse=True)
    assert all(0 < survival < 1 for survival in draft.survivals)
    assert draft.source is Source.PROMPT
    assert tuple(text[draft.origin : draft.origin + 4]) == draft.tokens[:4]


def test_nothing_is_drafted_after_an_end_token() -> None:
    text = [*words(40), 999, *words(40, 1)]
    session, _ = session_on([*text, *text[:30]], end_tokens=[999, 998])
    follow(session, text[30:38])
    draft = session.propose(64)
    assert draft.tokens == (*text[38:40], 999)[: len(draft)]
    assert 999 in draft.tokens


def test_barriers_are_never_drafted() -> None:
    rng = random.Random(4)
    text = [rng.choice([1, 2, 3, -1, VOCAB, 10**6]) for _ in range(300)]
    session, _ = session_on(text)
    for _ in range(300):
        draft = session.propose(64)
        assert all(0 <= token < VOCAB for token in draft.tokens)
        session.settle(draft, [*draft.tokens[:3], rng.choice([1, 2, 3, -1, VOCAB])])


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
def test_tiny_histories(length: int) -> None:
    session, _ = session_on(range(length))
    assert session.propose(64) == NO_DRAFT
    session.settle(NO_DRAFT, [5])
    session.propose(64)


def test_a_row_is_filled_to_its_capacity() -> None:
    pool = HistoryPool(1, 100, VOCAB)
    session = PricedDrafter(pool, CHEAP).open([7] * 90, slot=0)
    for _ in range(10):
        session.propose(64)
        session.settle(NO_DRAFT, [7])
    assert pool.length(0) == 100
    assert len(session.propose(64)) > 0


# What a round reads, and what it leaves


def state_of(drafter: PricedDrafter) -> list[bytes]:
    pool = drafter._pool
    held = pool.cells[0, : pool.length(0)]
    arrays = (held, pool.heads, pool.lengths, drafter.credits, drafter.models, drafter.tables)
    return [array.tobytes() for array in arrays]


def test_proposing_changes_nothing() -> None:
    session, drafter = session_on(words(40, vocab=4), vocab=4)
    rng = random.Random(6)
    for _ in range(60):
        before = state_of(drafter)
        draft = session.propose(64)
        assert session.propose(64) == draft
        session.propose(rng.randrange(65))
        assert session.propose(64) == draft
        assert state_of(drafter) == before
        session.settle(draft, [*draft.tokens[: rng.randrange(len(draft) + 1)], rng.randrange(4)])


def test_limits() -> None:
    text = words(200)
    session, _ = session_on([*text, *text[:50]])
    for limit in (-1, 0, 1, 2, 7, 64, 1000):
        assert len(session.propose(limit)) <= max(limit, 0)
    assert len(session.propose(1)) == 1


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_a_batch_is_the_sessions_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    drafter = drafter_of(rows=5, vocab=3)
    sessions = [
        drafter.open(rng.choices(range(-1, 3), k=rng.randrange(90)), slot=row, tenant=str(row % 2))
        for row in range(5)
    ]
    for _ in range(8):
        rng.shuffle(sessions)
        some = sessions[: rng.randrange(6)]
        limits = [rng.choice([0, 1, 5, 64]) for _ in some]
        drafts = drafter.propose_batch(some, limits)
        assert drafts == [s.propose(limit) for s, limit in zip(some, limits, strict=True)]
        # Ask again for what was sent: the last call decides what a round can learn from.
        drafter.propose_batch(some, limits)
        for session, draft in zip(some, drafts, strict=True):
            session.settle(draft, [*draft.tokens[: rng.randrange(9)], rng.randrange(3)])


def test_a_shortened_draft_is_still_learnt_from_and_followed() -> None:
    text = words(200)
    session, drafter = session_on([*text, *text[:50]])
    draft = session.propose(64)
    assert len(draft) > 3
    before = drafter.models.copy()
    session.settle(draft.first(1), text[50:52])
    state = drafter.states[0]
    # Two tokens were copied: the accepted one, and the bonus, which the path foretold.
    assert (state[features.A_RUN], state[features.A_GAP]) == (2, 0)
    assert state[features.A_NEXT] == 52
    assert not np.array_equal(before, drafter.models)


def test_a_round_that_drafts_nothing_learns_what_it_would_have_drafted() -> None:
    text = words(200)
    session, drafter = session_on([*text, *text[:50]], cost=StepCost.linear(50.0))
    for k in range(5):
        assert session.propose(64) == NO_DRAFT
        session.settle(NO_DRAFT, [text[50 + k]])
    assert drafter.states[0][features.A_RUN] == 5
    assert drafter.tables.any()


def test_tokens_that_no_round_accounts_for_say_nothing_of_how_fast_a_request_goes() -> None:
    """A request that goes on after a pause hands over at once what it wrote before."""
    session, drafter = session_on(words(50))
    rate = drafter.models[0, [features.RATE_TOKENS, features.RATE_COST]].copy()
    session.settle(NO_DRAFT, words(40, 1))
    grown = drafter.models[0, [features.RATE_TOKENS, features.RATE_COST]] - 0.9995 * rate
    assert np.allclose(grown, 1)
    assert session.credit == pytest.approx(40 * 0.005)


@pytest.mark.parametrize("asked_between", [0, 3])
def test_what_is_learnt_of_a_round_does_not_depend_on_the_limit(asked_between: int) -> None:
    text = words(200)
    rounds = []
    for between in (64, asked_between):
        session, drafter = session_on([*text, 1, 2, 3, *text[:6]], cost=StepCost.linear(0.03))
        at, drafted = 6, []
        while at < len(text):
            draft = session.propose(64)
            session.propose(between)
            kept = 0
            while kept < len(draft) and text[at + kept :][:1] == [draft.tokens[kept]]:
                kept += 1
            session.settle(draft, text[at : at + kept + 1])
            at += kept + 1
            drafted.append(len(draft))
        rounds.append((drafted, drafter.states[0].tolist(), drafter.tables.sum()))
    assert rounds[0] == rounds[1]


def test_truncation_ends_the_copy_and_is_idempotent() -> None:
    text = words(100)
    session, drafter = session_on([*text, *text[:50]])
    follow(session, text[50:80])
    assert session.propose(8).tokens == tuple(text[80:88])
    session.truncate(140)
    session.truncate(140)
    assert drafter.states[0][features.A_NEXT] == -1
    assert session.propose(8).tokens == tuple(text[40:48])
    session.settle(NO_DRAFT, [text[40]])


def test_nothing_is_learnt_of_a_draft_that_was_cut_off_with_its_text() -> None:
    text = words(100)

    def learnt(cut: bool) -> list[object]:
        session, drafter = session_on([*text, *text[:50]])
        if cut:
            assert session.propose(8)
        session.truncate(140)
        session.settle(NO_DRAFT, [text[50]])
        return [drafter.models.tolist(), drafter.tables.tolist(), session.credit]

    assert learnt(cut=True) == learnt(cut=False)


def test_a_round_of_a_batch_is_charged_as_it_was_priced() -> None:
    text = words(200)
    load = Load(step_cost=StepCost.linear(100.0))
    drafter = drafter_of(rows=2, cost=load)
    sessions = [drafter.open([*text, *text[:50]], slot=slot) for slot in range(2)]
    assert drafter.propose_batch(sessions, [64, 64]) == [NO_DRAFT] * 2
    load.step_cost = CHEAP
    drafts = drafter.propose_batch(sessions, [64, 64])
    load.step_cost = StepCost.linear(100.0)
    for session, draft in zip(sessions, drafts, strict=True):
        assert len(draft) > 5
        session.settle(draft, [999])
        assert session.credit > -16.0


def test_a_step_cost_that_changes_counts_from_the_next_round() -> None:
    text = words(200)
    load = Load(step_cost=StepCost.linear(100.0))
    session, _ = session_on([*text, *text[:50]], cost=load)
    assert session.propose(64) == NO_DRAFT
    load.step_cost = CHEAP
    draft = session.propose(64)
    assert len(draft) > 5
    load.step_cost = StepCost.linear(100.0)
    # Charged as it was priced: the round was decided before the change.
    session.settle(draft, [999])
    assert session.credit > -16.0


def test_a_row_opens_once_and_starts_afresh() -> None:
    text = words(100)
    session, drafter = session_on([*text, *text[:50]])
    follow(session, words(30, 1))
    with pytest.raises(ValueError, match="row 0 has an open session"):
        drafter.open([1], slot=0)
    session.close()
    session.close()
    drafter.open([1, 2, 3], slot=0)
    assert drafter.credits[0] == 0
    assert drafter.states[0][features.A_NEXT] == -1


# Tenants


def test_a_tenant_sees_nothing_of_another() -> None:
    def drafts_of_b(others: int) -> list[Draft]:
        drafter = drafter_of(rows=2)
        a = drafter.open(words(100), slot=0, tenant="a")
        b = drafter.open([*words(100), *words(50)], slot=1, tenant="b")
        follow(a, words(others, 5))
        return follow(b, words(60, 0)[50:] + words(60, 7))

    assert drafts_of_b(0) == drafts_of_b(500)


def test_one_tenant_learns_over_its_requests() -> None:
    drafter = drafter_of()
    drafter.open(words(50) * 2, slot=0, tenant="a").close()
    untouched = drafter.models[0].copy()
    session = drafter.open(words(50) * 2, slot=0, tenant="a")
    follow(session, words(50))
    session.close()
    learnt = drafter.models[0].copy()
    assert not np.array_equal(untouched, learnt)
    drafter.open([1], slot=0, tenant="a").close()
    assert np.array_equal(drafter.models[0], learnt)


def test_tenants_are_kept_up_to_a_bound_and_open_ones_always() -> None:
    drafter = drafter_of(rows=2)
    kept = drafter.open(words(60) * 2, slot=0, tenant="kept")
    follow(kept, words(60))
    learnt = drafter.models[drafter.states[0][features.TENANT]].copy()
    for number in range(2 * MAX_TENANTS):
        session = drafter.open(words(20) * 2, slot=1, tenant=f"tenant {number}")
        assert drafter.states[1][features.TENANT] != drafter.states[0][features.TENANT]
        place = drafter.states[1][features.TENANT]
        assert np.array_equal(drafter.models[place], prior.shipped())
        assert not drafter.tables[place].any()
        follow(session, words(20))
        assert drafter.tables[place].any()
        session.close()
    assert len(drafter.models) == MAX_TENANTS
    assert np.array_equal(drafter.models[drafter.states[0][features.TENANT]], learnt)


def test_the_tenant_longest_unseen_makes_room() -> None:
    drafter = drafter_of()

    def place_of(tenant: str) -> int:
        session = drafter.open([1, 2, 3], slot=0, tenant=tenant)
        session.close()
        return int(drafter.states[0][features.TENANT])

    places = {tenant: place_of(tenant) for tenant in map(str, range(MAX_TENANTS))}
    assert sorted(places.values()) == list(range(MAX_TENANTS))
    assert place_of("0") == places["0"]
    assert place_of("new") == places["1"]
    assert place_of("0") == places["0"]


# Its parts


@settings(max_examples=50, deadline=None)
@given(costs())
def test_price_list(cost: StepCost) -> None:
    prices = price_list(cost, PricedKnobs())
    for position in range(65):
        row = 1 + position
        wanted = min((cost(row + q) - cost(row)) / q for q in range(1, 67 - row))
        assert prices[pricing.CHEAPEST + position] == pytest.approx(wanted, abs=1e-9)
        assert prices[row] == pytest.approx(cost(row))
    assert prices[pricing.FASTEST] == pytest.approx(cost.limit(65))


def naive_gather(history: NaiveHistory) -> list[tuple[int, int, int]]:
    """(source, match, rank bucket) of the candidates by key, by a plain scan."""
    found = []
    last = len(history.tokens) - 1
    for key, above in ((4, 65), (2, 4), (1, 2)):
        ends = [e for e in range(last - 1, -1, -1) if history.match_length(e) >= key]
        ends = ends[: candidates.PER_KEY]
        for rank, end in enumerate(ends):
            match = history.match_length(end)
            if match < above and history.tokens[end + 1] >= 0:
                found.append((end + 1, match, [0, 1, 2, 2, 3, 3, 3, 3][rank]))
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=80))
def test_candidates_by_key_are_those_of_a_plain_scan(text: list[int]) -> None:
    pool = HistoryPool(1, 200, 4)
    pool.attach(0, text)
    rows = np.zeros((features.NUM_CANDIDATE_COLUMNS, features.MAX_CANDIDATES), dtype=np.int32)
    count = candidates.gather_by_key(view_of(pool), rows, 0)
    columns = (features.SOURCE, features.MATCH, features.RANK)
    found = [tuple(int(rows[column, c]) for column in columns) for c in range(count)]
    history = NaiveHistory(4)
    history.attach(text)
    assert found == naive_gather(history)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 1), min_size=60, max_size=160),
    st.integers(-1, 150),
    st.integers(0, 70),
    st.integers(-1, 150),
    st.integers(0, 70),
)
def test_candidates_stay_within_their_room(
    text: list[int], a: int, a_gap: int, b: int, b_gap: int
) -> None:
    pool = HistoryPool(1, 200, 2)
    pool.attach(0, text)
    state = np.zeros(features.NUM_STATE, dtype=np.int64)
    state[:6] = (min(a, len(text) - 1), a_gap, 4, min(b, len(text) - 1), b_gap, 4)
    rows = np.zeros((features.NUM_CANDIDATE_COLUMNS, features.MAX_CANDIDATES), dtype=np.int32)
    count = candidates.gather(view_of(pool), state, rows)
    assert count <= 3 * candidates.PER_KEY + 16 + 3 <= features.MAX_CANDIDATES
    sources = rows[features.SOURCE, :count]
    assert ((sources >= 0) & (sources < len(text))).all()
    if a >= 0 and a_gap == 0:
        assert state[features.A_NEXT] in sources


@pytest.mark.parametrize(
    ("function", "edges"),
    [
        (features.match_bucket, [0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 21, 33, 64]),
        (features.match_group, [0, 2, 4, 13]),
        (features.fine_match_group, [0, 2, 3, 5, 13]),
        (features.rank_bucket, [0, 1, 2, 4, 8, 16]),
        (features.echo_bucket, [0, 2, 3, 5, 9, 16]),
        (features.distance_bucket, [0, 32, 128, 512, 2048, 8192, 32768, 131072]),
        (features.position_bucket, [0, 1, 2, 3, 5, 8, 12, 17, 24, 33, 48]),
    ],
)
def test_buckets_begin_where_they_say(function: object, edges: list[int]) -> None:
    assert callable(function)
    assert [function(edge) for edge in edges] == list(range(len(edges)))
    assert [function(edge - 1) for edge in edges[1:]] == list(range(len(edges) - 1))


def test_the_echo_of_a_match() -> None:
    def echo(text: list[int], source: int) -> int:
        pool = HistoryPool(1, 200, 100)
        pool.attach(0, text)
        cells = pool.cells[0]
        match = 2
        return int(candidates.echo(cells, source - 1, cells, len(text) - 1, match))

    left = [10, 11, 12, 13, 14]
    assert echo([*left, 50, 1, 2, 90, *left, 51, 1, 2], 8) == 5
    assert echo([*left, 1, 2, 90, *left, 51, 1, 2], 7) == 5
    assert echo([*left, 50, 1, 2, 90, *left, 1, 2], 8) == 5
    assert echo([*left, 50, 50, 1, 2, 90, *left, 51, 1, 2], 9) == 0


def anchors(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    state = np.zeros(features.NUM_STATE, dtype=np.int64)
    state[: len(values)] = values
    return state


@pytest.mark.parametrize(
    ("state", "source", "place"),
    [
        (anchors(100, 0, 16, -1, 99), 100, 0),
        (anchors(100, 0, 4, -1, 99), 100, 1),
        (anchors(100, 0, 3, -1, 99), 100, 2),
        (anchors(100, 0, 3, -1, 99), 116, 5),
        (anchors(100, 0, 3, -1, 99), 117, 7),
        (anchors(100, 3, 9, -1, 99), 103, 3),
        (anchors(100, 3, 9, -1, 99), 100, 4),
        (anchors(100, 3, 9, -1, 99), 107, 4),
        (anchors(100, 3, 9, -1, 99), 108, 5),
        (anchors(100, 3, 9, -1, 99), 120, 7),
        (anchors(100, 3, 9, 300, 5), 321, 6),
        (anchors(100, 3, 9, 300, 5), 322, 7),
        (anchors(-1, 0, 0, -1, 99), 5, 7),
    ],
)
def test_places(state: np.ndarray[tuple[int], np.dtype[np.int64]], source: int, place: int) -> None:
    assert features.place(state, source) == place


def test_anchors_move() -> None:
    state = anchors(-1, 0, 0, -1, 1000, 0)
    features.hit(state, 10)
    assert state[:6].tolist() == [11, 0, 1, -1, 1, 0]
    for source in (11, 12, 13):
        features.hit(state, source)
    assert state[:3].tolist() == [14, 0, 4]
    features.miss(state)
    features.hit(state, 50)
    # A copy that ran for 4 tokens becomes the older anchor.
    assert state[:6].tolist() == [51, 0, 1, 14, 2, 4]
    features.miss(state)
    features.hit(state, 70)
    # One that ran for 1 does not.
    assert state[:6].tolist() == [71, 0, 1, 14, 4, 4]


@pytest.mark.parametrize(("row_cost", "rate"), [(0.0, 2.0), (0.03, 2.0), (0.6, 1.325), (2.0, 1.0)])
def test_a_new_tenant_starts_halfway_to_the_fastest(row_cost: float, rate: float) -> None:
    _, drafter = session_on([], cost=StepCost.linear(row_cost))
    model = drafter.models[0]
    started = model[features.RATE_TOKENS] / model[features.RATE_COST]
    assert started == pytest.approx(rate, abs=0.01)


def test_the_shipped_prior_is_read_and_kept() -> None:
    model = prior.shipped()
    assert model.shape == (features.MODEL_SIZE,)
    assert model[features.RATE_TOKENS] / model[features.RATE_COST] == 2
    with pytest.raises(ValueError, match="read-only"):
        model[0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other/2"}, "format copyahead-prior/1, not 'other/2'"),
        (
            {"rank": [[0.0] * 6] * 3},
            r"rank of the prior must be finite and of shape \(4, 6\)",
        ),
        ({"slope": float("nan")}, "table slope"),
    ],
)
def test_a_wrong_prior_is_refused(change: dict[str, object], message: str) -> None:
    tables = {"format": prior.FORMAT} | {
        name: np.zeros(shape).tolist() for name, (_, shape) in prior.SHAPES.items()
    }
    prior.model_of(tables)
    with pytest.raises(ConfigError, match=message):
        prior.model_of(tables | change)


def test_token_statistics_fill_their_tables() -> None:
    """Slots of one key and its neighbours are spread, and every table has its own."""
    first = np.uint64(1)
    slots = [features.slot_of(features.mixed(first, token)) for token in range(4096)]
    assert all(0 <= slot < 1 << features.TABLE_BITS for slot in slots)
    # 4096 keys at random leave 3,624 slots used, give or take 40.
    assert len(set(slots)) > 3400
    pairs = [features.slot_of(features.mixed(features.mixed(first, t), 7)) for t in range(4096)]
    assert len(set(pairs)) > 3400
    assert len(set(slots) & set(pairs)) < 1200
