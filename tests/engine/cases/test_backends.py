"""Known faults: backends that cannot go back, windows, padding ids and sentinels.

Rows 53-55, 57, 58, 105.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from copyahead.contracts import Logits, Part, Query
from copyahead.engine import Engine, Request
from copyahead.errors import BackendError
from copyahead.history.pool import HistoryPool
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM
from tests.engine.cases.models import RowLM, drafted_run, lookup_engine
from tests.toys import oracle, plain, same, scripted

A, B, C, D = 1, 2, 3, 6
POLICIES = ["hysteresis", "window", "single", "adaptive_k", "fixed"]


@pytest.mark.parametrize("size", [0, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_case_53_padding_ids_are_never_written_reported_or_verified(
    size: int, temperature: float
) -> None:
    # 20 real ids in rows of 32; the padding has the largest logits of all.
    def row(prefix: Sequence[int]) -> list[float]:
        return [float(-(token % 3)) for token in range(20)] + [50.0] * 12

    verified: list[int] = []

    class Watched(FakeBackend):
        def forward(self, parts: Sequence[Part]) -> list[Logits]:
            verified.extend(token for part in parts for token in part.tokens)
            return super().forward(parts)

    request = Request(
        prompt=[A, B],
        max_tokens=50,
        logprobs=20,
        ignore_eos=True,
        sampling=SamplingOptions(temperature=temperature, seed=1),
    )
    got = drafted_run(Watched(RowLM(row, 32)), request, lambda h: [25, A, A][:size])
    choice = got.choices[0]
    assert choice.error is None
    assert max(choice.tokens) < 20
    assert max(verified) < 20
    assert max(token for entry in choice.logprobs for token, _ in entry.top) < 20
    total = sum(math.exp(p) for _, p in choice.logprobs[0].top)
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("wrong", [-1, 20, 10**6, 2**40])
@pytest.mark.parametrize("place", range(4))
def test_case_53_and_54_a_draft_ends_before_what_is_no_token(wrong: int, place: int) -> None:
    script = [A, B, C, A, B, C, A, B]
    draft = script[1:6]
    draft[place] = wrong
    drafter = ForcedDrafter({1: draft})
    backend = scripted(*script)
    got = Engine(backend, make_drafter=drafter).complete(Request(prompt=[D]))
    assert got.choices[0].tokens == [*script, 0]
    assert got.stats.drafter_faults == 0
    assert len(drafter.sessions[0].settled[1][0]) == place


@pytest.mark.parametrize("sentinel", [-1, -200, 20, 10**6])
def test_case_54_sentinels_in_a_history_are_barriers(sentinel: int) -> None:
    pool = HistoryPool(1, 100, 20)
    text = [A, B, C, D]
    # The run of sentinels repeats, and so does what stands beside it.
    pool.attach(0, [*text, *[sentinel] * 4, 8, 9, *text, *[sentinel] * 4])
    assert not pool.search(0, Query(keys=(3, 2, 1), min_match=1, max_tokens=8)).tokens
    pool.extend(0, [8])
    draft = pool.search(0, Query(keys=(4, 2, 1), min_match=1, max_tokens=8))
    assert draft.tokens == (9, *text)
    assert draft.match_length == 1, "a match must not reach across a barrier"


class RecurrentBackend(FakeBackend):
    """Cannot take anything back, and notices when its state has seen another token."""

    def __init__(self, **options: Any) -> None:
        super().__init__(ToyLM(seed=2), max_rewind=0, can_fork=False, **options)
        self.num_partial_cuts = 0

    def truncate(self, slot: int, length: int) -> None:
        self.num_partial_cuts += 0 < length < len(self.held[slot])
        super().truncate(slot, length)


@pytest.mark.parametrize("policy", POLICIES)
def test_case_55_and_105_a_state_that_cannot_go_back_is_never_drafted_into(policy: str) -> None:
    backend = RecurrentBackend()
    request = Request(
        prompt=[A, B, C] * 6,
        max_tokens=60,
        sampling=SamplingOptions(repetition_penalty=1.3, temperature=0.7, seed=3),
    )
    with lookup_engine(backend, policy) as engine:
        assert engine.max_draft_tokens == 0
        got = engine.complete(request)
        assert backend.held[0] == [*request.prompt, *got.choices[0].tokens][: len(backend.held[0])]
        # A next turn that shares part of it cannot reuse it: it starts afresh.
        turn = Request(prompt=[A, B, C, A, A], max_tokens=10)
        assert same(engine.complete(turn), plain(FakeBackend(ToyLM(seed=2)), turn))
    assert same(got, plain(FakeBackend(ToyLM(seed=2)), request))
    assert got.stats.num_draft_tokens == 0
    assert backend.num_partial_cuts == 0


class RingBackend(FakeBackend):
    """Keeps the newest `window + spare` tokens of a sequence, in a ring; sees `window` of them.

    A row that depends on more than the last two tokens shows it when the ring was overwritten
    further than its spare cells allow.
    """

    def __init__(self, window: int, spare: int) -> None:
        self._window = window
        self._ring: list[dict[int, int]] = [{}]
        super().__init__(num_slots=1, max_rewind=spare, can_fork=False)
        self._cells_of_ring = window + spare

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        (part,) = parts
        super().forward(parts)
        rows = []
        for position, token in enumerate(part.tokens, start=part.start):
            self._ring[0][position % self._cells_of_ring] = token
            seen = range(max(0, position - self._window + 1), position + 1)
            visible = [self._ring[0][place % self._cells_of_ring] for place in seen]
            random_row = np.random.default_rng([len(visible), *visible]).normal(size=20)
            rows.append(random_row.astype(np.float32))
        return (
            [np.stack(rows[len(rows) - part.num_logits :])]
            if part.num_logits
            else [np.empty((0, 20), dtype=np.float32)]
        )


@pytest.mark.parametrize("spare", [0, 1, 5, 12])
@pytest.mark.parametrize("num_prompt_tokens", [13, 14, 16, 18, 19, 32, 33])
def test_case_57_and_58_drafts_stay_inside_the_spare_cells_of_a_window(
    spare: int, num_prompt_tokens: int
) -> None:
    prompt = [1 + i % 7 for i in range(num_prompt_tokens)]
    request = Request(prompt=prompt, max_tokens=24, ignore_eos=True)
    expected = plain(RingBackend(16, spare), request)
    answer = expected.choices[0].tokens
    for right in range(6):
        drafter = ForcedDrafter(
            lambda h, n=right: [*oracle(prompt, answer, n)(h), *[9] * (12 - n)]  # type: ignore[misc]
        )
        engine = Engine(RingBackend(16, spare), make_drafter=drafter)
        got = engine.complete(request)
        assert same(got, expected)
        longest = max((len(d) for s in drafter.sessions for d, _ in s.settled), default=0)
        assert longest == min(spare, 12)
        # A warm start on what the slot holds gives what a cold one gives.
        turn = Request(prompt=[*prompt, *answer[:4], 3], max_tokens=8, ignore_eos=True)
        assert same(engine.complete(turn), plain(RingBackend(16, spare), turn))


class OnceBackend(FakeBackend):
    """Can go back once, over rows of its last pass only: as snapshots of a state allow."""

    def truncate(self, slot: int, length: int) -> None:
        if 0 < length < len(self.held[slot]) and not getattr(self, "fresh", False):
            raise BackendError("the snapshots are gone")
        self.fresh = False
        super().truncate(slot, length)

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        self.fresh = True
        return super().forward(parts)


def test_case_55_a_backend_that_refuses_to_go_back_costs_a_prefix_and_no_request() -> None:
    backend = OnceBackend(ToyLM(seed=2), max_rewind=4, can_fork=False, num_slots=1)
    with lookup_engine(backend, "fixed:num_draft_tokens=4,shortest_key=1") as engine:
        first = engine.complete(Request(prompt=[A, B, C] * 4, max_tokens=20, ignore_eos=True))
        backend.fresh = False
        held = backend.held[0]
        turn = Request(prompt=[*held[:-2], 9], max_tokens=8)
        got = engine.complete(turn)
    assert first.stats.num_draft_tokens > 0
    assert got.stats.num_cached_tokens == 0
    assert same(got, plain(FakeBackend(ToyLM(seed=2)), turn))
