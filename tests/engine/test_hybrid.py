"""An engine with copies beside a draft model: the text, its distribution, its faults, its books."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copyahead.backends.numpy_sampler import NumpySampler
from copyahead.config import HybridRule
from copyahead.contracts import DraftSession, Load, NextToken
from copyahead.drafters import HybridDrafter
from copyahead.drafters.factory import make_drafter
from copyahead.engine import Engine, Request
from copyahead.history.pool import HistoryPool
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, Guess, ScriptedChainDrafter, ToyLM, noisy
from copyahead.types import Source

RULES: tuple[HybridRule, ...] = ("priced", "agree", "longer", "first")
POLICY: dict[str, str] = {
    "priced": "priced",
    "agree": "hysteresis:min_match=2,min_match_running=2",
    "longer": "window:key=2,min_match=2",
    "first": "single",
}
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.3},
    {"temperature": 1.0, "top_k": 5},
    {"temperature": 1.7, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05},
]


def engine_with(
    backend: FakeBackend, other: ScriptedChainDrafter, rule: HybridRule, policy: str | None = None
) -> Engine:
    pool = HistoryPool(backend.capabilities.num_slots, 600, backend.tokenizer.vocab_size)

    def make(name: str, load: Load) -> HybridDrafter:
        copies: Any = make_drafter(name, pool, load)
        return HybridDrafter(copies, other, rule, load)

    return Engine(backend, make_drafter=make, policy=policy or POLICY[rule])


def drawn_from(model: ToyLM, seed: int = 0, temperature: float = 1.0) -> Guess:
    """Tokens that are drawn from what `model` says."""
    random = np.random.default_rng(seed)

    def guess(text: tuple[int, ...]) -> NextToken:
        sampler = NumpySampler(SamplingOptions(temperature=temperature), [])
        probs = sampler.target_probs(model.logits(text))
        token = int(random.choice(len(probs), p=probs))
        return NextToken(token, float(probs[token]), probs.astype(np.float32))

    return guess


def texts(engine: Engine, requests: Sequence[Request]) -> list[list[int]]:
    return [list(done.choices[0].tokens) for done in engine.complete_all(list(requests))]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("options", [{}, *OPTIONS], ids=str)
@pytest.mark.parametrize("accuracy", [0.0, 0.6, 1.0])
def test_greedy_drafts_leave_the_sample_as_it_is(
    rule: HybridRule, options: dict[str, Any], accuracy: float
) -> None:
    sampling = SamplingOptions(seed=3, **options)
    requests = [
        Request(prompt=[1 + row, 2, 3], max_tokens=40, sampling=sampling, ignore_eos=True)
        for row in range(3)
    ]
    with Engine(FakeBackend(ToyLM(seed=7))) as plain:
        expected = texts(plain, requests)
    other = ScriptedChainDrafter(noisy(ToyLM(seed=7), accuracy), max_chain=4)
    with engine_with(FakeBackend(ToyLM(seed=7)), other, rule) as engine:
        assert texts(engine, requests) == expected
        assert engine.stats.num_model_passes > 0
        assert engine.stats.num_draft_tokens > 0
        assert engine.stats.drafter_faults == 0
        engine.check()


@given(
    rule=st.sampled_from(RULES),
    seed=st.integers(0, 99),
    accuracy=st.floats(0.0, 1.0),
    cancelled=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=3),
    lengths=st.lists(st.integers(1, 40), min_size=4, max_size=4),
    drawn=st.booleans(),
)
@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
def test_requests_beside_each_other_and_cancelled_ones(
    rule: HybridRule,
    seed: int,
    accuracy: float,
    cancelled: list[tuple[int, int]],
    lengths: list[int],
    drawn: bool,
) -> None:
    sampling = SamplingOptions(temperature=0.8, seed=seed)
    requests = [
        Request(prompt=[1 + row, 2, 1 + row, 2], max_tokens=n, sampling=sampling, ignore_eos=True)
        for row, n in enumerate(lengths)
    ]
    model = ToyLM(seed=seed)
    guess = drawn_from(model, seed) if drawn else noisy(model, accuracy, seed)
    other = ScriptedChainDrafter(guess, max_chain=5)
    backend = FakeBackend(model, num_slots=3)
    with engine_with(backend, other, rule) as engine:
        found: list[list[int]] = [[] for _ in requests]
        handles = [
            engine.submit(r, lambda chunk, row=row: found[row].extend(chunk.tokens))  # type: ignore[misc]
            for row, r in enumerate(requests)
        ]
        ended: set[int] = set()
        for step in itertools.count():
            for when, row in cancelled:
                if when == step and not handles[row].done:
                    engine.cancel(handles[row])
                    ended.add(row)
            if not engine.step():
                break
            engine.check()
        assert all(count == 0 for count in engine.held.values())
        assert engine.stats.drafter_faults == 0
    with Engine(FakeBackend(model)) as plain:
        expected = texts(plain, requests)
    for row, tokens in enumerate(found):
        if drawn:
            assert len(tokens) == lengths[row] or row in ended
        else:
            assert tokens == expected[row][: len(tokens)]
            assert row in ended or tokens == expected[row]


def exact(
    model: ToyLM, prompt: list[int], options: SamplingOptions, length: int
) -> dict[Any, float]:
    """The probability of every text of a length."""
    found = {(): 1.0}
    for _ in range(length):
        longer: dict[Any, float] = {}
        for text, share in found.items():
            sampler = NumpySampler(options, [])
            probs = sampler.target_probs(model.logits([*prompt, *text]))
            for token in np.flatnonzero(probs):
                longer[(*text, int(token))] = share * float(probs[token])
        found = longer
    return found


def distance(found: Counter[Any], expected: dict[Any, float]) -> float:
    """Pearson's, in standard deviations of a chi-square; rare texts are put together."""
    total = found.total()
    likely = {text: p for text, p in expected.items() if p * total >= 5}
    rest = max(1.0 - sum(likely.values()), 0.0)
    cells = [(found[text], p * total) for text, p in likely.items()]
    if rest * total >= 1:
        cells.append((total - sum(count for count, _ in cells), rest * total))
    assert set(found) <= {text for text, p in expected.items() if p > 0}
    freedom = max(1, len(cells) - 1)
    square = sum((count - wanted) ** 2 / wanted for count, wanted in cells)
    return float((square - freedom) / np.sqrt(2 * freedom))


