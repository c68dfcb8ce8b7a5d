"""Every token from the side that is worth more: which mixtures come of it."""

from __future__ import annotations

import random

import pytest

from copyahead.contracts import Load, NextToken
from copyahead.drafters import HybridDrafter
from copyahead.drafters.chain_acceptance import Case, ChainAcceptance
from copyahead.drafters.hybrid import HybridSession
from copyahead.drafters.priced import PricedDrafter
from copyahead.history.pool import HistoryPool
from copyahead.step_cost import StepCost
from copyahead.testing import ScriptedChainDrafter
from copyahead.types import NO_DRAFT, Draft, Source

VOCAB = 1000
PASSAGE = random.Random(1).sample(range(100, 900), 60)


def knowing(answer: list[int], prompt: list[int], *, sure: float = 0.95) -> ScriptedChainDrafter:
    """A draft model that knows the answer."""
    text = [*prompt, *answer]

    def guess(read: tuple[int, ...]) -> NextToken | None:
        return NextToken(text[len(read)], sure) if len(read) < len(text) else None

    return ScriptedChainDrafter(guess, max_chain=6, seconds_a_pass=0.05)


def started(
    other: ScriptedChainDrafter, prompt: list[int], tenant: str = ""
) -> tuple[HybridDrafter, HybridSession]:
    load = Load(step_cost=StepCost.linear(0.03))
    copies = PricedDrafter(HistoryPool(2, 4000, VOCAB), load)
    drafter = HybridDrafter(copies, other, "priced", load)
    return drafter, drafter.open(prompt, slot=0, tenant=tenant)


def written(session: HybridSession, answer: list[int]) -> list[Draft]:
    """The drafts of a request that writes `answer`."""
    drafts, at = [], 0
    while at < len(answer):
        draft = session.propose(min(64, len(answer) - at))
        kept = 0
        while kept < len(draft) and draft.tokens[kept] == answer[at + kept]:
            kept += 1
        emitted = answer[at : at + kept + 1]
        session.settle(draft, emitted)
        at += len(emitted)
        drafts.append(draft)
    return drafts


def sources(draft: Draft) -> list[Source | None]:
    return [draft.source_at(place) for place in range(len(draft))]


def test_a_chain_goes_on_as_a_copy() -> None:
    prompt = [*PASSAGE, 1, 2, 3]
    answer = [*random.Random(2).sample(range(900, 999), 37), *PASSAGE[:50]]
    other = knowing(answer, prompt)
    _, session = started(other, prompt)
    drafts = written(session, answer)
    mixed = [draft for draft in drafts if draft.source is Source.MODEL and draft.parts]
    assert mixed
    assert sources(mixed[0])[-1] is Source.PROMPT
    # The rest of the passage needs nobody's opinion.
    assert drafts[-1].source is Source.PROMPT


def test_a_copy_that_is_certain_asks_nobody() -> None:
    prompt = [*PASSAGE, *PASSAGE, *PASSAGE[:30]]
    other = knowing([], prompt)
    _, session = started(other, prompt)
    for _ in range(3):
        written(session, [*PASSAGE[30:], *PASSAGE[:30]])
    other.calls.clear()
    draft = session.propose(20)
    assert draft.tokens == tuple(PASSAGE[30:50])
    assert other.calls == []


def test_the_model_goes_on_where_a_copy_breaks_off() -> None:
    prompt = [*PASSAGE[:8], *PASSAGE[:4]]
    answer = [*PASSAGE[4:8], *random.Random(3).sample(range(900, 999), 30)]
    other = knowing(answer, prompt)
    _, session = started(other, prompt)
    drafts = written(session, answer)
    kinds = [sources(draft) for draft in drafts]
    assert any(
        kind and kind[0] is Source.PROMPT and Source.MODEL in kind for kind in kinds
    ) or kinds[1][:1] == [Source.MODEL]


def test_asking_again_gives_the_same_and_runs_no_pass() -> None:
    other = knowing([7, 8, 9, 10], [1, 2, 3])
    _, session = started(other, [1, 2, 3])
    draft = session.propose(8)
    calls, spent = len(other.calls), session.spent
    assert session.propose(8) == draft
    assert (len(other.calls), session.spent) == (calls, spent)
    assert draft.tokens == (7, 8, 9, 10)


def test_nothing_is_learnt_from_another_tenants_requests() -> None:
    other = ScriptedChainDrafter(lambda text: NextToken(text[-1] % 7, 0.9), seconds_a_pass=0.1)
    drafter, session = started(other, [1, 2, 3], "a")
    written(session, random.Random(4).sample(range(900), 100))
    session.close()
    told = drafter.open([1, 2, 3], slot=0, tenant="a")
    fresh = drafter.open([1, 2, 3], slot=1, tenant="b")
    assert told.propose(8).source is not Source.MODEL
    assert fresh.propose(8).source is Source.MODEL


def test_without_a_price_of_a_pass_nobody_is_asked() -> None:
    other = knowing([7, 8, 9], [1, 2, 3])
    drafter, session = started(other, [1, 2, 3])
    drafter._load.pass_seconds = 0.0
    assert session.propose(8) == NO_DRAFT
    assert other.calls == []


@pytest.mark.parametrize("right", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("case", list(Case))
def test_chances_become_what_happens(case: Case, right: float) -> None:
    acceptance, chance = ChainAcceptance(), random.Random(5)
    for _ in range(400):
        estimate = acceptance.estimate(case, 0.7, 0.6, 1)
        acceptance.learn(estimate, chance.random() < right)
    assert acceptance.estimate(case, 0.7, 0.6, 1).chance == pytest.approx(right, abs=0.15)


def test_a_probability_that_says_something_is_believed() -> None:
    acceptance, chance = ChainAcceptance(), random.Random(6)
    for _ in range(2000):
        probability = chance.choice([0.2, 0.9])
        estimate = acceptance.estimate(Case.ALONE, probability, 0.0, 0)
        acceptance.learn(estimate, chance.random() < probability)
    low = acceptance.estimate(Case.ALONE, 0.2, 0.0, 0).chance
    high = acceptance.estimate(Case.ALONE, 0.9, 0.0, 0).chance
    assert low < 0.4 < 0.75 < high
