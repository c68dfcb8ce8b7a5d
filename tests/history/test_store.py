"""The shared store: what it keeps, who may copy from it, and that it never changes a token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.config import LookupOptions, SharedOptions
from copyahead.contracts import Drafter, Load, Query
from copyahead.drafters import factory
from copyahead.drafters.priced import PricedDrafter
from copyahead.engine import Request
from copyahead.errors import ConfigError
from copyahead.history.pool import HistoryPool
from copyahead.history.store import SharedStore
from copyahead.kernels import candidates, features, index
from copyahead.loading import make_engine
from copyahead.stats import CopyLog
from copyahead.step_cost import StepCost
from copyahead.testing import FakeBackend, ToyLM
from copyahead.training.train import follow
from copyahead.types import NO_DRAFT, Draft, Source
from tests.naive import NaiveHistory, view_of
from tests.toys import plain

VOCAB = 50
POLICIES = ("priced", "hysteresis:min_match=4", "window:min_match=4", "single")


def passage(seed: int, length: int = 60) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).tolist()  # type: ignore[no-any-return]


def make_drafter(policy: str, rows: int = 2, scopes: int = 4, capacity: int = 4096) -> Drafter:
    pool = HistoryPool(rows, 2000, VOCAB, SharedStore(scopes, capacity, VOCAB))
    return factory.make_drafter(policy, pool, Load(step_cost=StepCost.linear(0.01)))


def store_of(drafter: Drafter) -> SharedStore:
    store = drafter._pool.shared  # type: ignore[attr-defined]
    assert isinstance(store, SharedStore)
    return store


def write(drafter: Drafter, prompt: list[int], answer: list[int], tenant: str = "a") -> list[Draft]:
    """A request in row 0 that writes `answer`; returns what was drafted for it."""
    session = drafter.open(prompt, slot=0, tenant=tenant)
    drafts = follow(session, answer)
    session.close()
    return drafts


@pytest.mark.parametrize("policy", POLICIES)
def test_a_conversation_copies_from_another_of_its_tenant(policy: str) -> None:
    drafter = make_drafter(policy)
    text = passage(1)
    write(drafter, passage(2, 20), text)
    write(drafter, passage(3, 20), passage(4, 10))
    drafts = [draft for draft in write(drafter, passage(5, 20), text) if draft]
    assert any(draft.source is Source.SHARED for draft in drafts)
    assert all(draft.source in (Source.SHARED, Source.OUTPUT, Source.PROMPT) for draft in drafts)
    copied = max(drafts, key=lambda draft: len(draft) if draft.source is Source.SHARED else 0)
    where = next(i for i in range(len(text)) if tuple(text[i : i + len(copied)]) == copied.tokens)
    assert text[where : where + len(copied)] == list(copied.tokens)


@pytest.mark.parametrize("policy", POLICIES)
def test_tenants_never_copy_from_each_other(policy: str) -> None:
    drafter = make_drafter(policy)
    text = passage(1)
    write(drafter, passage(2, 20), text, tenant="a")
    write(drafter, passage(3, 20), passage(4, 10), tenant="b")
    with_secret = write(drafter, passage(5, 20), text, tenant="b")
    clean = make_drafter(policy)
    write(clean, passage(3, 20), passage(4, 10), tenant="b")
    assert with_secret == write(clean, passage(5, 20), text, tenant="b")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_others_hold_changes_no_draft_of_a_tenant(data: st.DataObject) -> None:
    """The same requests of one tenant draft the same, whatever a second one does between them."""
    policy = data.draw(st.sampled_from(POLICIES))
    texts_ = st.lists(st.integers(0, 3), min_size=1, max_size=40)
    mine = data.draw(st.lists(st.tuples(texts_, texts_), min_size=1, max_size=4))
    theirs = data.draw(st.lists(st.tuples(texts_, texts_), min_size=1, max_size=4))
    alone, beside = make_drafter(policy), make_drafter(policy)
    for number, (prompt, answer) in enumerate(mine):
        other_prompt, other_answer = theirs[number % len(theirs)]
        write(beside, other_prompt, other_answer, tenant="other")
        write(alone, [VOCAB - 1], [VOCAB - 1], tenant="other")
        assert write(beside, prompt, answer) == write(alone, prompt, answer)


def kept_of(drafter: Drafter, tenant: str) -> list[int]:
    """What a tenant's scope holds, barriers as -1."""
    store = store_of(drafter)
    scope = store.enter(tenant)
    store.leave(scope)
    held: list[int] = store.cells[scope, : store.num_tokens(tenant), 0].tolist()
    return held


