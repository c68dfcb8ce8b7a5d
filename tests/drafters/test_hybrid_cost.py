"""What a draft model may cost: no request loses more than its credit, whatever is drafted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copyahead.config import HybridRule
from copyahead.contracts import DraftSession, Load, NextToken
from copyahead.drafters import HybridDrafter, HybridSession
from copyahead.drafters.priced import PricedDrafter
from copyahead.history.pool import HistoryPool
from copyahead.policies.registry import PricedKnobs
from copyahead.step_cost import StepCost
from copyahead.testing import Guess, ScriptedChainDrafter
from copyahead.types import Draft

VOCAB = 5000
RULES: tuple[HybridRule, ...] = ("priced", "agree", "longer", "first")
CREDIT, TRICKLE = 16.0, 0.005


class Clocked(ScriptedChainDrafter):
    """Adds up what its passes take, in seconds."""

    total = 0.0

    def extend(
        self, sessions: Sequence[DraftSession], chains: Sequence[Sequence[int]]
    ) -> list[NextToken | None]:
        rows = sum(self.num_rows(s, c) for s, c in zip(sessions, chains, strict=True))
        self.total += self.seconds(rows)
        return super().extend(sessions, chains)


def hybrid(
    other: ScriptedChainDrafter,
    rule: HybridRule,
    row_cost: float = 0.05,
    *,
    num_rows: int = 1,
    load: Load | None = None,
    threshold: float = 1.35,
) -> tuple[HybridDrafter, Load]:
    load = load or Load(step_cost=StepCost.linear(row_cost))
    pool = HistoryPool(num_rows, 30_000, VOCAB)
    copies = PricedDrafter(pool, load, knobs=PricedKnobs(threshold=threshold))
    return HybridDrafter(copies, other, rule, load), load


def guess_at_random(seed: int) -> Guess:
    def guess(text: tuple[int, ...]) -> NextToken | None:
        chance = random.Random(hash((seed, len(text), text[-3:])))
        if chance.random() < 0.05:
            return None
        return NextToken(chance.randrange(40), chance.random())

    return guess


Target = Callable[[int, Draft], tuple[int, int]]
"""By round and draft: how many drafted tokens it keeps, and the token that comes after them."""


def emitted_of(draft: Draft, kept: int, token: int) -> list[int]:
    kept = min(kept, len(draft))
    if kept < len(draft) and draft.tokens[kept] == token:
        token = (token + 1) % VOCAB
    return [*draft.tokens[:kept], token]


def run_alone(
    other: Clocked,
    rule: HybridRule,
    row_cost: float,
    prompt: list[int],
    target: Target,
    rounds: int,
) -> tuple[float, int, HybridSession]:
    """Cost in steps and tokens of a request, as somebody with a watch would see it."""
    drafter, load = hybrid(other, rule, row_cost)
    session = drafter.open(prompt, slot=0)
    cost, tokens = 0.0, 0
    for number in range(rounds):
        draft = session.propose(64)
        emitted = emitted_of(draft, *target(number, draft))
        session.settle(draft, emitted)
        drafter.check()
        cost += load.step_cost(1 + len(draft))
        tokens += len(emitted)
        worst = (1.0 + TRICKLE) * tokens + CREDIT
        assert cost + other.total / load.pass_seconds <= worst + 1e-6
    return cost + other.total / load.pass_seconds, tokens, session


def wrong(text: tuple[int, ...]) -> NextToken:
    return NextToken((text[-1] + 7) % 40, 0.95)


def reject(number: int, draft: Draft) -> tuple[int, int]:
    """A target that has seen the draft, and wants none of it."""
    return 0, (number * 31 + number // 7) % 40


def trust_then_reject(number: int, draft: Draft) -> tuple[int, int]:
    return (len(draft), number % 40) if number % 120 < 60 else reject(number, draft)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("target", [reject, trust_then_reject])
@pytest.mark.parametrize("price", [(0.02, 0.0), (0.3, 0.01), (3.0, 0.2)])
def test_no_adversary_costs_more_than_the_credit(
    rule: HybridRule, target: Target, price: tuple[float, float]
) -> None:
    other = Clocked(wrong, seconds_a_pass=price[0], seconds_a_row=price[1])
    run_alone(other, rule, 0.1, list(range(20)) * 3, target, 400)


texts = st.lists(st.integers(0, 39), min_size=1, max_size=60)
prices = st.floats(0.0, 6.0)


@given(
    rule=st.sampled_from(RULES),
    prompt=texts,
    seed=st.integers(0, 1000),
    prices=st.tuples(prices, st.floats(0.0, 0.5), st.floats(0.0, 1.0)),
    kept=st.lists(st.integers(0, 8), min_size=1, max_size=9),
)
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_the_credit_bounds_what_is_lost(
    rule: HybridRule,
    prompt: list[int],
    seed: int,
    prices: tuple[float, float, float],
    kept: list[int],
) -> None:
    check_one(rule, prompt, seed, prices, kept)


@pytest.mark.slow
@given(
    rule=st.sampled_from(RULES),
    prompt=texts,
    seed=st.integers(0, 1000),
    prices=st.tuples(prices, st.floats(0.0, 0.5), st.floats(0.0, 1.0)),
    kept=st.lists(st.integers(0, 8), min_size=1, max_size=9),
)
@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
def test_the_credit_bounds_what_is_lost_thoroughly(
    rule: HybridRule,
    prompt: list[int],
    seed: int,
    prices: tuple[float, float, float],
    kept: list[int],
) -> None:
    check_one(rule, prompt, seed, prices, kept)


def check_one(
    rule: HybridRule,
    prompt: list[int],
    seed: int,
    prices: tuple[float, float, float],
    kept: list[int],
) -> None:
    a_pass, a_row, row_cost = prices
    other = Clocked(guess_at_random(seed), seconds_a_pass=a_pass, seconds_a_row=a_row)
    run_alone(other, rule, row_cost, prompt, lambda n, _: (kept[n % len(kept)], seed * n % 40), 120)


@given(
    rule=st.sampled_from(RULES),
    seed=st.integers(0, 1000),
    prices=st.tuples(prices, st.floats(0.0, 0.5), st.floats(0.0, 1.0)),
    kept=st.lists(st.integers(0, 8), min_size=1, max_size=9),
    others=st.integers(0, 2),
)
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
def test_in_a_batch_everybody_waits_and_those_who_asked_pay(
    rule: HybridRule,
    seed: int,
    prices: tuple[float, float, float],
    kept: list[int],
    others: int,
) -> None:
    a_pass, a_row, row_cost = prices
    other = Clocked(guess_at_random(seed), seconds_a_pass=a_pass, seconds_a_row=a_row)
    count = 3
    cost = StepCost.linear(row_cost).shared(count, count + others)
    load = Load(active_requests=count + others, step_cost=cost, pass_seconds=0.7)
    drafter, _ = hybrid(other, rule, num_rows=count, load=load)
    prompts = [list(range(row, 20 * (row + 1))) for row in range(count)]
    prompts = [[token % 40 for token in prompt] for prompt in prompts]
    sessions = [drafter.open(prompt, slot=row) for row, prompt in enumerate(prompts)]
    costs, tokens, charged = [0.0] * count, [0] * count, 0.0
    for number in range(80):
        drafts = drafter.propose_batch(sessions, [16] * count)
        for row, (session, draft) in enumerate(zip(sessions, drafts, strict=True)):
            charged += session.spent
            costs[row] += session.spent + cost(1 + len(draft))
            emitted = emitted_of(draft, kept[(number + row) % len(kept)], seed * number % 40)
            session.settle(draft, emitted)
            tokens[row] += len(emitted)
            assert costs[row] <= (1.0 + TRICKLE) * tokens[row] + CREDIT + 1e-6
        drafter.check()
    # What they paid is what everybody waited.
    waited = (count + others) * other.total / load.pass_seconds
    assert charged == pytest.approx(waited)


def right_guess(text: tuple[int, ...]) -> NextToken:
    return NextToken(follower(text[-1], len(text)), 0.9)


def follower(token: int, place: int) -> int:
    """What a text goes on with that never repeats itself."""
    return random.Random(place * 100_003 + token).randrange(VOCAB)


def run_text(
    other: ScriptedChainDrafter, num_tokens: int, row_cost: float = 0.05, prompt_length: int = 5
) -> tuple[list[int], HybridSession, HybridDrafter]:
    """A request whose text is `follower`'s; how many passes each round took."""
    drafter, _ = hybrid(other, "priced", row_cost)
    text = [1]
    while len(text) < prompt_length + num_tokens:
        text.append(follower(text[-1], len(text)))
    session = drafter.open(text[:prompt_length], slot=0)
    passes, at = [], prompt_length
    while at < len(text) - 70:
        before = len(other.calls)
        draft = session.propose(64)
        passes.append(len(other.calls) - before)
        kept = 0
        while kept < len(draft) and draft.tokens[kept] == text[at + kept]:
            kept += 1
        session.settle(draft, text[at : at + kept + 1])
        at += kept + 1
    return passes, session, drafter