def sample_texts(
    rule: HybridRule, options: dict[str, Any], count: int, policy: str | None = None
) -> tuple[Counter[Any], dict[Any, float], Engine]:
    # Two tokens, so that there is nearly always a copy, and it often agrees with what is drawn.
    # `first` asks where there is none.
    size, length, prompt = (5, 4, [1, 2, 3, 4]) if rule == "first" else (2, 6, [0, 1, 1, 0, 0, 1])
    model = ToyLM(seed=11, vocab_size=size, sharpness=1.0)
    draws = drawn_from(ToyLM(seed=12, vocab_size=size, sharpness=1.0), 5)
    other = ScriptedChainDrafter(draws, max_chain=3)
    found: Counter[Any] = Counter()
    with engine_with(FakeBackend(model, num_slots=8), other, rule, policy) as engine:
        for start in range(0, count, 8):
            requests = [
                Request(
                    prompt=prompt,
                    max_tokens=length,
                    ignore_eos=True,
                    sampling=SamplingOptions(seed=start + row, **options),
                )
                for row in range(8)
            ]
            found.update(tuple(text) for text in texts(engine, requests))
        assert engine.stats.by_source[Source.MODEL].num_accepted_tokens > 0
    return found, exact(model, prompt, SamplingOptions(**options), length), engine


@pytest.mark.parametrize("rule", RULES)
def test_drawn_drafts_keep_the_distribution(rule: HybridRule) -> None:
    found, expected, _ = sample_texts(rule, {"temperature": 1.0}, 1200)
    assert distance(found, expected) < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_drawn_drafts_keep_the_distribution_under_every_option(
    rule: HybridRule, options: dict[str, Any]
) -> None:
    found, expected, _ = sample_texts(rule, options, 2400)
    assert distance(found, expected) < 4.0