def test_of_a_conversation_that_goes_on_only_what_is_new_is_kept() -> None:
    drafter = make_drafter("priced")
    prompt, answer, more, reply = passage(1, 100), passage(2), passage(3, 30), passage(4, 20)
    write(drafter, prompt, answer)
    assert kept_of(drafter, "a") == [-1, *prompt, *answer, -1]
    write(drafter, prompt + answer + more, reply)
    first, context = [-1, *prompt, *answer, -1], [*prompt, *answer][-64:]
    assert kept_of(drafter, "a") == [*first, *context, *more, *reply, -1]


def test_a_row_that_changes_hands_gives_each_tenant_its_own_text() -> None:
    drafter = make_drafter("priced")
    prompt, one, two = passage(1, 40), passage(2, 30), passage(3, 30)
    write(drafter, prompt, one, tenant="a")
    write(drafter, prompt, two, tenant="b")
    assert kept_of(drafter, "a") == [-1, *prompt, *one, -1]
    assert kept_of(drafter, "b") == [-1, *prompt, *two, -1]


def test_a_conversation_that_returns_is_kept_once() -> None:
    drafter = make_drafter("priced")
    one, other = passage(1, 200), passage(2, 200)
    for _ in range(4):
        write(drafter, one, passage(3, 40))
        write(drafter, other, passage(4, 40))
    # Two documents, a barrier before the first and behind each.
    assert store_of(drafter).num_tokens("a") == 2 * 240 + 3
    write(drafter, one + passage(3, 40) + passage(5, 100), passage(6, 40))
    # Of the longer one only what is new came in, with 64 tokens before it.
    assert store_of(drafter).num_tokens("a") == 2 * 240 + 3 + 140 + 64 + 1


def test_conversations_that_take_turns_in_one_row_are_kept_once() -> None:
    drafter = make_drafter("priced")
    system = passage(0, 30)
    talks = [[*system, *passage(10, 50)], [*system, *passage(20, 50)]]
    distinct = 0
    for turn in range(8):
        for number, talk in enumerate(talks):
            answer = passage(100 * turn + number, 40)
            write(drafter, talk, answer)
            talk += [*answer, *passage(1000 * turn + number, 10)]
            distinct = sum(map(len, talks))
    held = store_of(drafter).num_tokens("a")
    # A turn comes with 64 tokens of context, and two barriers at most.
    assert held <= distinct + 16 * (64 + 2)


def test_a_text_that_was_overwritten_is_added_again() -> None:
    store = SharedStore(1, 1024, VOCAB)
    texts = [np.array(passage(seed, 300), dtype=np.int32) for seed in range(4)]
    for text in texts:
        store.add("a", text)
    store.add("a", texts[0])
    ring = store.cells[store.enter("a"), :, 0].tolist()
    wanted = texts[0].tolist()
    assert any(ring[at : at + 300] == wanted for at in range(len(ring)))


def test_nothing_is_copied_from_cells_that_were_never_written() -> None:
    """A fresh ring holds zeros, and 0 is a token."""
    rng = np.random.default_rng(0)
    for seed in range(60):
        pool = HistoryPool(1, 700, VOCAB, SharedStore(2, 4096, VOCAB))
        drafter = PricedDrafter(pool, StepCost.linear(0.0))
        text = rng.integers(1, VOCAB, 60).tolist()
        drafter.open(text, slot=0, tenant="a").close()
        prompt = [*rng.integers(1, VOCAB, 10).tolist(), *text[20:40]]
        session = drafter.open(prompt, slot=0, tenant="a")
        for token in [*text[40:], *rng.integers(1, VOCAB, 20).tolist()]:
            draft = session.propose(64)
            assert 0 not in draft.tokens, seed
            session.settle(draft.first(0), [token])


def test_a_draft_that_goes_over_into_another_requests_text_says_so() -> None:
    own, others = list(range(100, 120)), list(range(300, 350))
    pool = HistoryPool(1, 700, 400, SharedStore(1, 4096, 400))
    drafter = PricedDrafter(pool, StepCost.linear(0.01))
    for seed in range(3):
        drafter.open([*passage(seed, 60), *own, *others], slot=0).close()
    session = drafter.open([*passage(9, 60)], slot=0, prediction=own)
    at, answer, mixed = 0, [*own, *others], 0
    while at < len(answer):
        drafts = session.propose(64), *drafter.propose_batch([session], [64])
        for draft in drafts:
            if set(draft.tokens) & set(others):
                assert draft.source is Source.SHARED
                mixed += draft.tokens[0] in own
        kept = 0
        while kept < len(drafts[0]) and answer[at + kept :][:1] == [drafts[0].tokens[kept]]:
            kept += 1
        session.settle(drafts[0], answer[at : at + kept + 1])
        at += kept + 1
    assert mixed > 0


