"""Known faults: slots, cells and what outlives a request.

Rows 27-32, 40, 45, 46, 65, 93, 94.
"""

from __future__ import annotations

import gc
import logging
import random
import tracemalloc
from collections.abc import Sequence

import pytest

from copyahead.contracts import Logits, Part, Query
from copyahead.drafters import LookupDrafter
from copyahead.engine import Completion, Engine, Request
from copyahead.engine.scheduler import EngineOptions
from copyahead.history.pool import HistoryPool
from copyahead.policies import parse_policy
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM
from copyahead.types import FinishReason
from tests.engine.cases.models import drafted_run, lookup_engine, repeating
from tests.toys import oracle, plain, run, same, scripted

A, B, C, SPACE, EN, D = 1, 2, 3, 4, 5, 6
FIXED = "fixed:num_draft_tokens=16,shortest_key=1"


@pytest.mark.parametrize("num_prompt_tokens", range(50, 64))
@pytest.mark.parametrize("size", [1, 16, 64])
def test_case_27_and_28_drafts_fit_what_is_left_of_the_context(
    num_prompt_tokens: int, size: int
) -> None:
    def backend() -> FakeBackend:
        return FakeBackend(
            ToyLM(script=[A, B] * 64, num_prompt_tokens=num_prompt_tokens),
            context_size=64,
            num_slots=2,
            num_cells=128,
        )

    longest: list[int] = []

    class Watched(FakeBackend):
        def forward(self, parts: Sequence[Part]) -> list[Logits]:
            for part in parts:
                longest.append(part.start + len(part.tokens))
            return super().forward(parts)

    prompt = [A, B] * 32
    request = Request(prompt=prompt[:num_prompt_tokens])
    watched = Watched(backend().model, context_size=64, num_slots=2, num_cells=128)
    got = drafted_run(watched, request, lambda h: ([A, B] * 64)[:size])
    assert same(got, plain(backend(), request))
    assert got.choices[0].finish_reason is FinishReason.LENGTH
    assert len(got.choices[0].tokens) == 64 - num_prompt_tokens
    assert max(longest) <= 64
    assert got.stats.retries == 0


@pytest.mark.parametrize("size", [1, 8, 64])
def test_case_28_a_neighbour_of_a_full_context_goes_on(size: int) -> None:
    full = [Request(prompt=[A, B] * 45 + [A] * extra) for extra in (0, 5, 9)]
    free = Request(prompt=[D, C], max_tokens=40)
    backend = FakeBackend(ToyLM(seed=1), context_size=100, num_slots=4)
    got = run(backend, [*full, free], lambda h: [*h[-7:], *h[:60]][:size])
    for request, completion in zip([*full, free], got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=1), context_size=100), request))


def naive(tokens: list[int], size: int) -> tuple[int, ...]:
    """The longest match of the last token, the newest of several, copied into its own end."""
    best: tuple[int, int] | None = None
    for end in range(len(tokens) - 1):
        match = 0
        while match <= end and match < 64 and tokens[end - match] == tokens[-1 - match]:
            match += 1
        if match and (best is None or match >= best[0]):
            best = (match, end + 1)
    if best is None:
        return ()
    grown = list(tokens)
    for place in range(best[1], best[1] + size):
        grown.append(grown[place])
    return tuple(grown[len(tokens) :])


@pytest.mark.parametrize("trial", range(8))
def test_case_29_a_history_that_got_shorter(trial: int) -> None:
    chance = random.Random(trial)
    query = Query(keys=(1,), min_match=1, max_tokens=4, max_candidates=400)
    pool = HistoryPool(1, 400, 9)
    tokens = [chance.randrange(3 + trial % 3) for _ in range(200)]
    pool.attach(0, tokens)
    pool.truncate(0, 120)
    tokens = tokens[:120]
    for _ in range(60):
        assert pool.search(0, query).tokens == naive(tokens, 4)
        if chance.random() < 0.3:
            tokens = tokens[: chance.randrange(len(tokens) + 1)]
            pool.truncate(0, len(tokens))
            pool.truncate(0, len(tokens))
        else:
            more = [chance.randrange(3) for _ in range(chance.randrange(1, 12))][
                : 400 - len(tokens)
            ]
            tokens += more
            pool.extend(0, more)
        assert pool.tokens(0) == tokens