@pytest.mark.parametrize("a_pass", [0.1, 0.3, 0.8])
def test_a_drafter_that_is_always_wrong_is_left_alone_within_20_rounds(a_pass: float) -> None:
    other = ScriptedChainDrafter(wrong, seconds_a_pass=a_pass)
    passes, session, _ = run_text(other, 2000)
    assert sum(passes[:20]) > 0
    # Looks become rarer: after 16 rounds, 32, and so on.
    assert sum(passes[20:]) <= 16
    assert session.use.num_skips > 1900


def test_a_drafter_that_is_too_dear_is_not_asked_for_ever() -> None:
    other = ScriptedChainDrafter(right_guess, seconds_a_pass=1.5)
    passes, _, _ = run_text(other, 1000)
    assert sum(passes) <= 8


def test_a_drafter_that_is_right_is_used() -> None:
    other = ScriptedChainDrafter(right_guess, seconds_a_pass=0.05)
    passes, _, _ = run_text(other, 1000)
    assert sum(passes[-20:]) / 20 > 4


def test_a_drafter_that_becomes_right_is_found_again() -> None:
    def guess(text: tuple[int, ...]) -> NextToken:
        return right_guess(text) if len(text) > 1000 else wrong(text)

    other = ScriptedChainDrafter(guess, seconds_a_pass=0.1)
    passes, _, _ = run_text(other, 6000)
    assert sum(passes[-20:]) / 20 > 3


def test_a_prompt_is_read_when_what_was_missed_comes_to_its_price() -> None:
    other = ScriptedChainDrafter(right_guess, seconds_a_pass=0.05, seconds_a_row=0.01)
    passes, _, _ = run_text(other, 1000, prompt_length=400)
    first = next(number for number, count in enumerate(passes) if count)
    assert 1 <= first <= 30
    assert sum(passes[-20:]) / 20 > 4


def test_a_prompt_that_the_credit_cannot_pay_is_never_read() -> None:
    other = ScriptedChainDrafter(right_guess, seconds_a_pass=0.05, seconds_a_row=0.05)
    passes, _, _ = run_text(other, 1000, prompt_length=400)
    assert sum(passes) == 0