def test_drawn_drafts_under_a_grammar_keep_its_distribution() -> None:
    pytest.importorskip("llguidance")
    model = ToyLM(seed=11, sharpness=1.0)
    other = ScriptedChainDrafter(drawn_from(ToyLM(seed=12, sharpness=1.0)), max_chain=3)
    found: Counter[Any] = Counter()
    with engine_with(FakeBackend(model, num_slots=8), other, "first") as engine:
        for seed in range(150):
            requests = [
                Request(
                    prompt=[1, 2],
                    grammar='start: ("a" | "b" | "c" | ",")+',
                    max_tokens=3,
                    sampling=SamplingOptions(temperature=1.0, seed=8 * seed + row),
                )
                for row in range(8)
            ]
            found.update(tuple(text) for text in texts(engine, requests))
    legal = [1, 2, 3, 18, 0]
    expected: dict[Any, float] = {(): 1.0}
    for _ in range(3):
        longer: dict[Any, float] = {}
        for text, share in expected.items():
            if text and text[-1] == 0:
                longer[text] = share
                continue
            row = np.exp(model.logits([1, 2, *text]).astype(np.float64))
            allowed = [t for t in legal if t != 0 or text]
            total = sum(row[t] for t in allowed)
            for token in allowed:
                longer[(*text, token)] = share * row[token] / total
        expected = longer
    assert distance(found, expected) < 4.0


class Faulty(ScriptedChainDrafter):
    """Fails for one of its slots."""

    bad_slot = 1

    def extend(
        self, sessions: Sequence[DraftSession], chains: Sequence[Sequence[int]]
    ) -> list[NextToken | None]:
        if any(session.slot == self.bad_slot for session in sessions):  # type: ignore[attr-defined]
            raise RuntimeError("the draft model broke")
        return super().extend(sessions, chains)


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_model_that_fails_for_one_request_drafts_for_the_others(rule: HybridRule) -> None:
    requests = [Request(prompt=[1 + row, 2], max_tokens=20, ignore_eos=True) for row in range(3)]
    with Engine(FakeBackend(ToyLM(seed=7))) as plain:
        expected = texts(plain, requests)
    other = Faulty(noisy(ToyLM(seed=7), 0.9), max_chain=4)
    with engine_with(FakeBackend(ToyLM(seed=7)), other, rule) as engine:
        done = engine.complete_all(requests)
        engine.check()
    assert [list(completion.choices[0].tokens) for completion in done] == expected
    faults = [completion.stats.drafter_faults for completion in done]
    assert faults[1] > 0
    assert faults[0] == faults[2] == 0
    assert done[0].stats.by_source[Source.MODEL].num_accepted_tokens > 0


def test_what_the_draft_model_did_is_counted() -> None:
    other = ScriptedChainDrafter(noisy(ToyLM(seed=7), 0.8), max_chain=4)
    with engine_with(FakeBackend(ToyLM(seed=7)), other, "priced") as engine:
        done = engine.complete(Request(prompt=[1, 2, 3], max_tokens=100, ignore_eos=True))
    stats = done.stats
    assert stats.num_model_passes == len(other.calls) > 0
    assert 0 < stats.num_agreed <= stats.num_compared
    assert stats.model_seconds > 0.0
    assert stats.num_model_skips > 0
    counted = sum(count.num_draft_tokens for count in stats.by_source.values())
    assert counted == stats.num_draft_tokens
    kept = sum(count.num_accepted_tokens for count in stats.by_source.values())
    assert kept == stats.num_accepted_tokens
    assert set(stats.by_source) >= {Source.MODEL, Source.OUTPUT}


@pytest.mark.parametrize("rule", RULES)
def test_choices_forks_and_requests_that_give_their_place_up(rule: HybridRule) -> None:
    requests = [
        Request(
            prompt=[1 + row, 2, 3] * 4,
            n=2,
            max_tokens=30,
            ignore_eos=True,
            sampling=SamplingOptions(temperature=0.5, seed=row),
        )
        for row in range(2)
    ]

    def tight() -> FakeBackend:
        return FakeBackend(ToyLM(seed=7), num_slots=4, context_size=64, num_cells=110)

    with Engine(FakeBackend(ToyLM(seed=7))) as plain:
        expected = [[c.tokens for c in done.choices] for done in plain.complete_all(requests)]
    other = ScriptedChainDrafter(noisy(ToyLM(seed=7), 0.7), max_chain=4)
    with engine_with(tight(), other, rule) as engine:
        found = [[c.tokens for c in done.choices] for done in engine.complete_all(requests)]
        engine.check()
        assert engine.stats.preemptions > 0
        assert engine.stats.num_model_passes > 0
    assert found == expected
    assert all(session.closed for session in other.sessions)
