"""Where the engine meets the drafters: what is kept, what is forgotten, what a fault costs."""

from __future__ import annotations

import pytest

from copyahead.config import LookupOptions, SharedOptions
from copyahead.contracts import Load
from copyahead.drafters import HybridDrafter, LookupDrafter
from copyahead.engine import Engine, Request
from copyahead.engine.drafting import MAX_DRAFTERS
from copyahead.grammar.state import GrammarState
from copyahead.history.pool import HistoryPool
from copyahead.loading import make_engine
from copyahead.policies import parse_policy
from copyahead.testing import FakeBackend, ForcedDrafter, ScriptedChainDrafter, ToyLM, ToyTokenizer
from copyahead.types import Draft, Source
from tests.toys import plain, same

ANSWER = list(range(4, 19))


def backend() -> FakeBackend:
    return FakeBackend(ToyLM(script=ANSWER, num_prompt_tokens=1))


def test_few_drafters_are_kept_however_many_policies_are_asked_for() -> None:
    lookup = LookupOptions(policy="window")
    with make_engine(backend(), lookup=lookup) as engine:
        for length in range(1, 60):
            request = Request(prompt=[1], max_tokens=3, policy=f"fixed:num_draft_tokens={length}")
            engine.complete(request)
            engine.complete(Request(prompt=[1], max_tokens=3))
        drafters = engine._drafting._drafters
        assert len(drafters) == MAX_DRAFTERS
        assert "window" in drafters
        assert not +engine._drafting._sessions


def test_a_drafter_with_an_open_session_is_kept_and_so_is_the_default() -> None:
    made: list[str] = []

    def make(policy: str, load: Load) -> ForcedDrafter:
        made.append(policy)
        return ForcedDrafter({})

    with Engine(backend(), make_drafter=make, policy="default") as engine:
        running = engine.submit(Request(prompt=[1], policy="running"), lambda _: None)
        engine.step()
        for number in range(2 * MAX_DRAFTERS):
            engine._drafting.drafter(f"other {number}")
        engine.step()
        engine.cancel(running)
        engine.complete(Request(prompt=[1], max_tokens=1))
    # The engine's own, too, however long it was not asked for.
    assert made.count("running") == made.count("default") == 1


def test_a_reset_forgets_what_others_left_in_the_store() -> None:
    lookup = LookupOptions(policy="hysteresis:min_match=2,min_match_running=2")
    shared = SharedOptions(shared=True)
    with make_engine(backend(), lookup=lookup, shared=shared) as engine:
        engine.complete(Request(prompt=[1], max_tokens=15))
        engine.reset()
        got = engine.complete(Request(prompt=[2], max_tokens=15))
        again = engine.complete(Request(prompt=[3], max_tokens=15))
    assert Source.SHARED not in got.stats.by_source
    assert Source.SHARED in again.stats.by_source


@pytest.mark.parametrize("method", ["forced", "cut"])
def test_a_grammar_that_fails_to_draft_costs_drafts_only(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llguidance")

    def fail(*_: object) -> Draft:
        raise RuntimeError("oh")

    text = ToyTokenizer([b"", *(bytes([byte]) for byte in range(32, 127))])
    request = Request(
        prompt=[1], json_schema='{"type": "string", "pattern": "^[ab]{4}$"}', max_tokens=9
    )

    def model() -> FakeBackend:
        return FakeBackend(ToyLM(seed=1, vocab_size=text.vocab_size), tokenizer=text)

    expected = plain(model(), request)
    monkeypatch.setattr(GrammarState, method, fail)
    drafts = ForcedDrafter(lambda history: [66, 66])
    with Engine(model(), make_drafter=drafts) as engine:
        got = engine.complete(request)
    assert same(got, expected)
    assert got.stats.drafter_faults > 0


def test_a_hybrid_that_cannot_open_one_side_leaves_the_other_closed() -> None:
    other = ScriptedChainDrafter(lambda _: None)
    copies = LookupDrafter(HistoryPool(1, 10, 20), parse_policy("window"))
    hybrid = HybridDrafter(copies, other, "agree")
    with pytest.raises(Exception, match="does not fit"):
        hybrid.open([1] * 11, slot=0)
    assert other.sessions[0].closed
    hybrid.open([1] * 5, slot=0).close()
    hybrid.forget()


def test_what_the_grammar_leaves_no_choice_about_is_no_draft_of_the_drafter() -> None:
    drafter = ForcedDrafter({})
    request = Request(prompt=[1], grammar='start: "abab"', max_tokens=8)
    with Engine(FakeBackend(ToyLM(seed=1)), make_drafter=drafter) as engine:
        got = engine.complete(request)
    assert got.stats.by_source[Source.GRAMMAR].num_accepted_tokens > 0
    (session,) = drafter.sessions
    assert session.history == [1, *got.choices[0].tokens]
    assert [draft for draft, _ in session.settled if draft.tokens] == []
