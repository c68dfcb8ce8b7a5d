"""Recorded drafts as a drafter: what a live one says, its passes, and no hints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.testing import ToyLM
from copyahead.traces.corpus import Corpus
from copyahead.traces.drafts.recorded import DraftPrice, RecordedDrafter, RecordedSession
from copyahead.types import Source
from tests.traces.drafts.toys import ByPlace, corpus_of, recorded

FREE = DraftPrice(0.0, 0.0)
texts = st.lists(st.integers(1, 19), min_size=4, max_size=60)


def drafter_for(
    corpus: Corpus, model: ToyLM, price: DraftPrice = FREE, **options: float
) -> RecordedDrafter:
    drafts = recorded(corpus, model)
    return RecordedDrafter(corpus, drafts, price, **options)  # type: ignore[arg-type]


def opened(drafter: RecordedDrafter, request: int, place: int | None = None) -> RecordedSession:
    """A session of a request, at a place of its text."""
    drafter.begin(request)
    start, end = (int(n) for n in drafter.corpus.requests[request, 1:3])
    base = int(drafter.corpus.requests[request, 0])
    text = drafter.corpus.tokens[base : base + end].tolist()
    session = drafter.open(text[:start], slot=0)
    for token in text[start : start if place is None else place]:
        session.settle(session.propose(0), [token])
    return session


@settings(max_examples=40, deadline=None)
@given(text=texts, seed=st.integers(0, 5), data=st.data())
def test_after_right_tokens_and_its_own_it_says_what_the_model_says(
    text: list[int], seed: int, data: st.DataObject
) -> None:
    model = ToyLM(seed=seed)
    start = data.draw(st.integers(1, len(text) - 1))
    drafter = drafter_for(corpus_of((text, [(start, len(text))])), model)
    place = data.draw(st.integers(start, len(text) - 1))
    session = opened(drafter, 0, place)
    chain = text[place : data.draw(st.integers(place, len(text)))]
    # The model's own tokens from there on, as far as its chains were recorded.
    for _ in range(5):
        if chain and chain[-1] == 0:
            assert drafter.extend([session], [chain]) == [None]
            break
        (said,) = drafter.extend([session], [chain])
        logits = model.logits([*text[:place], *chain])
        assert said is not None
        assert said.token == int(logits.argmax())
        expected = 1.0 / float(np.exp(logits - logits.max()).sum())
        assert said.probability == pytest.approx(expected, rel=1e-6)
        chain.append(said.token)
        if place + len(chain) > len(text):
            break


@settings(max_examples=60, deadline=None)
@given(text=texts, poison=st.lists(st.integers(1, 19), min_size=1, max_size=12), data=st.data())
def test_no_answer_tells_whether_a_copy_is_right(
    text: list[int], poison: list[int], data: st.DataObject
) -> None:
    """A wrong copy is answered as the right one of its length would be, token and probability."""
    start = data.draw(st.integers(1, len(text) - 1))
    model = ByPlace(script=text)
    drafter = drafter_for(corpus_of((text, [(start, len(text))])), model)
    place = data.draw(st.integers(start, len(text) - 1))
    session = opened(drafter, 0, place)
    right = text[place : place + len(poison)]
    answers = drafter.extend([session, session], [poison[: len(right)], right])
    assert answers[0] == answers[1]
    # Past the end of the text nothing shows that it ends there.
    (beyond,) = drafter.extend([session], [poison + poison])
    assert beyond is not None


def test_a_chain_beyond_what_was_recorded_goes_on_by_place() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    model = ByPlace()
    corpus = corpus_of((text, [(1, 8)]))
    drafts = recorded(corpus, model, branch_depth=1)
    drafter = RecordedDrafter(corpus, drafts, FREE)
    session = opened(drafter, 0)
    own = drafts.of(0)[0]
    assert own[0, 0] != text[1], "the model is to be wrong at the first place"
    (said,) = drafter.extend([session], [[int(own[0, 0])]])
    assert said is not None
    assert said.token == own[0, 1]
    (said,) = drafter.extend([session], [own[0].tolist()])
    assert said is not None
    assert said.token == own[2, 0]


def test_a_chain_ends_after_an_end_token_and_before_an_unlikely_one() -> None:
    text = [1, 2, 3, 4, 0]
    corpus = corpus_of((text, [(1, 5)]))
    model = ByPlace(script=text)
    drafter = drafter_for(corpus, model)
    session = opened(drafter, 0)
    assert drafter.extend([session], [[2, 0]]) == [None]
    assert drafter.cost.passes == 0
    (said,) = drafter.extend([session], [[]])
    assert said is not None
    below = drafter_for(corpus, model, min_prob=said.probability * 1.01)
    assert below.extend([opened(below, 0)], [[]]) == [None]
    # It took a pass to see that.
    assert below.cost.passes == 1


def test_alone_it_drafts_chains_as_long_as_allowed() -> None:
    text = list(range(1, 15))
    model = ByPlace(script=text)
    drafter = drafter_for(corpus_of((text, [(1, 14)])), model, max_chain=4)
    assert drafter.max_chain == 4
    draft = opened(drafter, 0).propose(64)
    own = drafter.drafts.of(0)[0][:, 0].tolist()
    assert draft.tokens[0] == own[0]
    assert (len(draft), draft.source) == (4, Source.MODEL)
    assert drafter.cost.passes == 4
    assert drafter_for(drafter.corpus, model, max_chain=60).max_chain == 6


class Rows:
    """The books of a slot as lists: what is held is compared with what is to be read."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def keep(self, tokens: Sequence[int]) -> int:
        common = 0
        while common < min(len(self.held), len(tokens)) and self.held[common] == tokens[common]:
            common += 1
        del self.held[common:]
        return common

    def read(self, tokens: Sequence[int]) -> int:
        unread = len(tokens) - min(self.keep(tokens), len(tokens) - 1)
        self.held = list(tokens)
        return unread


@settings(max_examples=60, deadline=None)
@given(text=texts, data=st.data())
def test_rows_are_what_the_draft_model_has_not_read(text: list[int], data: st.DataObject) -> None:
    half = len(text) // 2
    other = [*text[: half - 1], 7, 8, 9]
    corpus = corpus_of(
        (text, [(1, half), (half + 1, len(text))]), (other, [(1, len(other))]), sessions=[0, 0]
    )
    price = DraftPrice(0.5, 0.01)
    drafter = drafter_for(corpus, ByPlace(script=text), price)
    rows, passes, steps = Rows(), 0, 0.0
    for request, (base, start, end) in enumerate(corpus.requests[:, :3].tolist()):
        stream = corpus.tokens[base : base + end].tolist()
        session = opened(drafter, request)
        place = start
        while place < end:
            chain: list[int] = []
            for _ in range(data.draw(st.integers(0, 3))):
                wanted = drafter.num_rows(session, chain)
                (said,) = drafter.extend([session], [chain])
                assert said is not None
                assert wanted == rows.read([*stream[:place], *chain])
                passes, steps = passes + 1, steps + 0.5 + 0.01 * (wanted - 1)
                right = place + len(chain) < end and data.draw(st.booleans())
                chain.append(stream[place + len(chain)] if right else max(1, said.token))
            emitted = stream[place : place + data.draw(st.integers(1, 4))]
            session.settle(session.propose(0), emitted)
            place += len(emitted)
        # What is held beyond the text, or beside it, is gone with the session.
        session.close()
        rows.keep(stream)
    assert drafter.cost.passes == passes
    assert drafter.cost.steps == pytest.approx(steps)