def test_case_30_a_slot_keeps_nothing_of_the_last_request() -> None:
    first = Request(prompt=[A, B, C, 8, 9, 10, 11, 12] * 8, max_tokens=20)
    # Ends in what only the first prompt went on from; the second repeats itself.
    alone = Request(prompt=[D, 8, 9], max_tokens=1)
    repeats = Request(prompt=[D, C, D, C, D], max_tokens=12)
    model = ToyLM(script=[C, D] * 40, num_prompt_tokens=5)
    with lookup_engine(FakeBackend(ToyLM(seed=1), num_slots=1), FIXED) as engine:
        engine.complete(first)
        assert engine.complete(alone).stats.num_draft_tokens == 0
        drafter = engine._drafting.drafter(None)
        assert drafter is not None
        session = drafter.open([D, 8, 9], slot=0)
        assert session.propose(16).tokens == ()
        session.close()
    with lookup_engine(FakeBackend(model, num_slots=1), FIXED) as engine:
        engine.complete(first)
        used = engine.complete(repeats)
    with lookup_engine(FakeBackend(model, num_slots=1), FIXED) as engine:
        fresh = engine.complete(repeats)
    assert same(used, fresh)
    assert used.stats.num_accepted_tokens == fresh.stats.num_accepted_tokens > 0


def telemetry(got: Completion) -> tuple[int, ...]:
    stats = got.stats
    return (stats.rounds, stats.num_draft_tokens, stats.num_accepted_tokens, stats.longest_match)


