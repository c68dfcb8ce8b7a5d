"""The history index against the plain scan, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.contracts import Query, Winner
from copyahead.errors import ConfigError, RequestError
from copyahead.history.pool import BARRIER, HistoryPool
from copyahead.kernels import index
from copyahead.types import NO_DRAFT, Source
from tests.naive import NaiveHistory

VOCAB = 4
CAPACITY = 400
WINNERS: tuple[Winner, ...] = ("longest", "newest", "furthest")

token = st.integers(-2, VOCAB + 1) | st.integers(0, VOCAB - 1)
texts = st.one_of(
    st.lists(token, max_size=40),
    st.lists(st.integers(0, 1), max_size=90),
    st.builds(lambda p, n: p * n, st.lists(token, min_size=1, max_size=5), st.integers(1, 20)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("attach"), texts),
        st.tuples(st.just("next_turn"), texts),
        st.tuples(st.just("extend"), texts),
        st.tuples(st.just("truncate"), st.integers(0, 120)),
        st.tuples(st.just("retype"), st.integers(0, 30)),
    ),
    min_size=1,
    max_size=8,
)
queries = st.builds(
    Query,
    keys=st.lists(st.integers(1, 8), min_size=1, max_size=3).map(tuple),
    min_match=st.integers(0, 12),
    max_tokens=st.integers(1, 70),
    winner=st.sampled_from(WINNERS),
    max_candidates=st.sampled_from([1, 2, 7, 32, 10_000]),
)


def query(*keys: int, winner: Winner = "longest", max_tokens: int = 8, **more: int) -> Query:
    return Query(keys=keys, winner=winner, max_tokens=max_tokens, **({"min_match": 1} | more))


def pool_of(tokens: list[int], vocab_size: int = 100, prompt: int | None = None) -> HistoryPool:
    pool = HistoryPool(1, CAPACITY, vocab_size)
    cut = len(tokens) if prompt is None else prompt
    pool.attach(0, tokens[:cut])
    pool.extend(0, tokens[cut:])
    return pool


def apply(pool: HistoryPool, row: int, naive: NaiveHistory, step: tuple[str, object]) -> None:
    """Do one step to both, and compare what it returns and leaves."""
    kind, value = step
    if kind == "truncate":
        assert isinstance(value, int)
        pool.truncate(row, value)
        naive.truncate(value)
    elif kind == "retype":
        assert isinstance(value, int)
        tail = naive.tokens[-value:] if value else []
        naive.truncate(len(naive.tokens) - len(tail))
        pool.truncate(row, pool.length(row) - len(tail))
        naive.extend(tail)
        pool.extend(row, tail)
    else:
        assert isinstance(value, list)
        room = CAPACITY - len(naive.tokens)
        if kind == "attach":
            assert pool.attach(row, value) == naive.attach(value)
        elif kind == "next_turn":
            text = [*naive.tokens, *value[:room]]
            assert pool.attach(row, text) == naive.attach(text)
        else:
            naive.extend(value[:room])
            pool.extend(row, value[:room])
    assert pool.tokens(row) == naive.tokens
    assert pool.prompt_length(row) == naive.prompt_length


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), steps), max_size=4), st.lists(queries, max_size=6))
def test_every_search_equals_the_plain_scan(
    work: list[tuple[int, list[tuple[str, object]]]], wanted: list[Query]
) -> None:
    pool = HistoryPool(2, CAPACITY, VOCAB)
    naive = [NaiveHistory(VOCAB), NaiveHistory(VOCAB)]
    for row, some_steps in work:
        for step in some_steps:
            apply(pool, row, naive[row], step)
        for asked in wanted:
            assert pool.search(row, asked) == naive[row].search(asked)
    rows = [i % 2 for i in range(len(wanted))]
    singly = [pool.search(row, asked) for row, asked in zip(rows, wanted, strict=True)]
    assert pool.search_batch(rows, wanted) == singly
    pool.check()


def wrong_length(pool: HistoryPool) -> None:
    pool.lengths[0] = CAPACITY + 1


def wrong_prompt_start(pool: HistoryPool) -> None:
    pool._prompt_starts[0] = pool.length(0) + 1


def wrong_prompt_length(pool: HistoryPool) -> None:
    pool._prompt_lengths[0] = pool.length(0) + 1


def wrong_barrier(pool: HistoryPool) -> None:
    pool.cells[0, 0, 0] = 3


def wrong_token(pool: HistoryPool) -> None:
    pool.cells[0, 5, 0] = 100


def wrong_link(pool: HistoryPool) -> None:
    pool.cells[0, 5, 2] = 6


def wrong_head(pool: HistoryPool) -> None:
    pool.heads[0, 1, 77] = pool.length(0)


def wrong_cut(pool: HistoryPool) -> None:
    """The row is shorter, and its index was not told."""
    pool._prompt_lengths[0] = 8
    pool.lengths[0] = 8


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (wrong_length, "row 0 holds 401 of 400 tokens"),
        (wrong_prompt_start, "its prompt is from 13"),
        (wrong_prompt_length, "its prompt is from 5 to 13"),
        (wrong_barrier, "no barriers"),
        (wrong_token, "no token"),
        (wrong_link, "points forwards"),
        (wrong_head, "begins past its 12 tokens"),
        (wrong_cut, "begins past its 8 tokens"),
    ],
)
def test_a_wrong_book_is_found(plant: Callable[[HistoryPool], None], said: str) -> None:
    pool = HistoryPool(1, CAPACITY, 100)
    pool.attach(0, [1, 2, 3, 4, 1, 2, 3], prediction=[7, 8, 9])
    pool.check()
    plant(pool)
    with pytest.raises(AssertionError, match=said):
        pool.check()


def slot(hashed: int) -> int:
    return int(index.slot_of_hash(np.uint64(hashed), 1 << index.HASH_BITS))


def test_small_alphabets_do_not_collide() -> None:
    """Or the bounded searches above could differ from the plain scan by right."""
    pairs = {slot(index.hash_pair(*key)) for key in product(range(VOCAB), repeat=2)}
    fours = {slot(index.hash_four(*key)) for key in product(range(VOCAB), repeat=4)}
    assert (len(pairs), len(fours)) == (VOCAB**2, VOCAB**4)


def colliding_pairs(count: int) -> list[tuple[int, ...]]:
    """Different 2-token keys in one slot."""
    wanted = slot(index.hash_pair(1, 2))
    keys = product(range(3000), repeat=2)
    pairs = (key for key in keys if slot(index.hash_pair(*key)) == wanted)
    return [pair for pair, _ in zip(pairs, range(count), strict=False)]


def test_planted_collisions_are_never_matches() -> None:
    pairs = colliding_pairs(12)
    assert len(set(pairs)) == 12
    rng = np.random.default_rng(1)
    vocab = 3000
    naive = NaiveHistory(vocab)
    pool = HistoryPool(1, 4000, vocab)
    asked = Query(keys=(3, 2, 1), min_match=1, max_tokens=9, max_candidates=10_000)
    for _ in range(500):
        tokens = list(pairs[rng.integers(len(pairs))])
        naive.extend(tokens)
        pool.extend(0, tokens)
        assert pool.search(0, asked) == naive.search(asked)
        if rng.random() < 0.1:
            cut = max(0, len(naive.tokens) - int(rng.integers(9)))
            naive.truncate(cut)
            pool.truncate(0, cut)


def test_truncation_restores_the_index_bit_for_bit() -> None:
    rng = np.random.default_rng(2)
    text = rng.integers(0, 3, 300).astype(np.int32)
    pool = HistoryPool(2, CAPACITY, 3)
    pool.attach(0, text[:100])
    pool.attach(1, text)
    pool.truncate(1, 100)
    assert np.array_equal(pool.heads[0], pool.heads[1])
    # The last token's own keys are not inserted, so its links mean nothing.
    assert np.array_equal(pool.cells[0, :99], pool.cells[1, :99])


def test_a_long_row_is_emptied_and_used_again() -> None:
    text = np.random.default_rng(3).integers(0, 50, 70_000).astype(np.int32)
    pool = HistoryPool(1, 70_000, 50)
    pool.attach(0, text)
    pool.truncate(0, 0)
    assert not pool.heads.any()
    assert pool.search(0, query(1)) == NO_DRAFT
    assert pool.attach(0, [1, 2, 3, 1, 2]) == 0
    assert pool.search(0, query(2)).tokens == (3, 1, 2, 3, 1, 2, 3, 1)


def test_no_recall_of_what_was_truncated() -> None:
    pool = pool_of([1, 2, 3, 4, 5, 6])
    pool.truncate(0, 2)
    pool.extend(0, [9, 3, 4])
    assert pool.search(0, query(2)) == NO_DRAFT


def test_a_new_prompt_in_a_used_row_finds_nothing_of_the_old_one() -> None:
    pool = pool_of([7, 8, 9, 10] * 20)
    assert pool.attach(0, [1, 7, 8]) == 0
    assert pool.search(0, query(2)) == NO_DRAFT
    pool.extend(0, [5, 7, 8])
    assert pool.search(0, query(2)).tokens[:2] == (5, 7)


@pytest.mark.parametrize("barrier", [-1, -7, 100, 10**6, 2**40, -(2**40)])
def test_barriers_are_never_matched_crossed_or_proposed(barrier: int) -> None:
    assert pool_of([1, 2, barrier, 1, 2]).search(0, query(2)) == NO_DRAFT
    assert pool_of([barrier, 3, barrier]).search(0, query(1)) == NO_DRAFT
    crossed = pool_of([1, barrier, 2, 3, 4, 1, barrier, 2, 3]).search(0, query(2))
    assert (crossed.match_length, crossed.tokens) == (2, (4, 1))
    assert pool_of([1, barrier]).tokens(0) == [1, BARRIER]


def test_an_int64_array_with_barriers_is_read_as_a_list_is() -> None:
    text = [1, 2, 2**40, 1, 2, -(2**40), 3]
    pool = HistoryPool(2, 50, 10)
    pool.attach(0, text)
    pool.attach(1, np.array(text, dtype=np.int64))
    assert pool.tokens(0) == pool.tokens(1) == [1, 2, BARRIER, 1, 2, BARRIER, 3]


def test_a_read_only_and_a_strided_array_are_read() -> None:
    text = np.array([1, 0, 2, 0, 3, 0], dtype=np.int32)
    text.setflags(write=False)
    pool = HistoryPool(1, 50, 10)
    pool.attach(0, text[::2])
    assert pool.tokens(0) == [1, 2, 3]
    assert pool.attach(0, text) == 1


def test_tokens_that_are_not_whole_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="whole numbers"):
        HistoryPool(1, 50, 10).attach(0, np.array([1.5, 2.5]))
    with pytest.raises(TypeError):
        HistoryPool(1, 50, 10).attach(0, [1.5, 2.5])  # type: ignore[list-item]


@pytest.mark.parametrize("row", [-1, 2, 1000])
def test_a_row_that_is_not_there_is_refused(row: int) -> None:
    with pytest.raises(ValueError, match="row"):
        HistoryPool(2, 50, 10).attach(row, [1, 2, 3])


@pytest.mark.parametrize("winner", WINNERS)
def test_a_run_extends_itself(winner: Winner) -> None:
    draft = pool_of([7] * 50).search(0, query(2, winner=winner, max_tokens=60))
    assert draft.tokens == (7,) * 60


@pytest.mark.parametrize("winner", WINNERS)
def test_a_period_goes_on(winner: Winner) -> None:
    draft = pool_of([1, 2, 3] * 9).search(0, query(3, winner=winner, max_tokens=7))
    assert draft.tokens == (1, 2, 3, 1, 2, 3, 1)


@pytest.mark.parametrize("winner", WINNERS)
def test_a_hit_without_continuation_falls_back_to_older_ones(winner: Winner) -> None:
    draft = pool_of([1, 2, 5, 6, 1, 2, -1, 8, 1, 2]).search(0, query(2, winner=winner))
    assert draft.tokens[:2] == (5, 6)


def test_winners() -> None:
    text = [9, 1, 2, 3, 50, 1, 2, 3, 60, 4, 2, 3, 70, 1, 2, 3]
    pool = pool_of(text)
    assert pool.search(0, query(2, winner="longest")).tokens[0] == 60
    assert pool.search(0, query(2, winner="newest")).tokens[0] == 70
    assert pool.search(0, query(2, winner="furthest")).tokens[0] == 50
    assert pool.search(0, query(3, winner="newest")).tokens[0] == 60


def test_keys_are_tried_in_order_and_the_gate_stands_after_the_winner() -> None:
    pool = pool_of([8, 2, 3, 10, 1, 2, 3, 20, 5, 2, 3, 30, 1, 2, 3])
    assert pool.search(0, query(4, 3, winner="newest")).tokens[0] == 20
    assert pool.search(0, query(4, 2, winner="newest")).tokens[0] == 30
    # The newest place matches 2 tokens; an older one with 3 is not looked for.
    assert pool.search(0, query(2, winner="newest", min_match=3)) == NO_DRAFT
    assert pool.search(0, query(2, winner="longest", min_match=3)).tokens[0] == 20


def test_matches_end_at_64_and_the_newest_of_those_wins() -> None:
    text = list(range(80))
    pool = pool_of([*text, 90, *text, 91, *text])
    draft = pool.search(0, query(2))
    assert (draft.match_length, draft.tokens[0]) == (64, 91)


def test_source_is_where_the_copied_position_lies() -> None:
    pool = pool_of([1, 2, 3, 4, 1, 2], prompt=3)
    assert pool.search(0, query(2)).source is Source.PROMPT
    pool = pool_of([1, 2, 3, 4, 1, 2], prompt=2)
    assert pool.search(0, query(2)).source is Source.OUTPUT


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5])
def test_tiny_histories(length: int) -> None:
    pool = pool_of(list(range(length)))
    for key in (1, 2, 3, 4, 5):
        assert pool.search(0, query(key)) == NO_DRAFT


def test_capacity_at_its_edge() -> None:
    pool = HistoryPool(1, 10, 100)
    assert pool.attach(0, [1, 2] * 5) == 0
    assert pool.search(0, query(2, max_tokens=64)).tokens == (1, 2) * 32
    with pytest.raises(RequestError, match=r"11 tokens does not fit a row of 10.*larger capacity"):
        pool.extend(0, [1])
    with pytest.raises(RequestError, match="open the pool with a larger capacity"):
        pool.attach(0, [1, 2] * 6)
    assert pool.tokens(0) == [1, 2] * 5


def test_rows_are_apart() -> None:
    pool = HistoryPool(3, 20, 100)
    pool.attach(0, [1, 2, 3])
    pool.attach(1, [4, 1, 2])
    pool.attach(2, [])
    assert pool.search_batch([0, 1, 2], [query(2)] * 3) == [NO_DRAFT] * 3
    assert [pool.length(row) for row in range(3)] == [3, 3, 0]


def test_sixteen_bytes_a_token_and_three_mebibytes_a_row() -> None:
    one, two = HistoryPool(1, 1000, 10), HistoryPool(1, 2000, 10)
    assert two.cells.nbytes - one.cells.nbytes == 16 * 1000
    assert one.heads.nbytes == 3 * 2**20


def test_a_row_that_was_touched_has_its_memory() -> None:
    resource = pytest.importorskip("resource")
    prompt = np.random.default_rng(0).integers(0, 1000, 4000)
    faults = []
    for touched_bytes in (0, 8 << 20):
        pool = HistoryPool(4, 10_000, 1000)
        pool.touch(touched_bytes)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pool.attach(1, prompt)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert faults[1] < faults[0]


def test_touching_changes_no_text() -> None:
    pool = HistoryPool(2, 20, 10)
    pool.attach(1, [1, 2, 3, 1, 2])
    pool.touch()
    pool.check()
    assert pool.tokens(1) == [1, 2, 3, 1, 2]
    assert pool.search(1, query(2)).tokens[:3] == (3, 1, 2)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 2**31, 1)])
def test_impossible_sizes_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="must be from 1 to"):
        HistoryPool(*sizes)


@pytest.mark.parametrize(
    "bad", [query(), query(0), query(16), query(*[2] * 8), query(2, max_tokens=0)]
)
def test_impossible_queries_are_refused(bad: Query) -> None:
    with pytest.raises(ConfigError, match="must be"):
        pool_of([1, 2, 1, 2]).search(0, bad)
