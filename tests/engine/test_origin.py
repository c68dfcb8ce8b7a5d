"""Where each part of an answer's text came from, as chunks say it."""

from __future__ import annotations

import pytest

from copyahead.config import LookupOptions, SharedOptions
from copyahead.engine import Chunk, Engine, Request
from copyahead.engine.origin import Round, stretches
from copyahead.loading import make_engine
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM
from copyahead.types import Draft, Source
from tests.toys import scripted

COPYING = LookupOptions(policy="fixed")


def chunks_of(engine: Engine, request: Request) -> list[Chunk]:
    chunks: list[Chunk] = []
    handle = engine.submit(request, chunks.append)
    while not handle.done:
        engine.step()
        engine.check()
    return chunks


def by_source(chunks: list[Chunk]) -> dict[Source, int]:
    """Characters; the toy's tokens of these tests have one each."""
    counts: dict[Source, int] = {}
    for chunk in chunks:
        for part in chunk.stretches:
            if part.source is not None:
                counts[part.source] = counts.get(part.source, 0) + len(part.text)
    return counts


@pytest.mark.parametrize("stop", [(), ("}}}}",)])
def test_stretches_agree_with_the_text_and_with_the_counters(stop: tuple[str, ...]) -> None:
    script = [1, 2, 3, 4, 8, 10, 1, 2, 3, 4, 8, 10, 1, 2, 3, 4, 8, 12, 12]
    backend = scripted(*script, num_prompt_tokens=8)
    engine = make_engine(backend, lookup=COPYING)
    request = Request(prompt=[1, 2, 3, 4, 9, 9, 9, 11], max_tokens=40, stop=stop)
    stats = engine.stats
    chunks = chunks_of(engine, request)
    assert "".join(p.text for c in chunks for p in c.stretches) == "".join(c.text for c in chunks)
    for chunk in chunks:
        copied = "".join(p.text for p in chunk.stretches if p.source is not None)
        assert copied == "".join(text for text, copied in chunk.pieces if copied)
        if not stop:
            assert {p.num_draft_tokens for p in chunk.stretches} <= {chunk.num_draft_tokens}
            assert {p.num_accepted_tokens for p in chunk.stretches} <= {sum(chunk.copied)}
    found = by_source(chunks)
    assert found == {
        source: count.num_accepted_tokens
        for source, count in stats.by_source.items()
        if count.num_accepted_tokens
    }
    assert set(found) >= {Source.OUTPUT}
    longest = max(p.match_length for c in chunks for p in c.stretches)
    assert 1 <= longest <= stats.longest_match


def test_text_that_is_held_back_keeps_the_round_that_it_is_from() -> None:
    """`EN` may become the stop string `END`, so it is shown a round after it was drafted."""
    drafts = {1: [5], 2: [], 3: []}
    engine = Engine(scripted(1, 5, 2, 3), make_drafter=ForcedDrafter(drafts), policy="forced")
    chunks = chunks_of(engine, Request(prompt=[1], max_tokens=4, stop=("ENbEND",)))
    (held,) = [p for c in chunks for p in c.stretches if p.text.startswith("EN")]
    assert (held.text, held.num_draft_tokens, held.num_accepted_tokens) == ("EN", 1, 1)
    late = next(c for c in chunks if held in c.stretches)
    assert late.num_draft_tokens == 0, "it was not held back, so the test shows nothing"


def test_text_of_a_grammar_is_named_and_is_no_copy() -> None:
    engine = Engine(FakeBackend(ToyLM(seed=1)), make_drafter=ForcedDrafter({}), policy="forced")
    chunks = chunks_of(engine, Request(prompt=[1], grammar='start: "abab"', max_tokens=8))
    parts = [p for c in chunks for p in c.stretches if p.source is Source.GRAMMAR]
    assert parts
    assert {p.match_length for p in parts} == {0}
    assert not any(copied for c in chunks for _, copied in c.pieces)


def test_text_of_other_requests_is_named() -> None:
    story = [1, 2, 3, 8, 9, 10, 11, 12] * 2
    backend = scripted(*story, num_prompt_tokens=2)
    engine = make_engine(backend, lookup=COPYING, shared=SharedOptions(shared=True))
    request = Request(prompt=[17, 18], max_tokens=len(story))
    chunks_of(engine, request)
    again = chunks_of(engine, Request(prompt=[17, 17], max_tokens=len(story)))
    assert by_source(again).get(Source.SHARED, 0) > 0


def test_a_draft_model_has_no_match() -> None:
    round_ = Round.of(Draft(tokens=(1, 2), source=Source.PROMPT, match_length=7))
    copy, drafted, own = stretches(
        [("a", (Source.PROMPT, round_)), ("b", (Source.MODEL, round_)), ("c", None)]
    )
    assert [p.match_length for p in (copy, drafted, own)] == [7, 0, 0]
    assert [p.num_draft_tokens for p in (copy, drafted, own)] == [2, 2, 0]