@pytest.mark.parametrize(
    "policy",
    [
        "window:min_match=4,max_requests=16,batch_max_draft_tokens=8",
        "adaptive_k",
        "hysteresis:min_match=4",
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_case_31_and_32_one_requests_bad_luck_is_its_own(policy: str, together: bool) -> None:
    # The bad one repeats its prompt's beginning, and the model always goes on differently.
    bad = Request(prompt=[A, B, C, 8, 9, 10] * 12, max_tokens=40)
    good = Request(prompt=[D, C, EN, SPACE] * 6, max_tokens=48)

    class Model(ToyLM):
        def logits(self, prefix: Sequence[int]) -> Logits:
            row = super().logits(prefix[:2]) * 0
            ahead = (
                prefix[len(prefix) % 4]
                if prefix[0] == D
                else [7, 8, 9, 10, 8, 11, 9][len(prefix) % 7]
            )
            row[ahead] = 9.0
            return row

    with lookup_engine(FakeBackend(Model()), policy) as engine:
        alone = engine.complete(good)
    assert alone.stats.acceptance_rate > 0.9
    with lookup_engine(FakeBackend(Model()), policy) as engine:
        if together:
            got = engine.complete_all([bad, good])[1]
        else:
            for _ in range(5):
                engine.complete(bad)
            got = engine.complete(good)
    assert same(got, alone)
    if not together:
        assert telemetry(got) == telemetry(alone)
    else:
        assert got.stats.acceptance_rate > 0.9


@pytest.mark.parametrize("policy", ["window", "adaptive_k", "hysteresis"])
def test_case_31_a_new_request_starts_from_the_start(policy: str) -> None:
    drafter = LookupDrafter(HistoryPool(2, 300, 20), parse_policy(policy))
    text = [A, B, C, D, EN, 8, 9, 10, 11, 12, 13, 14, 15] * 4
    first = drafter.open(text, slot=0)
    expected = first.propose(60)
    for _ in range(6):
        draft = first.propose(60)
        first.settle(draft, [19])
        first.truncate(len(text))
    second = drafter.open(text, slot=1)
    assert second.propose(60).tokens == expected.tokens != ()


def test_case_32_a_reset_leaves_the_current_prompt_searchable() -> None:
    with lookup_engine(repeating([A, B, C]), FIXED) as engine:
        before = engine.complete(Request(prompt=[D], max_tokens=30))
        handle = engine.submit(Request(prompt=[D], max_tokens=30), lambda _: None)
        with pytest.raises(RuntimeError):
            engine.reset()
        engine.cancel(handle)
        engine.reset()
        after = engine.complete(Request(prompt=[D], max_tokens=30))
    assert same(after, before)
    assert telemetry(after) == telemetry(before)
    assert after.stats.num_cached_tokens == 0


@pytest.mark.parametrize("place", range(10))
@pytest.mark.parametrize("kind", ["eos", "id", "text", "length"])
def test_case_40_a_slot_keeps_what_the_client_got(place: int, kind: str) -> None:
    script = [A, B] * 8
    if kind != "length":
        script[place] = 0 if kind == "eos" else C
    request = Request(
        prompt=[D, EN],
        stop=("c",) if kind == "text" else (),
        stop_token_ids=(C,) if kind == "id" else (),
        max_tokens=place + 1 if kind == "length" else 40,
    )
    backend = scripted(*script, num_prompt_tokens=2, num_slots=1)
    drafter = ForcedDrafter(lambda h: script[len(h) - 2 : len(h) + 10])
    engine = Engine(backend, make_drafter=drafter)
    got = engine.complete(request)
    given = [*request.prompt, *got.choices[0].tokens]
    assert backend.held[0] == given[: len(backend.held[0])]
    assert len(backend.held[0]) >= len(given) - 1
    assert drafter.sessions[0].history == given
    following = engine.complete(Request(prompt=[*given, SPACE, D], max_tokens=3))
    assert following.stats.num_cached_tokens >= len(given) - 1


@pytest.mark.parametrize("place", range(2, 10))
@pytest.mark.parametrize("kind", ["stop", "length", "eos", "wrong"])
def test_case_40_the_index_holds_what_the_client_got(place: int, kind: str) -> None:
    prompt = [A, B, C, SPACE, D] * 4
    script = [A, B, C, SPACE, D] * 3
    if kind in ("eos", "wrong"):
        script[place] = 0 if kind == "eos" else 9
    backend = scripted(*script, num_prompt_tokens=len(prompt), num_slots=1)
    ends = (script[place],) if kind == "stop" and place < 5 else ()
    request = Request(
        prompt=prompt, stop_token_ids=ends, max_tokens=place + 1 if kind == "length" else None
    )
    with lookup_engine(backend, FIXED) as engine:
        got = engine.complete(request)
        assert got.stats.num_accepted_tokens > 0
        drafter = engine._drafting.drafter(None)
        assert isinstance(drafter, LookupDrafter)
        assert drafter._pool.tokens(0) == [*prompt, *got.choices[0].tokens]


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6, 7])
def test_case_45_every_cell_slot_and_sampler_comes_back(seed: int) -> None:
    chance = random.Random(seed)
    backend = FakeBackend(
        ToyLM(seed=seed),
        num_slots=3,
        context_size=64,
        num_cells=80,
        max_rows=24,
        fail_on=lambda number, parts: number % 41 == 0 and len(parts) > 1,
    )
    with lookup_engine(backend, FIXED) as engine:
        system = [1 + i % 9 for i in range(20)]
        live = []
        for _ in range(120):
            shared = system[: chance.choice([0, 18, 20])]
            prompt = [*shared, *(chance.randrange(1, 20) for _ in range(chance.randrange(1, 30)))]
            request = Request(
                prompt=prompt,
                max_tokens=chance.choice([0, 1, 5, None]),
                n=chance.choice([1, 1, 3]),
                stop=("ab", " "),
                max_draft_tokens=chance.choice([None, 0, 2]),
                grammar=chance.choice([None, None, "start: /[abc]+/"]),
            )
            live.append(engine.submit(request, lambda _: None))
            for _ in range(chance.randrange(6)):
                engine.step()
                engine.check()
            if chance.random() < 0.3:
                engine.cancel(chance.choice(live))
            engine.check()
        while engine.step():
            engine.check()
        assert all(handle.done for handle in live)
        assert engine.num_active == backend.num_samplers == 0
        assert engine.stats.preemptions > 0
        assert engine._slots.num_idle == 3
        engine.reset()
        assert engine._slots.free_cells == 80
        assert backend.held == [[], [], []]
        assert backend.num_cells_used == 0


def test_case_45_a_fork_that_is_cut_gives_its_cells_back() -> None:
    # Two answers share a prompt's cells; one of them is cut inside it and grows anew.
    prompt = [1 + i % 7 for i in range(40)]
    backend = FakeBackend(ToyLM(seed=3), num_slots=2, context_size=100, num_cells=150)
    engine = Engine(backend, make_drafter=ForcedDrafter(lambda h: h[:64]))
    engine.complete(Request(prompt=prompt, n=2, max_tokens=3, ignore_eos=True))
    assert backend.num_cells_used < 2 * len(prompt), "nothing was forked"
    for start in (30, 20):
        turn = [*prompt[:start], 9, *prompt[:20]]
        engine.complete(Request(prompt=turn, max_tokens=10, ignore_eos=True))
        engine.check()
        assert engine._slots.free_cells == 150 - backend.num_cells_used


