"""Known faults: what drafts leave behind in the model's state and the drafter's.

Rows 11, 16, 36, 39, 48-51, 60, 62, 70.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from copyahead.contracts import Logits, Part, Query
from copyahead.drafters import LookupDrafter
from copyahead.engine import Completion, Engine, Request
from copyahead.history.pool import HistoryPool
from copyahead.policies import parse_policy
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ForcedDrafter, Plan, ToyLM, ToyTokenizer
from copyahead.types import Draft, FinishReason
from tests.engine.cases.models import RowLM, drafted_run, lookup_engine, pieces, repeating
from tests.toys import oracle, plain, run, same, scripted

A, B, C, SPACE, EN, D = 1, 2, 3, 4, 5, 6
POLICIES = ["hysteresis", "window", "single", "adaptive_k", "fixed"]


@pytest.mark.parametrize("length", range(1, 6))
def test_case_11_every_pattern_of_right_and_wrong(length: int) -> None:
    script = [A, B, C, A, B, C, A, B, C, A]
    request = Request(prompt=[D], max_tokens=10)
    for pattern in itertools.product([True, False], repeat=length):
        drafter = ForcedDrafter(
            {1: [token if right else 9 for token, right in zip(script[1:], pattern, strict=False)]}
        )
        got = Engine(scripted(*script), make_drafter=drafter).complete(request)
        assert got.choices[0].tokens == script
        accepted = pattern.index(False) if False in pattern else length
        assert got.stats.num_accepted_tokens == accepted
        draft, emitted = drafter.sessions[0].settled[1]
        assert len(draft) == length
        assert emitted == tuple(script[1 : accepted + 2])


@pytest.mark.parametrize("wrong", range(6))
@pytest.mark.parametrize("grammar", [None, "start: /[abc ]*/"])
def test_case_16_all_books_agree_after_a_rejection_anywhere(
    wrong: int, grammar: str | None
) -> None:
    request = Request(
        prompt=[A, B],
        max_tokens=200,
        sampling=SamplingOptions(temperature=1.1, seed=wrong),
        ignore_eos=grammar is None,
        grammar=grammar,
        logprobs=0,
    )

    def backend() -> FakeBackend:
        return FakeBackend(ToyLM(seed=8), max_rows=16)

    expected = plain(backend(), request)
    answer = expected.choices[0].tokens
    right = oracle(request.prompt, answer, wrong)

    def plan(history: tuple[int, ...]) -> list[int]:
        # As far as it goes right; then a token that is not the next one, then right again.
        start = right(history)
        after = answer[len(history) - 2 + len(start) :][:1]
        return [*start, (after[0] + 1) % 20 if after else 1, *answer[len(history) :][:2]]

    # `run` compares tokens, KV, slots, counters and the drafter's history after every step.
    got = run(backend(), [request], plan)[0]
    assert same(got, expected)
    assert grammar is not None or got.stats.rounds < got.stats.num_output_tokens or wrong == 0


@pytest.mark.parametrize("trial", range(10))
def test_case_36_a_running_request_drafts_as_a_new_one_with_its_history(trial: int) -> None:
    chance = random.Random(trial)
    pool = HistoryPool(2, 400, 9)
    drafter = LookupDrafter(pool, parse_policy("fixed:num_draft_tokens=5,shortest_key=1"))
    history = [chance.randrange(4) for _ in range(30)]
    running = drafter.open(history, slot=0)
    for _ in range(60):
        draft = running.propose(5)
        fresh = drafter.open(history, slot=1)
        assert fresh.propose(5).tokens == draft.tokens
        fresh.close()
        if chance.random() < 0.2 and len(history) > 10:
            cut = chance.randrange(5, len(history))
            running.truncate(cut)
            history = history[:cut]
            continue
        kept = chance.randrange(len(draft) + 1)
        emitted = [*draft.tokens[:kept], chance.randrange(4)]
        running.settle(draft, emitted)
        history += emitted
        if len(history) > 300:
            break


def check_counters(got: Completion) -> None:
    stats = got.stats
    emitted = sum(len(choice.tokens) for choice in got.choices)
    assert 0 <= stats.num_accepted_tokens <= stats.num_draft_tokens
    assert stats.num_output_tokens == emitted
    # The rounds that ended on an accepted token, one a choice at most, had no bonus token.
    assert 0 <= stats.num_accepted_tokens + stats.rounds - emitted <= len(got.choices)
    assert sum(stats.accepted_per_position) == stats.num_accepted_tokens
    assert stats.accepted_per_position == sorted(stats.accepted_per_position, reverse=True)
    by_source = stats.by_source.values()
    assert sum(count.num_draft_tokens for count in by_source) == stats.num_draft_tokens
    assert sum(count.num_accepted_tokens for count in by_source) == stats.num_accepted_tokens
    assert stats.plain_rounds <= stats.rounds
    assert (stats.prefill_seconds > 0) == (emitted > 0)
    assert math.isfinite(stats.acceptance_rate)
    assert math.isfinite(stats.tokens_per_round)
    copied = sum(sum(choice.copied) for choice in got.choices)
    assert copied == stats.num_accepted_tokens


@pytest.mark.parametrize("seed", range(12))
def test_case_39_counters_add_up(seed: int) -> None:
    chance = random.Random(seed)
    wanted = [
        Request(
            prompt=[A, B, C][: 1 + place % 3] * 3,
            max_tokens=chance.choice([0, 1, 7, 40]),
            stop=("ab",) if place % 2 else (),
            sampling=SamplingOptions(temperature=chance.choice([0.0, 0.8]), seed=place),
            n=1 + place % 2,
        )
        for place in range(5)
    ]

    def plan(history: tuple[int, ...]) -> Sequence[int]:
        return history[-chance.randrange(1, 7) :] if chance.random() < 0.7 else []

    backend = FakeBackend(ToyLM(seed=seed))
    engine = Engine(backend, make_drafter=ForcedDrafter(plan))
    done = engine.complete_all(wanted)
    for got in done:
        check_counters(got)
    for field in ("rounds", "num_draft_tokens", "num_accepted_tokens", "num_output_tokens"):
        assert getattr(engine.stats, field) == sum(getattr(got.stats, field) for got in done)


@pytest.mark.parametrize("place", range(6))
def test_case_39_a_stop_inside_a_block_counts_what_is_kept(place: int) -> None:
    script = [A, B, A, B, A, B, A, B]
    script[place] = C
    request = Request(prompt=[D], stop_token_ids=(C,))
    got = drafted_run(scripted(*script), request, {1: script[1:]})
    check_counters(got)
    assert got.stats.num_accepted_tokens == max(0, place)
    assert got.stats.num_draft_tokens == (7 if place else 0)


def test_case_39_no_drafts_is_a_rate_of_zero() -> None:
    stats = plain(scripted(A, B), Request(prompt=[D])).stats
    assert (stats.acceptance_rate, stats.num_draft_tokens) == (0.0, 0)
    assert stats.tokens_per_round == 1.0


@pytest.mark.parametrize("lengths", [(0, 3, 0, 7), (0, 0, 0, 0), (7, 0, 0, 1), (1, 1, 9, 0)])
@pytest.mark.parametrize("max_rows", [8, 128])
def test_case_48_and_50_drafts_of_different_lengths_in_one_batch(
    lengths: tuple[int, ...], max_rows: int
) -> None:
    wanted = [Request(prompt=[A, B, C, 1 + place], max_tokens=30) for place in range(4)]
    alone = [plain(FakeBackend(ToyLM(seed=6)), request) for request in wanted]
    sizes = {tuple(r.prompt): n for r, n in zip(wanted, lengths, strict=True)}
    answers = {tuple(r.prompt): a.choices[0].tokens for r, a in zip(wanted, alone, strict=True)}

    def plan(history: tuple[int, ...]) -> list[int]:
        key = history[:4]
        return answers[key][len(history) - 4 :][: sizes[key]]

    for arrivals in ([0, 0, 0, 0], [5, 0, 2, 9]):
        backend = FakeBackend(ToyLM(seed=6), max_rows=max_rows)
        got = run(backend, wanted, plan, arrivals=arrivals)
        for place in range(4):
            assert same(got[place], alone[place])
            # One empty draft never shortens another's.
            room = len(alone[place].choices[0].tokens) > 2
            assert (got[place].stats.num_accepted_tokens > 0) == (lengths[place] > 0 and room)


def test_case_49_an_empty_draft_is_a_plain_step_of_one_row() -> None:
    rows: list[list[int]] = []

    class Watched(FakeBackend):
        def forward(self, parts: Sequence[Part]) -> list[Logits]:
            rows.append([len(part.tokens) for part in parts])
            assert all(part.num_logits == len(part.tokens) for part in parts)
            return super().forward(parts)

    count = 500
    backend = Watched(ToyLM(script=[A, B] * 300), context_size=1000, num_slots=1)
    drafter = ForcedDrafter({count: [A, B, A]})
    got = Engine(backend, make_drafter=drafter).complete(Request(prompt=[D], max_tokens=600))
    assert rows[:count] == [[1]] * count
    assert rows[count] == [4]
    assert got.choices[0].tokens == ([A, B] * 300)[:600]
    emitted = [len(emitted) for _, emitted in drafter.sessions[0].settled]
    assert emitted[: count + 1] == [1] * count + [4]


@pytest.mark.parametrize(
    "policy", ["fixed", "hysteresis:min_match=2,min_match_running=2,max_draft_tokens=14"]
)
def test_case_50_every_slot_gets_the_drafts_it_would_get_alone(policy: str) -> None:
    texts = [[A, B, C], [B, D, 8, 9], [C, C, A, 9, 8], [9, A]]
    wanted = [Request(prompt=text * 6, max_tokens=40) for text in texts]

    def row(prefix: Sequence[int]) -> list[float]:
        # Whatever the slot: the token that followed the last two, when they came before.
        found = [prefix[i + 2] for i in range(len(prefix) - 2) if prefix[i : i + 2] == prefix[-2:]]
        return [8.0 if token == (found or [1])[0] else 0.0 for token in range(20)]

    def backend() -> FakeBackend:
        return FakeBackend(RowLM(row, 20), num_slots=4)

    solo = []
    for request in wanted:
        with lookup_engine(backend(), policy) as engine:
            solo.append(engine.complete(request))
    assert all(got.stats.num_accepted_tokens > 20 for got in solo)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        with lookup_engine(backend(), policy) as engine:
            together = engine.complete_all([wanted[place] for place in order])
        for place, got in zip(order, together, strict=True):
            assert same(got, solo[place])
            for field in ("rounds", "num_draft_tokens", "num_accepted_tokens"):
                assert getattr(got.stats, field) == getattr(solo[place].stats, field)


@pytest.mark.parametrize("num_requests", [1, 3])
def test_case_51_all_drafts_rejected_for_a_long_time(num_requests: int) -> None:
    wanted = [
        Request(prompt=[D, 1 + p], max_tokens=60, ignore_eos=True) for p in range(num_requests)
    ]
    got = run(FakeBackend(ToyLM(seed=4)), wanted, lambda h: [(h[-1] + 1) % 20 or 1] * 5)
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=4)), request))
        assert completion.stats.num_draft_tokens >= 50
    got = run(scripted(*[A] * 60), [Request(prompt=[D], max_tokens=60)], lambda h: [B, A, A])
    assert got[0].stats.num_accepted_tokens == 0
    assert got[0].stats.rounds == 60


TOOL_CALL = [8, 10, A, 10, 11, 10, B, 10, 9, 17] * 3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_case_60_the_text_does_not_depend_on_the_drafts(seed: int, temperature: float) -> None:
    request = Request(
        prompt=TOOL_CALL,
        max_tokens=60,
        ignore_eos=True,
        sampling=SamplingOptions(temperature=temperature, seed=seed),
    )

    def backend() -> FakeBackend:
        return FakeBackend(ToyLM(seed=seed, sharpness=2.0))

    expected = plain(backend(), request)
    specs = [
        *POLICIES,
        *(f"hysteresis:min_match={m},min_match_running={m}" for m in range(2, 9)),
        *(f"fixed:longest_key={k},shortest_key=1,num_draft_tokens=16" for k in range(1, 8)),
        *(f"window:key={k},min_match={k}" for k in range(1, 9)),
    ]
    drafted = 0
    for spec in specs:
        with lookup_engine(backend(), spec) as engine:
            got = engine.complete(request)
        assert same(got, expected)
        drafted += got.stats.num_draft_tokens
    assert drafted > 200
    chance = random.Random(seed)
    noise: Plan = lambda _: [chance.randrange(20) for _ in range(chance.randrange(20))]  # noqa: E731
    assert same(drafted_run(backend(), request, noise), expected)


@pytest.mark.parametrize("size", [1, 7, 20, 64])
def test_case_62_runs_and_periods_are_drafted_to_full_length(size: int) -> None:
    drafter = LookupDrafter(
        HistoryPool(1, 300, 20), parse_policy(f"fixed:num_draft_tokens={size},shortest_key=1")
    )
    session = drafter.open([7] * 50, slot=0)
    assert session.propose(size).tokens == (7,) * size
    session.close()
    session = drafter.open([A, B] * 20, slot=0)
    assert session.propose(size).tokens == tuple(([A, B] * 40)[:size])
    session.close()


def test_case_62_the_newest_place_that_goes_on_is_copied() -> None:
    pool = HistoryPool(1, 100, 20)
    pool.attach(0, [A, B, 8, C, A, B, 9, C, A, B])
    newest = pool.search(0, Query(keys=(2,), min_match=1, max_tokens=1, winner="newest"))
    furthest = pool.search(0, Query(keys=(2,), min_match=1, max_tokens=1, winner="furthest"))
    longest = pool.search(0, Query(keys=(2,), min_match=1, max_tokens=1, winner="longest"))
    assert (newest.tokens, furthest.tokens, longest.tokens) == ((9,), (8,), (9,))
    assert longest.match_length == 3
    # The newest place is followed by a barrier, so it has nothing to give.
    pool.attach(0, [A, B, 8, C, A, B, -1, C, A, B])
    draft = pool.search(0, Query(keys=(2,), min_match=1, max_tokens=1, winner="newest"))
    assert draft.tokens == (8,)


@pytest.mark.parametrize("policy", [*POLICIES, "fixed:longest_key=7,shortest_key=7"])
@pytest.mark.parametrize("num_prompt_tokens", [1, 2, 3, 6, 7, 8, 62, 63])
@pytest.mark.parametrize("ends", [(0,), ()])
def test_case_70_tiny_and_odd_prompts(
    policy: str, num_prompt_tokens: int, ends: tuple[int, ...]
) -> None:
    def backend() -> FakeBackend:
        tokenizer = ToyTokenizer(end_tokens=ends)
        return FakeBackend(ToyLM(seed=1), context_size=64, tokenizer=tokenizer)

    request = Request(prompt=[1 + i % 3 for i in range(num_prompt_tokens)])
    with lookup_engine(backend(), policy) as engine:
        got = engine.complete(request)
    assert same(got, plain(backend(), request))
    assert ends or got.choices[0].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("policy", POLICIES)
def test_case_70_no_match_drafts_nothing_rather_than_token_zero(policy: str) -> None:
    drafter = LookupDrafter(HistoryPool(1, 200, 200), parse_policy(policy))
    for prompt in ([], [5], list(range(100))):
        session = drafter.open(prompt, slot=0)
        assert session.propose(8) == Draft()
        session.close()
    backend = FakeBackend(ToyLM(script=list(range(30, 60)), vocab_size=100), tokenizer=pieces(100))
    with lookup_engine(backend, policy) as engine:
        assert engine.complete(Request(prompt=[1])).stats.num_draft_tokens == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_case_70_a_repeating_answer_without_an_end_runs_to_the_context(policy: str) -> None:
    backend = repeating([A, B, C], context_size=128)
    with lookup_engine(backend, policy) as engine:
        got = engine.complete(Request(prompt=[D]))
    assert got.choices[0].tokens == ([A, B, C] * 43)[:127]
    assert got.stats.num_accepted_tokens > 0