@pytest.mark.parametrize("policy", ["single", "priced"])
def test_a_closed_session_copies_from_nobody(policy: str) -> None:
    drafter = make_drafter(policy)
    text = passage(1)
    drafter.open(text, slot=0, tenant="a").close()
    session = drafter.open(text[:20], slot=1, tenant="a")
    assert session.propose(8).source is Source.SHARED
    session.close()
    assert session.propose(8).source is not Source.SHARED


def wrong_users(store: SharedStore) -> None:
    store.enter("a")


def wrong_number(store: SharedStore) -> None:
    store._numbers["c"] = store._numbers["a"]


def wrong_owner(store: SharedStore) -> None:
    del store._numbers["b"]


def wrong_fill(store: SharedStore) -> None:
    store._scopes[0].filled = 30


def wrong_count(store: SharedStore) -> None:
    store._scopes[0].written = 30


def wrong_document(store: SharedStore) -> None:
    store.cells[0, int(store.ends[0]) - 1, 0] = 5


def wrong_token(store: SharedStore) -> None:
    store.cells[0, 5, 0] = VOCAB


def wrong_link(store: SharedStore) -> None:
    store.cells[0, 5, 1] = 1000


def wrong_head(store: SharedStore) -> None:
    store.heads[0, 0, 5] = 1000


def wrong_memory(store: SharedStore) -> None:
    scope = store._scopes[0]
    scope.written += 1
    store._remember(scope, np.arange(40, dtype=np.int32))
    scope.written -= 1


def wrong_empty_scope(store: SharedStore) -> None:
    store.ends[store.empty_scope] = 4


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (wrong_users, "scope 0 counts 2 users and has 1"),
        (wrong_number, "two names"),
        (wrong_owner, "scope 1 is nobody's and in use"),
        (wrong_fill, "scope 0 ends at 62 of 30 cells"),
        (wrong_count, "took in less"),
        (wrong_document, "runs out of the ring"),
        (wrong_token, "no token"),
        (wrong_link, "leaves the ring"),
        (wrong_head, "leaves the ring"),
        (wrong_memory, "has not taken in"),
        (wrong_empty_scope, "the empty scope holds text"),
    ],
)
def test_a_wrong_book_is_found(plant: Callable[[SharedStore], None], said: str) -> None:
    store = SharedStore(2, 1024, VOCAB)
    pool = HistoryPool(2, 400, VOCAB, store)
    for row, tenant in enumerate("ab"):
        pool.attach(row, passage(row), tenant=tenant)
        pool.release(row)
    pool.attach(0, passage(1, 20), tenant="a")
    pool.check()
    plant(store)
    with pytest.raises(AssertionError, match=said):
        pool.check()


def test_forgetting_empties_rows_and_store() -> None:
    pool = HistoryPool(2, 400, VOCAB, SharedStore(2, 1024, VOCAB))
    text = passage(1)
    pool.attach(0, text, tenant="a")
    pool.release(0)
    pool.forget()
    assert pool.tokens(0) == []
    pool.attach(1, text[:20], tenant="a")
    assert pool.search(1, Query(keys=(2,), min_match=2, max_tokens=4)) == NO_DRAFT


def test_a_prediction_is_nobody_elses() -> None:
    drafter = make_drafter("priced")
    session = drafter.open(passage(1, 30), slot=0, tenant="a", prediction=passage(9, 80))
    session.settle(NO_DRAFT, passage(2, 30))
    session.close()
    assert kept_of(drafter, "a") == [-1, *passage(1, 30), *passage(2, 30), -1]


def test_the_oldest_documents_make_room() -> None:
    store = SharedStore(1, 256, VOCAB)
    for seed in range(9):
        store.add("a", np.array(passage(seed, 100), dtype=np.int32))
    held = store.cells[store.enter("a"), :, 0].tolist()
    for seed, there in ((8, True), (7, False), (6, False)):
        text = passage(seed, 100)
        found = any(held[at : at + 100] == text for at in range(len(held)))
        assert found == there or seed == 7
    assert held.count(-1) >= 2


def test_a_document_longer_than_the_ring_keeps_its_end() -> None:
    store = SharedStore(1, 256, VOCAB)
    text = passage(1, 1000)
    store.add("a", np.array(text, dtype=np.int32))
    assert store.cells[store.enter("a"), :, 0].tolist() == [-1, *text[-254:], -1]


