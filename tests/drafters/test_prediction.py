"""Text that a request expects to repeat: followed across edits, and no part of the prompt."""

from __future__ import annotations

import numpy as np
import pytest

from copyahead.config import LookupOptions
from copyahead.contracts import Load, Query
from copyahead.drafters.factory import make_drafter
from copyahead.engine import Engine, Request
from copyahead.errors import RequestError
from copyahead.history.pool import HistoryPool
from copyahead.loading import make_engine
from copyahead.step_cost import StepCost
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import NO_DRAFT, Source
from tests.toys import plain, same

RANDOM = np.random.default_rng(5)
TEXT = [int(token) for token in RANDOM.integers(1, 19, 120)]
EDITED = [*TEXT[:40], 7, 7, 7, *TEXT[43:80], *TEXT[85:]]


def engine(policy: str, answer: list[int]) -> Engine:
    backend = FakeBackend(
        ToyLM(script=answer, num_prompt_tokens=3), step_cost=StepCost.linear(0.02)
    )
    return make_engine(backend, lookup=LookupOptions(policy=policy))


@pytest.mark.parametrize("policy", ["priced", "hysteresis:min_match=3,min_match_running=2"])
def test_a_predicted_text_is_copied_across_edits(policy: str) -> None:
    request = Request(prompt=[3, 2, 1], max_tokens=len(EDITED), prediction=TEXT)
    with engine(policy, EDITED) as running:
        got = running.complete(request)
    assert same(got, plain(FakeBackend(ToyLM(script=EDITED, num_prompt_tokens=3)), request))
    copied = got.stats.by_source[Source.PREDICTION]
    assert copied.num_accepted_tokens > 60
    assert got.stats.num_prompt_tokens == 3


def test_priced_starts_with_the_predictions_first_token() -> None:
    request = Request(prompt=[3, 2, 1], max_tokens=30, prediction=TEXT)
    with engine("priced", TEXT) as running:
        got = running.complete(request)
    # One token is written before anything can be drafted, and the second round copies.
    assert got.stats.rounds <= 12


def test_priced_drafts_the_prediction_from_its_first_token_on() -> None:
    pool = HistoryPool(1, 400, 40)
    drafter = make_drafter("priced", pool, Load(step_cost=StepCost.linear(0.02)))
    # Nothing of the prompt stands in the prediction.
    session = drafter.open([33, 32, 31], slot=0, prediction=TEXT)
    draft = session.propose(8)
    assert draft.source is Source.PREDICTION
    assert draft.tokens == tuple(TEXT[: len(draft)]) != ()


def test_a_wrong_prediction_changes_nothing() -> None:
    wrong = [1 + (token + 3) % 18 for token in TEXT]
    request = Request(prompt=[3, 2, 1], max_tokens=60, prediction=wrong)
    with engine("priced", TEXT) as running:
        got = running.complete(request)
    assert got.choices[0].tokens == TEXT[:60]


def test_no_match_runs_from_the_prediction_into_the_prompt() -> None:
    pool = HistoryPool(1, 200, 20)
    pool.attach(0, [5, 6, 9, 4, 5], prediction=[4, 5])
    draft = pool.search(0, Query(keys=(2,), min_match=2, max_tokens=4))
    # "4 5" stands at the end of the prediction, and nothing follows it there.
    assert draft.tokens == ()
    pool.attach(0, [5, 6, 9, 4, 5], prediction=[4, 5, 8])
    draft = pool.search(0, Query(keys=(2,), min_match=2, max_tokens=4))
    assert draft.tokens == (8,)
    assert draft.source is Source.PREDICTION


def test_the_next_turn_without_a_prediction_forgets_it() -> None:
    pool = HistoryPool(1, 200, 20)
    pool.attach(0, [1, 2, 3], prediction=[4, 5, 8, 9])
    pool.attach(0, [1, 2, 3, 4, 5])
    assert pool.search(0, Query(keys=(2, 1), min_match=1, max_tokens=4)).tokens == ()


def test_a_prediction_longer_than_any_answer_is_refused() -> None:
    with engine("priced", TEXT) as running, pytest.raises(RequestError, match="prediction is 300"):
        running.complete(Request(prompt=[1], prediction=[1] * 300))


@pytest.mark.parametrize("policy", ["priced", "single"])
def test_a_length_counts_from_the_prompt_and_not_from_the_prediction(policy: str) -> None:
    pool = HistoryPool(1, 200, 20)
    drafter = make_drafter(policy, pool, Load(step_cost=StepCost.linear(0.02)))
    session = drafter.open([1, 2, 3], slot=0, prediction=[4, 5, 8, 9])
    session.settle(NO_DRAFT, [6, 7, 10])
    session.truncate(5)
    assert pool.tokens(0) == [-1, 4, 5, 8, 9, -1, 1, 2, 3, 6, 7]


def test_how_much_of_a_prompt_was_there_already() -> None:
    pool = HistoryPool(1, 200, 20)
    assert pool.attach(0, [1, 2, 3], prediction=[4, 5]) == 0
    assert pool.attach(0, [1, 2, 3, 6], prediction=[4, 5]) == 3
    assert pool.attach(0, [1, 2, 9], prediction=[4, 6]) == 0


def test_where_a_copied_text_comes_from() -> None:
    pool = HistoryPool(1, 200, 20)
    pool.attach(0, [1, 2, 3], prediction=[4, 5])
    pool.extend(0, [6, 7])
    kinds = [pool.source(0, place) for place in range(1, pool.length(0))]
    assert kinds[:2] == [Source.PREDICTION] * 2
    # The second barrier, which nothing is copied from, is in between.
    assert kinds[3:] == [Source.PROMPT] * 3 + [Source.OUTPUT] * 2