def test_case_46_requests_without_drafts_leave_nothing_behind() -> None:
    with lookup_engine(FakeBackend(ToyLM(seed=3), num_slots=3), FIXED) as engine:

        def one(place: int) -> None:
            engine.complete(
                Request(prompt=[A, B, 1 + place % 7], max_tokens=3, max_draft_tokens=place % 2)
            )

        for place in range(100):
            one(place)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for place in range(500):
            one(place)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert grown < 30_000
        assert engine.num_active == 0
        for prompt in ([A, B, C] * 20, [B, D, 8] * 20, [9, 10, 11, 12] * 15, [C, C, D] * 20):
            drafted = engine.complete(Request(prompt=prompt, max_tokens=20, ignore_eos=True))
            assert drafted.stats.num_draft_tokens > 0


def test_case_46_a_drafter_that_cannot_start_costs_drafts_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(ForcedDrafter):
        def open(self, prompt: Sequence[int], **_options: object) -> object:  # type: ignore[override]
            raise MemoryError("no room for an index")

    request = Request(prompt=[A, B], max_tokens=10)
    with caplog.at_level(logging.WARNING):
        got = Engine(FakeBackend(), make_drafter=Full({})).complete(request)
    assert same(got, plain(FakeBackend(), request))
    assert got.stats.drafter_faults == 1
    assert "no room for an index" in caplog.text


@pytest.mark.parametrize("answer", [None, [], [None], "nonsense"])
def test_case_46_a_drafter_that_answers_nonsense_costs_drafts_only(answer: object) -> None:
    class Odd(ForcedDrafter):
        def propose_batch(self, sessions: object, limits: object) -> object:  # type: ignore[override]
            return answer

    script = [A, B, C] * 5
    request = Request(prompt=[D], max_tokens=15)
    got = Engine(scripted(*script), make_drafter=Odd(oracle([D], script, 3))).complete(request)
    # Each session is asked by itself then, so drafts go on.
    assert got.choices[0].tokens == script
    assert got.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("asked", [None, 0, 1, 4, 15, 16, 17, 64, 10**9])
@pytest.mark.parametrize("limit", [1, 16])
def test_case_65_a_requests_own_window_is_held_and_capped(asked: int | None, limit: int) -> None:
    drafter = ForcedDrafter(lambda h: [A] * 64)
    engine = Engine(scripted(*[A] * 200), make_drafter=drafter, max_draft_tokens=limit)
    assert engine.max_draft_tokens == limit
    got = engine.complete(Request(prompt=[D], max_tokens=100, max_draft_tokens=asked))
    assert got.choices[0].tokens == [A] * 100
    longest = max((len(d) for s in drafter.sessions for d, _ in s.settled), default=0)
    assert longest == (limit if asked is None else min(asked, limit))


@pytest.mark.parametrize("max_rows", [1, 2, 8, 31, 32, 33, 64])
@pytest.mark.parametrize("max_draft_rows", [0, 1, 40, 1000])
def test_case_65_and_94_more_rows_wanted_than_a_pass_has(
    max_rows: int, max_draft_rows: int
) -> None:
    wanted = [Request(prompt=[A, B, 1 + place % 7], max_tokens=12) for place in range(32)]
    backend = FakeBackend(ToyLM(seed=2), num_slots=32, max_rows=max_rows)
    options = EngineOptions(max_draft_rows=max_draft_rows)
    got = run(backend, wanted, lambda h: [*h[-4:], *h[-4:]], options=options)
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=2)), request))
    drafted = sum(completion.stats.num_draft_tokens for completion in got)
    assert (drafted > 0) == (max_rows > 1 and max_draft_rows > 0)


@pytest.mark.parametrize("shared", [16, 17, 30])
def test_case_93_drafts_after_a_shared_prefix(shared: int) -> None:
    system = [1 + i % 9 for i in range(shared)]
    wanted = [Request(prompt=[*system, 1 + place], max_tokens=30) for place in range(4)]
    backend = FakeBackend(ToyLM(seed=2), num_slots=4)
    got = run(backend, wanted, lambda h: h[-5:-1], arrivals=[0, 2, 4, 7])
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=2)), request))
    assert sum(completion.stats.num_cached_tokens for completion in got) >= 3 * shared


@pytest.mark.parametrize("num_cells", [8, 40, 63, 64, 65, 90])
def test_case_94_drafts_are_trimmed_to_the_free_cells(num_cells: int) -> None:
    wanted = [Request(prompt=[A, B, place + 1, C], max_tokens=40) for place in range(3)]
    backend = FakeBackend(ToyLM(seed=2), context_size=64, num_slots=3, num_cells=num_cells)
    got = run(backend, wanted, lambda h: h[-9:-1])
    fits = min(64, num_cells)
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(FakeBackend(ToyLM(seed=2), context_size=fits), request))
        assert completion.stats.retries == 0
