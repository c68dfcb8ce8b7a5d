"""Small corpora and draft models, and recording one without a file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from copyahead.contracts import Logits
from copyahead.testing import FakeBackend, ToyLM
from copyahead.traces.corpus import Corpus
from copyahead.traces.drafts.asking import Asker
from copyahead.traces.drafts.draft_file import RecordedDrafts
from copyahead.traces.drafts.windows import Window
from copyahead.types import Token

Stream = tuple[Sequence[Token], Sequence[tuple[int, int]]]
"""A text, and the spans of it that were written."""


class ByPlace(ToyLM):
    """Says the same at a place whatever stands before it: right copies and wrong ones alike."""

    def logits(self, prefix: Sequence[Token]) -> Logits:
        text = self.script or ()
        # A record has nothing past the end, and answers with what comes right after it.
        place = min(len(prefix), len(text)) if text else len(prefix)
        random = np.random.default_rng([7, place])
        row = random.normal(size=self.vocab_size).astype(np.float32)
        row[0] = -9.0
        if place < len(text) and random.random() < 0.8:
            row[text[place]] = 4.0
        return row


def corpus_of(*streams: Stream, sessions: Sequence[int] | None = None) -> Corpus:
    """A corpus of streams, each a session of its own unless `sessions` numbers them."""
    rows, base = [], 0
    for number, (stream, spans) in enumerate(streams):
        session = number if sessions is None else sessions[number]
        for place, (start, end) in enumerate(spans):
            rows.append([base, start, end, session, 0, place == 0, 0])
        base += len(stream)
    tokens = np.array([token for stream, _ in streams for token in stream], dtype=np.int32)
    return Corpus(tokens, np.array(rows, dtype=np.int64), ("made",), 20, (0,), "toy")


def recorded(
    corpus: Corpus, model: ToyLM, *, depth: int = 6, branch_depth: int = 5
) -> RecordedDrafts:
    """What `model` drafts in all requests of `corpus`."""
    size = int(corpus.requests[:, 2].max()) + depth
    backend = FakeBackend(model, context_size=size, num_slots=3)
    asker = Asker(backend, Window(size, depth), branch_depth)
    found, begins = [], [0]
    for base, start, end, *_ in corpus.requests.tolist():
        found.append(asker.ask(base, corpus.tokens[base : base + end], start, end))
        begins.append(begins[-1] + end - start + 1)
    tokens, probabilities = (np.concatenate(part) for part in zip(*found, strict=True))
    return RecordedDrafts(tokens, probabilities, np.array(begins, dtype=np.int64), depth)
