"""A draft model over the fake backend: what it drafts, what it reads, and what it forgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.config import DraftModelOptions
from copyahead.drafters.model import MAX_FAULTS, MIN_FORK, ModelDrafter
from copyahead.drafters.pass_seconds import PassSeconds, measure
from copyahead.errors import BackendError, ModelError
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import NO_DRAFT, Draft, Source, Token

SECONDS = {1: 1.0, 2: 1.5}
PROMPT = [1, 2, 3, 4, 5]


def drafter(backend: FakeBackend | None = None, **options: object) -> ModelDrafter:
    backend = backend or FakeBackend(ToyLM(seed=3))
    wanted = DraftModelOptions(draft_model="x", **options)  # type: ignore[arg-type]
    return ModelDrafter(backend, wanted, seconds=PassSeconds(SECONDS, 128))


def greedy(model: ToyLM, history: list[Token], count: int) -> list[Token]:
    """What the model writes by itself, up to an end token: the slow way."""
    chain: list[Token] = []
    while len(chain) < count and (not chain or chain[-1] != 0):
        chain.append(int(model.logits([*history, *chain]).argmax()))
    return chain


def test_a_chain_is_what_the_model_would_write() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend, draft_max=6)
    session = made.open(PROMPT, slot=0)
    draft = session.propose(64)
    assert list(draft.tokens) == greedy(backend.model, PROMPT, 6)
    assert draft.source is Source.MODEL
    assert not draft.survivals
    assert session.propose(2) == draft.first(2)
    assert session.propose(0) == NO_DRAFT
    made.check()


def test_probabilities_are_those_of_the_softmax() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend)
    said = made.extend([made.open(PROMPT, slot=0)], [[7]])[0]
    row = backend.model.logits([*PROMPT, 7]).astype(np.float64)
    probs = np.exp(row) / np.exp(row).sum()
    assert said is not None
    assert said.token == int(probs.argmax())
    assert said.probability == pytest.approx(probs.max(), rel=1e-5)
    assert said.draft_probs is None


def test_padding_is_never_drafted() -> None:
    class Padded(FakeBackend):
        """Likes its padding best."""

        def forward(self, parts):  # type: ignore[no-untyped-def]
            return [
                np.concatenate([rows, np.full((len(rows), 4), 99, np.float32)], axis=1)
                for rows in super().forward(parts)
            ]

    backend = Padded(ToyLM(seed=3))
    made = drafter(backend)
    chain = made.open(PROMPT, slot=0).propose(4).tokens
    assert list(chain) == greedy(backend.model, PROMPT, 4)


def test_only_what_is_new_is_read() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend, draft_max=3)
    session = made.open(PROMPT, slot=0)
    assert made.num_rows(session, []) == 5
    draft = session.propose(3)
    assert backend.num_rows == 5 + 1 + 1
    # All kept, and a bonus token: the last drafted token and the bonus are new.
    session.settle(draft, [*draft.tokens, 9])
    assert made.num_rows(session, []) == 2
    # Read already: the last token is read again.
    made.extend([session], [[]])
    assert made.num_rows(session, []) == 1
    made.extend([session], [[]])
    # Nothing kept: the drafted tokens go, and one is new.
    draft = session.propose(3)
    other = next(token for token in range(1, 19) if token != draft.tokens[0])
    session.settle(draft, [other])
    assert made.num_rows(session, []) == 1
    assert made.num_rows(session, [4, 5]) == 3
    made.check()


def test_the_next_turn_reads_only_its_tail() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend)
    session = made.open(PROMPT, slot=1, tenant="ann")
    made.extend([session], [[]])
    session.close()
    again = made.open([*PROMPT, 6, 7], slot=1, tenant="ann")
    assert made.num_rows(again, []) == 2
    again.close()
    other = made.open([*PROMPT, 6, 7], slot=1, tenant="bob")
    assert made.num_rows(other, []) == 7, "what one tenant left was another's"
    assert backend.held[1] == []


def test_several_answers_read_their_prompt_once() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend)
    prompt = [1 + n % 17 for n in range(100)]
    sessions = [made.open(prompt, slot=slot, tenant="ann") for slot in range(3)]
    made.extend(sessions, [[], [], []])
    assert backend.num_rows <= len(prompt) + 3 * MIN_FORK
    made.check()
    late = made.open([*prompt, 3], slot=3, tenant="ann")
    assert made.num_rows(late, []) == 1
    late.close()
    stranger = made.open([*prompt, 3], slot=3, tenant="bob")
    assert made.num_rows(stranger, []) == 101


def test_one_pass_for_all_sessions() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend, draft_max=4)
    sessions = [made.open([n, n + 1, n + 2], slot=n) for n in range(1, 4)]
    drafts = made.propose_batch(sessions, [4, 0, 2])
    assert backend.num_passes == 4
    for session, draft, count in zip(sessions, drafts, [4, 0, 2], strict=True):
        assert list(draft.tokens) == greedy(backend.model, session.history, count)


@pytest.mark.parametrize("max_rows", [2, 5, 128])
def test_long_texts_are_read_in_several_passes(max_rows: int) -> None:
    backend = FakeBackend(ToyLM(seed=3), max_rows=max_rows)
    made = drafter(backend, draft_max=2)
    prompts = [[1 + (n * step) % 17 for n in range(30)] for step in (1, 2, 3)]
    sessions = [made.open(prompt, slot=slot) for slot, prompt in enumerate(prompts)]
    for draft, prompt in zip(made.propose_batch(sessions, [9] * 3), prompts, strict=True):
        assert list(draft.tokens) == greedy(backend.model, prompt, 2)
    made.check()


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_full_context_drafts_no_more(room: int) -> None:
    model = ToyLM(script=[7] * 99, num_prompt_tokens=1)
    made = drafter(FakeBackend(model, context_size=10), draft_max=8)
    session = made.open([1] * (11 - room), slot=0)
    assert len(session.propose(8)) == room
    made.check()


def test_nothing_is_drafted_after_an_end_token() -> None:
    model = ToyLM(script=[5, 6], num_prompt_tokens=1)
    made = drafter(FakeBackend(model))
    session = made.open([1], slot=0)
    assert session.propose(8).tokens == (5, 6, 0)
    # One that is history does not count: the request goes on past it.
    session.settle(NO_DRAFT, [5, 6, 0])
    assert len(session.propose(8)) == 1


def test_a_draft_ends_before_an_unlikely_token() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    sure = drafter(backend, draft_max=8)
    session = sure.open(PROMPT, slot=0)
    said = [sure.extend([session], [session.propose(8).tokens[:n]])[0] for n in range(4)]
    probabilities = [token.probability for token in said if token is not None]
    least = min(probabilities)
    first = probabilities.index(least)
    picky = drafter(FakeBackend(ToyLM(seed=3)), draft_min_prob=min(1.0, least * 1.0001))
    assert len(picky.open(PROMPT, slot=0).propose(8)) == first


def test_a_failed_pass_empties_its_slot_and_goes_on() -> None:
    backend = FakeBackend(ToyLM(seed=3), fail_on=lambda number, _: number == 2)
    made = drafter(backend, draft_max=3)
    session = made.open(PROMPT, slot=0)
    with pytest.raises(BackendError):
        session.propose(3)
    assert backend.held[0] == []
    made.check()
    assert list(session.propose(3).tokens) == greedy(backend.model, PROMPT, 3)


def test_a_session_whose_passes_keep_failing_falls_silent() -> None:
    backend = FakeBackend(ToyLM(seed=3), fail_on=lambda _number, _parts: True)
    made = drafter(backend)
    session = made.open(PROMPT, slot=0)
    for _ in range(MAX_FAULTS):
        with pytest.raises(BackendError):
            session.propose(3)
    assert session.propose(3) == NO_DRAFT
    assert made.num_rows(session, []) == 1


def test_slots_that_a_failed_pass_has_emptied_are_noticed() -> None:
    class Losing(FakeBackend):
        """Loses every slot when it fails, as llama.cpp may."""

        def forward(self, parts):  # type: ignore[no-untyped-def]
            try:
                return super().forward(parts)
            except BackendError:
                for slot in range(len(self.held)):
                    self.truncate(slot, 0)
                raise

    backend = Losing(ToyLM(seed=3), fail_on=lambda number, _: number == 2)
    made = drafter(backend, draft_max=1)
    first, second = made.open(PROMPT, slot=0), made.open(PROMPT, slot=1)
    first.propose(1)
    with pytest.raises(BackendError):
        second.propose(1)
    made.check()
    assert list(first.propose(1).tokens) == greedy(backend.model, PROMPT, 1)


def test_a_model_that_cannot_go_back_is_refused_by_name() -> None:
    backend = FakeBackend(max_rewind=4)
    backend.name = "mamba.gguf"
    with pytest.raises(ModelError, match=r"draft_model mamba\.gguf keeps a recurrent state"):
        ModelDrafter(backend)


def test_one_session_a_slot() -> None:
    made = drafter()
    session = made.open(PROMPT, slot=0)
    with pytest.raises(ValueError, match="open session"):
        made.open(PROMPT, slot=0)
    session.close()
    session.close()
    made.open(PROMPT, slot=0)


def test_forgetting_empties_every_slot() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend)
    session = made.open(PROMPT, slot=2)
    session.propose(3)
    session.close()
    made.forget()
    assert backend.held == [[], [], [], []]
    made.check()


# Sampled drafts


def test_sampled_drafts_follow_their_own_distribution() -> None:
    backend = FakeBackend(ToyLM(seed=3, sharpness=1.0))
    made = drafter(backend, draft_sample=True)
    sampling = SamplingOptions(temperature=0.7, seed=5)
    session = made.open(PROMPT, slot=0, sampling=sampling)
    row = backend.model.logits(PROMPT).astype(np.float64) / 0.7
    wanted = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
    drawn = np.zeros(len(wanted))
    for _ in range(1000):
        session.drawn.clear()
        said = made.extend([session], [[]])[0]
        assert said is not None
        assert said.draft_probs is not None
        np.testing.assert_allclose(said.draft_probs, wanted, atol=1e-6)
        drawn[said.token] += 1
    # Six standard deviations.
    error = np.abs(drawn / 1000 - wanted)
    assert (error <= 6 * np.sqrt(wanted * (1 - wanted) / 1000) + 1e-3).all()


def test_a_sampled_draft_stays_the_same_until_it_is_settled() -> None:
    made = drafter(draft_sample=True, draft_max=5)
    session = made.open(PROMPT, slot=0, sampling=SamplingOptions(temperature=3.0, seed=1))
    assert session.propose(5).tokens == session.propose(5).tokens
    fresh = drafter(draft_sample=True, draft_max=5)
    again = fresh.open(PROMPT, slot=0, sampling=SamplingOptions(temperature=3.0, seed=1))
    assert again.propose(5).tokens == session.propose(5).tokens, "a seed gives another draft"


def test_draws_of_drafts_are_not_those_of_the_request() -> None:
    made = drafter(draft_sample=True)
    session = made.open(PROMPT, slot=0, sampling=SamplingOptions(temperature=1.0, seed=1))
    assert session.random.random() != np.random.default_rng(1).random()


def test_a_greedy_request_gets_the_likeliest_tokens() -> None:
    made = drafter(draft_sample=True)
    session = made.open(PROMPT, slot=0, sampling=SamplingOptions())
    said = made.extend([session], [[]])[0]
    assert said is not None
    assert said.draft_probs is None


# Any walk: what is drafted is a function of the history


step = st.one_of(
    st.tuples(st.just("settle"), st.integers(0, 3), st.lists(st.integers(0, 18), max_size=6)),
    st.tuples(st.just("truncate"), st.integers(0, 3), st.integers(1, 40)),
    st.tuples(st.just("propose"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("reopen"), st.integers(0, 3), st.sampled_from(["", "ann"])),
    st.tuples(st.just("chain"), st.integers(0, 3), st.lists(st.integers(1, 18), max_size=40)),
)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(step, max_size=25), fails=st.sets(st.integers(1, 30), max_size=3))
def test_whatever_happens_a_draft_is_a_function_of_the_history(
    steps: list[tuple[str, int, object]], fails: set[int]
) -> None:
    backend = FakeBackend(
        ToyLM(seed=3), max_rows=40, context_size=200, fail_on=lambda number, _: number in fails
    )
    made = drafter(backend, draft_max=4)
    sessions = [made.open(PROMPT, slot=slot) for slot in range(4)]
    for action, slot, value in steps:
        session = sessions[slot]
        if action == "settle":
            session.settle(NO_DRAFT, value)  # type: ignore[arg-type]
        elif action == "truncate":
            session.truncate(value)  # type: ignore[arg-type]
        elif action == "reopen":
            session.close()
            sessions[slot] = made.open([*session.history], slot=slot, tenant=str(value))
        else:
            copy: list[Token] = value if action == "chain" else []  # type: ignore[assignment]
            before = backend.num_rows
            wanted = made.num_rows(session, copy)
            try:
                said = made.extend([session], [copy])[0]
            except BackendError:
                continue
            finally:
                made.check()
            if said is None:
                assert len(session.history) + len(copy) > 200 or session.faults >= MAX_FAULTS
                continue
            assert [said.token] == greedy(backend.model, [*session.history, *copy], 1)
            assert backend.num_rows - before == wanted


# What a pass takes


def test_seconds_follow_real_passes() -> None:
    seconds = PassSeconds({1: 0.01, 2: 0.012, 8: 0.02}, max_rows=8)
    assert seconds(1) == pytest.approx(0.01)
    assert seconds(8) == pytest.approx(0.02)
    assert seconds(17) == pytest.approx(2 * 0.02 + 0.01)
    for _ in range(100):
        seconds.observe(1, 0.03)
    assert seconds(1) == pytest.approx(0.03)
    assert seconds(8) >= seconds(1)
    seconds.observe(1, 5.0)
    assert seconds(1) == pytest.approx(0.03), "one slow pass changed it"


def test_measuring_leaves_the_slot_empty() -> None:
    backend = FakeBackend(ToyLM(seed=3), max_rows=16)
    found = measure(backend)
    assert sorted(found) == [1, 2, 4, 8]
    assert all(value > 0 for value in found.values())
    assert backend.held[0] == []


def test_a_draft_of_another_source_is_news() -> None:
    backend = FakeBackend(ToyLM(seed=3))
    made = drafter(backend, draft_max=2)
    session = made.open(PROMPT, slot=0)
    session.propose(2)
    session.settle(Draft(tokens=(8, 8), source=Source.PROMPT), [8, 8, 3])
    assert list(session.propose(2).tokens) == greedy(backend.model, [*PROMPT, 8, 8, 3], 2)
