"""What is recorded is what the draft model says, asked afresh at every place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.contracts import Logits, Part
from copyahead.errors import ConfigError, ModelError
from copyahead.testing import FakeBackend, ToyLM
from copyahead.traces.drafts.asking import Asker
from copyahead.traces.drafts.windows import Window
from tests.tiny_models import REAL_VOCAB

Row = Callable[[Sequence[int]], Logits]


def asked_afresh(
    row: Row, text: Sequence[int], start: int, end: int, window: Window, branch_depth: int
) -> tuple[list[list[int]], list[list[float]]]:
    """The recorded columns, with a new question for every token of every chain."""
    tokens, probabilities = [], []
    for place in range(start, end + 1):
        chain: list[int] = []
        said: list[float] = []
        while place > 0 and len(chain) <= branch_depth:
            if chain and (0 in chain or place == end or chain[0] == text[place]):
                break
            logits = row([*text[window.start(place) : place], *chain])
            chain.append(int(logits.argmax()))
            said.append(1.0 / float(np.exp(logits - logits.max()).sum()))
        missing = 1 + branch_depth - len(chain)
        tokens.append(chain + [-1] * missing)
        probabilities.append(said + [0.0] * missing)
    return tokens, probabilities


@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(st.integers(0, 19), min_size=1, max_size=200),
    spans=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 90)), min_size=1, max_size=4),
    size=st.sampled_from([32, 48, 300]),
    branch_depth=st.integers(0, 4),
    num_slots=st.integers(2, 4),
    seed=st.integers(0, 3),
)
def test_the_record_is_what_the_model_says_at_each_place(
    text: list[int],
    spans: list[tuple[int, int]],
    size: int,
    branch_depth: int,
    num_slots: int,
    seed: int,
) -> None:
    model = ToyLM(seed=seed)
    backend = FakeBackend(model, context_size=size, num_slots=num_slots, max_rows=70)
    window = Window(size, 8)
    asker = Asker(backend, window, branch_depth)
    for number, (start, count) in enumerate(spans):
        start = min(start, len(text) - 1)
        end = min(start + count, len(text))
        # Spans of one stream, in any order, and now and then another stream.
        stream = [token + 1 for token in text] if number == 2 else text
        stream = [min(token, 19) for token in stream]
        array = np.array(stream[:end], dtype=np.int32)
        tokens, probabilities = asker.ask(int(number == 2), array, start, end)
        expected = asked_afresh(model.logits, stream, start, end, window, branch_depth)
        assert tokens.tolist() == expected[0]
        assert probabilities.tolist() == np.array(expected[1], dtype=np.float32).tolist()
    assert [backend.length(slot) for slot in range(1, num_slots)] == [0] * (num_slots - 1)


@given(size=st.integers(8, 400), place=st.integers(0, 3000))
def test_a_window_shows_the_end_and_has_room_for_a_chain(size: int, place: int) -> None:
    window = Window(size, 2)
    start = window.start(place)
    shown = place - start
    assert shown <= size - 2
    assert start == 0 or shown >= window.most - window.hop
    assert place <= window.last(start)
    assert window.start(window.last(start)) == start
    assert window.start(window.last(start) + 1) > start


def test_a_real_model_says_the_same_beside_branches(tiny_models: dict[str, Path]) -> None:
    random = np.random.default_rng(5)
    text = random.integers(3, REAL_VOCAB, 150)
    backend = LlamaBackend(tiny_models["plain"], LlamaSettings(threads=1, ctx=64, parallel=4))
    alone = LlamaBackend(tiny_models["plain"], LlamaSettings(threads=1, ctx=64))

    def row(tokens: Sequence[int]) -> Logits:
        alone.truncate(0, 0)
        (rows,) = alone.forward([Part(0, 0, tokens, 1)])
        logits: Logits = rows[0][:REAL_VOCAB]
        return logits

    def likeliest(tokens: Sequence[int]) -> int:
        return int(row(tokens).argmax())

    # Half of it is what the model writes itself, so that chains go on.
    for place in range(20, 150, 2):
        text[place] = likeliest(text[max(0, place - 40) : place].tolist())
    window = Window(64, 6)
    try:
        asker = Asker(backend, window, 3)
        for start, end in ((10, 60), (75, 150)):
            tokens, probabilities = asker.ask(0, text[:end].astype(np.int32), start, end)
            backend.check()
            expected = asked_afresh(row, text.tolist(), start, end, window, 3)
            got, wanted = tokens.tolist(), expected[0]
            # The tiny model's end token is 2.
            assert [r[:1] for r in got] == [r[:1] for r in wanted]
            assert got == wanted
            np.testing.assert_allclose(probabilities, expected[1], rtol=1e-6)
    finally:
        backend.close()
        alone.close()


def test_a_recurrent_model_is_asked_without_branches(tiny_models: dict[str, Path]) -> None:
    backend = LlamaBackend(tiny_models["recurrent"], LlamaSettings(threads=1, ctx=64, parallel=2))
    try:
        with pytest.raises(ModelError, match="branch_depth must be 0"):
            Asker(backend, Window(64, 6), 1)
        text = np.arange(3, 53, dtype=np.int32)
        asker = Asker(backend, Window(64, 6), 0)
        first = asker.ask(0, text, 10, 50)[0]
        # Asked again further back, it starts again.
        assert asker.ask(0, text[:30], 20, 30)[0].tolist() == first[10:21].tolist()
    finally:
        backend.close()


def test_a_window_larger_than_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft_ctx must be at most 256"):
        Asker(FakeBackend(), Window(300, 8), 1)
