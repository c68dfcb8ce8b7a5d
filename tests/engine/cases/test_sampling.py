"""Known faults: sampling at drafted rows (rows 7-10, 12, 14, 15, 21, 72, 73)."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from copyahead.acceptance import point_mass_rejection
from copyahead.backends.numpy_sampler import NumpySampler
from copyahead.engine import Request
from copyahead.errors import RequestError
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, Plan, ToyLM
from tests.engine.cases.models import RowLM, always, drafted_run, favourites, lookup_engine
from tests.toys import oracle, plain, run, same, scripted

A, B, C, D = 1, 2, 3, 6


def spoiled(right: Plan) -> Plan:
    return lambda history: [*right(history)[:2], A, A, A, A]


def endless(token: int, count: int) -> Plan:
    return lambda _history: [token] * count


@pytest.mark.parametrize("size", range(9))
def test_case_07_frequency_penalty_counts_every_accepted_token(size: int) -> None:
    # A leads B by 1.2, so at 0.5 a time three A's bring B in front.
    request = Request(prompt=[D], max_tokens=12, sampling=SamplingOptions(frequency_penalty=0.5))

    def backend() -> FakeBackend:
        return FakeBackend(always({1: 9.2, 2: 8.0}))

    got = drafted_run(backend(), request, endless(A, size))
    assert got.choices[0].tokens[:4] == [A, A, A, B]
    assert same(got, plain(backend(), request))


PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"presence_penalty": 0.9},
    {"frequency_penalty": 0.4},
    {"frequency_penalty": -0.4},
    {"dry_multiplier": 5.0},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "dry_multiplier": 0.5},
]


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_case_08_penalties_see_what_comes_before_a_row_and_nothing_else(
    penalty: dict[str, Any], temperature: float
) -> None:
    prompt = [A, B, C, A, B, C, A, B]

    def backend(seed: int) -> FakeBackend:
        return FakeBackend(ToyLM(seed=seed, vocab_size=8, sharpness=1.0))

    def request(**options: Any) -> Request:
        sampling = SamplingOptions(temperature=temperature, seed=4, **options)
        return Request(prompt=prompt, max_tokens=30, sampling=sampling)

    penalised, bare = request(**penalty), request()
    # Only models whose text the penalty changes say anything here.
    seeds = [
        s for s in range(40) if not same(plain(backend(s), bare), plain(backend(s), penalised))
    ]
    assert len(seeds) >= 3
    for seed in seeds[:3]:
        expected = plain(backend(seed), penalised)
        answer = expected.choices[0].tokens
        for size, wrong in itertools.product(range(7), [False, True]):
            right = oracle(prompt, answer, size)
            # Wrong drafts end in a run of A: rejected, it must leave no trace in any count.
            plan = spoiled(right) if wrong else right
            assert same(drafted_run(backend(seed), penalised, plan), expected)


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_case_09_a_barred_token_is_never_accepted(size: int) -> None:
    request = Request(
        prompt=[A] * 12, max_tokens=20, sampling=SamplingOptions(logit_bias={A: -100.0})
    )
    got = drafted_run(FakeBackend(always({1: 9.0, 2: 1.0})), request, endless(A, size))
    assert A not in got.choices[0].tokens
    assert got.stats.num_accepted_tokens == 0
    with lookup_engine(FakeBackend(always({1: 9.0, 2: 1.0})), "fixed") as engine:
        assert engine.complete(request).choices[0].tokens == got.choices[0].tokens


@pytest.mark.parametrize(
    "filters", [{"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.5}, {"typical_p": 0.4}], ids=str
)
def test_case_09_a_filtered_token_is_never_accepted(filters: dict[str, Any]) -> None:
    # A has about 0.7 and B 0.26 of the probability; each filter leaves A alone, and B is drafted.
    def backend() -> FakeBackend:
        model = always({1: 9.0, 2: 8.0})
        return FakeBackend(model, context_size=2100, num_slots=1)

    options = SamplingOptions(temperature=1.0, seed=1, **filters)
    request = Request(prompt=[D], max_tokens=2000, sampling=options)
    got = drafted_run(backend(), request, lambda h: [B, B] if len(h) % 2 else [])
    assert set(got.choices[0].tokens) == {A}
    assert got.stats.num_draft_tokens > 500
    assert got.stats.num_accepted_tokens == 0
    bare = Request(prompt=[D], max_tokens=400, sampling=SamplingOptions(temperature=1.0, seed=1))
    assert drafted_run(backend(), bare, endless(B, 2)).stats.num_accepted_tokens > 0


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_case_09_filters_come_before_temperature_at_every_row(temperature: float) -> None:
    # min_p 0.3 drops B (0.27 of A's probability) before a high temperature can lift it.
    options = SamplingOptions(temperature=temperature, min_p=0.3, seed=0)
    request = Request(prompt=[D], max_tokens=60, sampling=options)
    for size in (0, 3):
        got = drafted_run(FakeBackend(always({1: 9.3, 2: 8.0})), request, endless(B, size))
        assert set(got.choices[0].tokens) == {A}


@pytest.mark.parametrize("min_tokens", range(6))
@pytest.mark.parametrize("size", range(8))
@pytest.mark.parametrize("stop", ["eos", "id", "text"])
def test_case_10_min_tokens_counts_tokens_not_rounds(min_tokens: int, size: int, stop: str) -> None:
    if stop == "text":
        # The model writes "c" all the time, and every "c" would stop.
        request = Request(prompt=[D], min_tokens=min_tokens, max_tokens=12, stop=("c",))
        got = drafted_run(scripted(*[C] * 20), request, endless(C, size)).choices[0]
        first = max(1, min_tokens)
        assert got.tokens == [C] * first
        assert got.text == "c" * (first - 1)
        return
    end = 0 if stop == "eos" else C
    request = Request(
        prompt=[D], min_tokens=min_tokens, max_tokens=12, stop_token_ids=() if end == 0 else (C,)
    )
    # The end token is always the model's first choice, A its second.
    backend = FakeBackend(always({end: 9.0, A: 8.0}))
    for plan in (endless(A, size), endless(end, size), oracle([D], [A] * min_tokens + [end], size)):
        backend = FakeBackend(always({end: 9.0, A: 8.0}))
        got = drafted_run(backend, request, plan).choices[0]
        assert got.tokens == [A] * min_tokens + [end]


@pytest.mark.parametrize("drafted", [None, 0, 1, 2])
def test_case_12_a_draft_leaves_the_distribution_and_the_sample(drafted: int | None) -> None:
    probs = (0.5, 0.3, 0.2)
    count = 3000

    def backend() -> FakeBackend:
        row = favourites({t: math.log(p) + 60 for t, p in enumerate(probs, start=1)})
        return FakeBackend(RowLM(lambda _: row, 20), context_size=count + 1, num_slots=1)

    request = Request(
        prompt=[D], max_tokens=count, sampling=SamplingOptions(temperature=1.0, seed=9)
    )
    plan = endless(drafted + 1, 1) if drafted is not None else endless(0, 0)
    got = drafted_run(backend(), request, plan)
    assert same(got, plain(backend(), request))
    times = Counter(got.choices[0].tokens)
    for token, prob in enumerate(probs, start=1):
        assert abs(times[token] - count * prob) <= 3 * math.sqrt(count * prob * (1 - prob))


def test_case_12_rejection_leaves_the_probabilities_as_they_were() -> None:
    probs = np.array([0.5, 0.3, 0.2])
    probs.setflags(write=False)
    draws = np.random.default_rng(1)
    count = 20_000
    for drafted in range(3):
        times = Counter(point_mass_rejection(drafted, probs, draws.random) for _ in range(count))
        for token, prob in enumerate(probs):
            assert abs(times[token] - count * prob) <= 4 * math.sqrt(count * prob * (1 - prob))


@pytest.mark.parametrize("size", [0, 1, 4, 16])
def test_case_14_a_seeded_answer_depends_on_its_own_request_only(size: int) -> None:
    def request(place: int) -> Request:
        seed = place if place % 2 else None
        return Request(
            prompt=[A, B, 1 + place % 4],
            max_tokens=25,
            sampling=SamplingOptions(temperature=1.2, top_p=0.9, seed=seed),
        )

    wanted = [request(place) for place in range(8)]
    alone = [plain(FakeBackend(ToyLM(seed=7)), r) for r in wanted]
    assert len({tuple(c.choices[0].tokens) for c in alone}) > 4
    for shuffle in range(3):
        order = list(range(8))
        random.Random(shuffle).shuffle(order)
        got = run(
            FakeBackend(ToyLM(seed=7), num_slots=8),
            [wanted[place] for place in order],
            lambda history: history[-size - 2 : -2] if size else [],
            arrivals=[3 * place % 7 for place in range(8)],
        )
        for place, completion in zip(order, got, strict=True):
            if wanted[place].sampling.seed is not None:
                assert same(completion, alone[place])


@pytest.mark.parametrize("size", range(7))
def test_case_15_every_emitted_token_takes_one_draw_and_rejected_ones_none(size: int) -> None:
    class Counting(NumpySampler):
        draws = 0

        def sample(self, logits: Any) -> int:
            type(self).draws += 1
            return super().sample(logits)

    class Backend(FakeBackend):
        def sampler(self, options: SamplingOptions, prompt: Sequence[int]) -> Any:
            return Counting(options, prompt)

    options = SamplingOptions(temperature=0.8, seed=11)
    request = Request(prompt=[A, B], sampling=options, stop=("c", " "), n=3)
    expected = plain(FakeBackend(ToyLM(seed=1)), request)
    answer = expected.choices[0].tokens
    backend = Backend(ToyLM(seed=1))
    with lookup_engine(backend, f"fixed:num_draft_tokens={max(size, 1)}") as engine:
        assert same(engine.complete(request), expected)
    assert Counting.draws == sum(len(choice.tokens) for choice in expected.choices)
    # A stop inside a block, then the next request in the same slot.
    first = FakeBackend(ToyLM(seed=1), num_slots=1)
    both = run(first, [request, request], oracle([A, B], answer, size))
    assert same(both[0], expected)
    assert same(both[1], expected)


LOGPROB_OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 2},
    {"temperature": 1.5, "top_k": 3, "seed": 2},
    {"frequency_penalty": 0.8, "repetition_penalty": 1.2},
    {"logit_bias": {A: 2.0, B: -100.0}},
]


@pytest.mark.parametrize("options", LOGPROB_OPTIONS, ids=str)
@pytest.mark.parametrize("size", [0, 1, 4, 9])
@pytest.mark.parametrize("wrong", [False, True])
def test_case_21_logprobs_are_the_models_own_at_every_row(
    options: dict[str, Any], size: int, wrong: bool
) -> None:
    model = ToyLM(seed=5)
    prompt = [A, B, C]
    request = Request(prompt=prompt, max_tokens=20, logprobs=4, sampling=SamplingOptions(**options))
    answer = plain(FakeBackend(model), request).choices[0].tokens
    right = oracle(prompt, answer, size)
    plan = spoiled(right) if wrong else right
    got = drafted_run(FakeBackend(model), request, plan).choices[0]
    assert len(got.logprobs) == len(got.tokens)
    assert size == 0 or any(got.copied)
    for place, entry in enumerate(got.logprobs):
        row = model.logits([*prompt, *got.tokens[:place]]).astype(np.float64)
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert entry.token == got.tokens[place]
        assert entry.logprob == pytest.approx(expected[entry.token], abs=1e-5)
        best = np.argsort(-expected, kind="stable")[:4]
        assert [token for token, _ in entry.top] == best.tolist()
        assert [p for _, p in entry.top] == pytest.approx(expected[best], abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_case_21_equal_logprobs_are_reported_in_the_order_of_their_ids(seed: int) -> None:
    chance = random.Random(seed)
    row = [float(chance.randrange(3)) for _ in range(20)]
    request = Request(prompt=[A], max_tokens=1, logprobs=20)
    (entry,) = plain(FakeBackend(RowLM(lambda _: row, 20)), request).choices[0].logprobs
    assert [token for token, _ in entry.top] == sorted(range(20), key=lambda t: (-row[t], t))


def test_case_21_more_logprobs_than_tokens_gives_all_of_them() -> None:
    model = RowLM(lambda _: [0.0, 2.0, 1.0], 3)
    request = Request(prompt=[A], max_tokens=1, logprobs=20)
    entry = plain(FakeBackend(model), request).choices[0].logprobs[0]
    assert [token for token, _ in entry.top] == [1, 2, 0]


NUMBERS = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "seed",
]
BELOW_OR_ZERO = {"top_p": 0.0, "typical_p": 0.0, "repetition_penalty": 0.0, "dry_base": 0.9}


@pytest.mark.parametrize("field", NUMBERS)
def test_case_72_a_wrong_number_is_refused_by_name(field: str) -> None:
    low = BELOW_OR_ZERO.get(field, -2.5 if "presence" in field or "frequency" in field else -1)
    wrong = [low, 2**40, math.nan, math.inf, -math.inf, "0.5", "", True, False, [], {}, 1j]
    for value in [*wrong, *([] if field == "seed" else [None])]:
        options: Any = {field: value}
        with pytest.raises(RequestError, match=field) as caught:
            SamplingOptions(**options)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("bias", "field"),
    [
        (None, "logit_bias"),
        ([1, 2], "logit_bias"),
        ("A", "logit_bias"),
        ({"1": 1.0}, "logit_bias"),
        ({True: 1.0}, "logit_bias"),
        ({1.5: 1.0}, "logit_bias"),
        ({1: math.nan}, "logit_bias[1]"),
        ({1: math.inf}, "logit_bias[1]"),
        ({1: 101.0}, "logit_bias[1]"),
        ({1: -100.5}, "logit_bias[1]"),
        ({1: "2"}, "logit_bias[1]"),
        ({1: True}, "logit_bias[1]"),
    ],
)
def test_case_72_a_wrong_logit_bias_is_refused_by_name(bias: Any, field: str) -> None:
    with pytest.raises(RequestError, match="logit_bias") as caught:
        SamplingOptions(logit_bias=bias)
    assert caught.value.field == field


@pytest.mark.parametrize("token", [-1, 20, 10**12])
def test_case_72_a_logit_bias_for_no_token_is_refused(token: int) -> None:
    request = Request(prompt=[A], sampling=SamplingOptions(logit_bias={token: 1.0}))
    with lookup_engine(FakeBackend()) as engine, pytest.raises(RequestError) as caught:
        engine.complete(request)
    assert caught.value.field == "logit_bias"


@pytest.mark.parametrize("seed", range(4))
def test_case_73_zero_tiny_and_top_k_one_are_the_same_greedy(seed: int) -> None:
    prompt = [A, B, C, D] * 4
    kinds = [
        SamplingOptions(temperature=0.0),
        SamplingOptions(temperature=0.0, top_p=0.5, min_p=0.2),
        SamplingOptions(temperature=1e-6, seed=seed),
        SamplingOptions(temperature=1.0, top_k=1, seed=seed),
        SamplingOptions(temperature=2.0, top_k=1, top_p=0.3, seed=seed),
    ]
    expected = None
    for sampling in kinds:
        request = Request(prompt=prompt, max_tokens=40, sampling=sampling, ignore_eos=True)
        with lookup_engine(FakeBackend(ToyLM(seed=seed)), "fixed") as engine:
            got = engine.complete(request)
        expected = expected or got.choices[0].tokens
        assert got.choices[0].tokens == expected
        assert got.stats.num_accepted_tokens > 0, "copies must be accepted at every setting"


@pytest.mark.parametrize("seed", [5, 2**32 - 2])
def test_each_choice_has_the_seed_after_that_of_the_one_before(seed: int) -> None:
    def request(seed: int, n: int) -> Request:
        sampling = SamplingOptions(temperature=1.0, seed=seed)
        return Request(prompt=[A, B], max_tokens=30, sampling=sampling, n=n)

    got = plain(FakeBackend(ToyLM(seed=3)), request(seed, 3))
    alone = [plain(FakeBackend(ToyLM(seed=3)), request((seed + i) % 2**32, 1)) for i in range(3)]
    assert [c.tokens for c in got.choices] == [one.choices[0].tokens for one in alone]
    assert len({tuple(c.tokens) for c in got.choices}) == 3