def test_the_scope_longest_unused_makes_room() -> None:
    store = SharedStore(2, 256, VOCAB)
    text = np.array(passage(1, 40), dtype=np.int32)
    for name in ("first", "second", "first", "third"):
        store.add(name, text)
    assert [store.num_tokens(name) for name in ("first", "second", "third")] == [42, 0, 42]


def test_a_text_is_new_again_when_its_scope_was_emptied() -> None:
    store = SharedStore(1, 256, VOCAB)
    text = np.array(passage(1, 40), dtype=np.int32)
    # The second tenant gets the scope of the first, which held the same text.
    for name in ("first", "second"):
        store.add(name, text)
        assert store.num_tokens(name) == 42
    store.clear()
    store.add("second", text)
    assert store.num_tokens("second") == 42


def test_few_texts_are_remembered_however_many_come() -> None:
    store = SharedStore(1, 1024, VOCAB)
    for seed in range(50):
        store.add("a", np.array(passage(seed, 20), dtype=np.int32))
    assert len(store._scopes[0].known) == 5


def test_a_scope_in_use_is_never_given_away() -> None:
    store = SharedStore(2, 256, VOCAB)
    one, two = store.enter("one"), store.enter("two")
    empty_scope = store.enter("three")
    assert len({one, two, empty_scope}) == 3
    store.add("three", np.array(passage(1, 40), dtype=np.int32))
    assert store.ends[empty_scope] == 0
    store.add("one", np.array(passage(2, 40), dtype=np.int32))
    store.leave(empty_scope)
    store.leave(one)
    assert store.enter("three") == one
    assert store.ends[one] == 0
    assert (store.cells[one, :, 0] <= 0).all()
    assert not store.cells[one, :, 1:].any()
    assert not store.heads[one].any()


def naive_shared(history: NaiveHistory, documents: list[list[int]]) -> list[tuple[int, int, int]]:
    """(source, match, rank bucket) of the candidates by key: the row's, then the documents'."""
    last = len(history.tokens) - 1
    ring = [-1]
    for document in documents:
        ring += [*document, -1]
    last_tokens = {end for end in range(len(ring) - 1) if ring[end + 1] == -1}

    def in_ring(end: int) -> int:
        length = 0
        while length < 64 and length <= min(end, last) and ring[end - length] >= 0:
            if ring[end - length] != history.tokens[last - length]:
                break
            length += 1
        return length

    found = []
    for key, above in ((4, 65), (2, 4), (1, 2)):
        own = [(e + 1, history.match_length(e)) for e in range(last - 1, -1, -1)]
        shared = [
            (index.SHARED + e + 1, in_ring(e))
            for e in range(len(ring) - 1, -1, -1)
            if e not in last_tokens
        ]
        ends = [(source, match) for source, match in [*own, *shared] if match >= key]
        ends = ends[: candidates.PER_KEY]
        for rank, (source, match) in enumerate(ends):
            at = source - index.SHARED
            token = ring[at] if source >= index.SHARED else history.tokens[source]
            if match < above and token >= 0:
                found.append((source, match, [0, 1, 2, 2, 3, 3, 3, 3][rank]))
    return found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=16, max_size=50), max_size=4),
    st.lists(st.integers(-1, 3), min_size=1, max_size=60),
)
def test_candidates_of_row_and_store_are_those_of_a_plain_scan(
    documents: list[list[int]], text: list[int]
) -> None:
    store = SharedStore(1, 512, 4)
    pool = HistoryPool(1, 200, 4, store)
    kept: list[list[int]] = []
    for document in documents:
        before = store.num_tokens("")
        store.add("", np.array(document, dtype=np.int32))
        if store.num_tokens("") > before + (before == 0):
            size = store.num_tokens("") - max(before, 1) - 1
            kept.append(document[-size:])
    pool.attach(0, text)
    rows = np.zeros((features.NUM_CANDIDATE_COLUMNS, features.MAX_CANDIDATES), dtype=np.int32)
    count = candidates.gather_by_key(view_of(pool), rows, 0)
    columns = (features.SOURCE, features.MATCH, features.RANK)
    found = [tuple(int(rows[column, c]) for column in columns) for c in range(count)]
    history = NaiveHistory(4)
    history.attach(text)
    assert found == naive_shared(history, kept)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=16, max_size=120), min_size=4, max_size=14))
def test_after_the_ring_went_round_every_candidate_is_still_a_match(
    documents: list[list[int]],
) -> None:
    store = SharedStore(1, 256, 3)
    for document in documents:
        store.add("", np.array(document, dtype=np.int32))
    pool = HistoryPool(1, 200, 3, store)
    text = documents[-1][:40]
    pool.attach(0, text)
    rows = np.zeros((features.NUM_CANDIDATE_COLUMNS, features.MAX_CANDIDATES), dtype=np.int32)
    count = candidates.gather_by_key(view_of(pool), rows, 0)
    pool.check()
    ring = store.cells[pool.scope(0), :, 0].tolist()
    found = [int(source) for source in rows[features.SOURCE, :count]]
    assert len(found) == len(set(found))
    for source, match in zip(found, rows[features.MATCH, :count].tolist(), strict=True):
        if source >= index.SHARED:
            at = source - index.SHARED
            assert ring[at] >= 0
            assert 1 <= match <= at
            assert ring[at - match : at] == text[-match:]


def test_a_copy_from_the_store_is_told_apart_when_it_goes_on() -> None:
    pool = HistoryPool(1, 400, VOCAB, SharedStore(1, 1024, VOCAB))
    text = passage(1)
    pool.attach(0, text)
    pool.release(0)
    pool.attach(0, [*passage(2, 30), *text[:8]])
    draft = pool.search(0, Query(keys=(4,), min_match=4, max_tokens=6))
    assert draft == Draft(tuple(text[8:14]), Source.SHARED, 8, (), draft.origin)
    start = pool.length(0)
    pool.extend(0, text[8:14])
    assert pool.follows(0, draft.origin, start)
    assert not pool.follows(0, draft.origin + 1, start)
    assert pool.search_batch([0], [Query(keys=(4,), min_match=4, max_tokens=3)]) == [
        Draft(tuple(text[14:17]), Source.SHARED, 14, (), draft.origin + 6)
    ]


@pytest.mark.parametrize("policy", ["priced", "hysteresis:min_match=4"])
def test_an_engine_with_a_store_writes_what_plain_decoding_writes(policy: str) -> None:
    answer = [1 + token % 18 for token in passage(7, 90)]
    shared = SharedOptions(shared=True, shared_tokens=4096)

    def backend() -> FakeBackend:
        return FakeBackend(ToyLM(script=answer, num_prompt_tokens=3))

    requests = [Request(prompt=[first, 2, 1], max_tokens=90) for first in (3, 4, 5)]
    with make_engine(backend(), lookup=LookupOptions(policy=policy), shared=shared) as engine:
        got = [engine.complete(request) for request in requests]
    for completion, request in zip(got, requests, strict=True):
        assert completion.choices[0].tokens == plain(backend(), request).choices[0].tokens
    assert Source.SHARED not in got[0].stats.by_source
    for completion in got[1:]:
        assert completion.stats.by_source[Source.SHARED].num_accepted_tokens > 40


def test_what_came_from_others_is_not_shown_as_copied() -> None:
    answer = list(range(4, 19))
    backend = FakeBackend(ToyLM(script=answer, num_prompt_tokens=1))
    lookup = LookupOptions(policy="hysteresis:min_match=2,min_match_running=2")
    with make_engine(backend, lookup=lookup, shared=SharedOptions(shared=True)) as engine:
        engine.complete(Request(prompt=[1], max_tokens=15))
        got = engine.complete(Request(prompt=[2], max_tokens=15))
    assert got.choices[0].tokens == answer
    assert got.stats.by_source.keys() == {Source.SHARED}
    assert got.stats.num_accepted_tokens > 5
    assert not any(copied for _, copied in got.choices[0].pieces)


@pytest.mark.parametrize(
    ("sizes", "named"), [((0, 1024), "num_scopes"), ((1, 10), "capacity"), ((1, 2**30), "capacity")]
)
def test_a_store_of_no_sense_is_refused(sizes: tuple[int, int], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SharedStore(*sizes, VOCAB)


def test_a_store_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="shared_tokens"):
        SharedOptions(shared=True, shared_tokens=10)


def test_the_log_counts_what_came_from_the_store(caplog: pytest.LogCaptureFixture) -> None:
    log = CopyLog()
    with caplog.at_level("INFO", logger="copyahead.stats"):
        log.record(Draft((1, 2, 3), Source.SHARED, 4), 2, None)
        for _ in range(1024):
            log.record(Draft((1, 2, 3), Source.PROMPT, 4), 3, None)
    first, second = (record.getMessage() for record in caplog.records)
    assert "copies=1 proposed=3 accepted=2 shared=2" in first
    assert "copies=1025 proposed=3075 accepted=3074 shared=2" in second
