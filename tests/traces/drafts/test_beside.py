"""Recorded drafts beside copies: the rounds of a live engine, and their passes in the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

import numpy as np
import pytest

from copyahead.config import HybridRule
from copyahead.contracts import Drafter, DraftSession, Load, NextToken
from copyahead.drafters.factory import make_drafter
from copyahead.drafters.hybrid import HybridDrafter
from copyahead.engine import Engine, Request
from copyahead.errors import ConfigError
from copyahead.history.pool import HistoryPool
from copyahead.step_cost import StepCost
from copyahead.testing import FakeBackend, ScriptedChainDrafter, ToyLM
from copyahead.traces.drafts.beside import ALONE, Beside, parse_draft_costs
from copyahead.traces.drafts.recorded import DraftPrice
from copyahead.traces.replay import Tally, replay_sessions
from copyahead.traces.rows import make_rows
from copyahead.traces.runs import Cost, drafter_maker, plan_beside, plan_runs, rules_for, run_all
from copyahead.types import NO_DRAFT, Draft
from tests.traces.drafts.toys import ByPlace, corpus_of, recorded

RULES: list[HybridRule] = list(get_args(HybridRule))
COST = Cost("0.05", StepCost.linear(0.05), 0.05)
PRICE = DraftPrice(0.04, 0.0)
DEPTH = 6


def made_text(seed: int) -> tuple[list[int], int]:
    """A text that copies from itself with changes now and then, and where its answer begins."""
    random = np.random.default_rng(seed)
    text: list[int] = random.integers(1, 20, 72).tolist()
    for _ in range(12):
        start = int(random.integers(0, 40))
        text += text[start : start + int(random.integers(4, 25))]
        text += random.integers(1, 20, int(random.integers(1, 6))).tolist()
    return [*text, 0], 72


def live(text: list[int], start: int, model: ByPlace, rule: str, policy: str) -> tuple[int, ...]:
    """Rounds, drafted and accepted tokens, and passes of the draft model, of a running engine."""

    def guess(history: Sequence[int]) -> NextToken | None:
        row = model.logits(history)
        said = NextToken(int(row.argmax()), float(np.float32(1 / np.exp(row - row.max()).sum())))
        return None if history[-1] == 0 else said

    chains = ScriptedChainDrafter(guess, max_chain=DEPTH, seconds_a_pass=PRICE.of_pass)
    # Not the engine's own, which follows the clock.
    load = Load(step_cost=COST.curve)

    def make(name: str, _: Load) -> Drafter:
        if rule == ALONE:
            return chains
        pool = HistoryPool(1, len(text) + 1, 20)
        copies = make_drafter(name, pool, load, (0,))
        return HybridDrafter(copies, chains, cast(HybridRule, rule), load)

    target = ToyLM(script=text[start:], num_prompt_tokens=start)
    backend = FakeBackend(target, context_size=1000, num_slots=1)
    with Engine(backend, make_drafter=make, policy=policy) as engine:
        done = engine.complete(Request(prompt=text[:start], max_tokens=len(text) + 200))
    assert done.choices[0].tokens == text[start:]
    stats = done.stats
    assert stats.drafter_faults == 0
    # Nothing is run for what comes after an end token.
    passes = [call for call in chains.calls if any(chain[-1:] != (0,) for _, chain in call)]
    return stats.rounds, stats.num_draft_tokens, stats.num_accepted_tokens, len(passes)


class AfterPrompt:
    """Drafts nothing in the first round: an engine has its first token from the prompt's pass."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def open(self, prompt: Sequence[int], *, slot: int) -> AfterPromptSession:
        return AfterPromptSession(self._drafter.open(prompt, slot=slot))


class AfterPromptSession:
    def __init__(self, session: DraftSession) -> None:
        self._session = session
        self._begun = False
        self.settle, self.close = session.settle, session.close

    def propose(self, limit: int) -> Draft:
        begun, self._begun = self._begun, True
        return self._session.propose(limit) if begun else NO_DRAFT


def replayed(text: list[int], start: int, model: ByPlace, rule: str, policy: str) -> Tally:
    corpus = corpus_of((text, [(start, len(text))]))
    drafts = recorded(corpus, model, depth=DEPTH)
    (run,) = plan_beside(policy, [COST], [Beside(cast(HybridRule, rule), PRICE)])
    assert run.beside is not None
    drafter = run.beside.recorded(corpus, drafts)
    made = drafter_maker(run, corpus, drafter)
    phases = replay_sessions(
        corpus, [(0, 1)], lambda size: cast(Drafter, AfterPrompt(made(size))), None, drafter
    )
    return phases.both()


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        *(("priced", rule) for rule in [*RULES, ALONE]),
        *(("hysteresis:min_match=4", rule) for rule in ("agree", "first")),
        *(("window", rule) for rule in ("longer", "first")),
    ],
)
def test_a_replay_has_the_rounds_of_a_live_engine(policy: str, rule: str) -> None:
    num_chains = 0
    for seed in range(4):
        text, start = made_text(seed)
        model = ByPlace(script=text)
        tally = replayed(text, start, model, rule, policy)
        rounds, drafted, accepted, passes = live(text, start, model, rule, policy)
        kept = sum(tally.accepted_from.values())
        assert (tally.rounds, tally.num_draft_tokens, kept) == (rounds, drafted, accepted)
        assert tally.model.passes == passes
        assert tally.model.steps == pytest.approx(passes * PRICE.of_pass)
        num_chains += tally.accepted_from.get("model", 0)
    assert num_chains > 20, "the draft model has to have had its part in it"


def test_the_table_counts_the_passes() -> None:
    text, start = made_text(1)
    corpus = corpus_of((text, [(start, len(text))]))
    drafts = recorded(corpus, ByPlace(script=text), depth=DEPTH)
    besides = [Beside(rule, DraftPrice(c, 0.0)) for c in (0.0, 0.5) for rule in (ALONE, "first")]
    runs = [*plan_runs(["single"], [COST]), *plan_beside("single", [COST], besides)]
    found = run_all(corpus, runs, drafts=drafts, jobs=1)
    rows = make_rows(corpus, runs, found, None, [COST])[:5]
    assert [row.policy for row in rows] == [
        "single", "model alone", "single + model, first", "model alone", "single + model, first",
    ]  # fmt: skip
    assert [(row.hybrid, row.draft_cost) for row in rows] == [
        (None, None), ("alone", 0.0), ("first", 0.0), ("alone", 0.5), ("first", 0.5),
    ]  # fmt: skip
    copies, free, _, dear, _ = rows
    assert copies.model_passes_per_round == copies.model_share == 0.0
    # Six passes a round at half a step each, beside 1 + 6 * 0.05.
    assert (free.model_passes_per_round, dear.model_passes_per_round) == (6.0, 6.0)
    assert free.model_share == 0.0
    assert dear.model_share == pytest.approx(3 / 4.3, abs=1e-4)
    assert dear.speedup == pytest.approx(free.speedup * 1.3 / 4.3, rel=1e-3)
    assert free.accepted_from == {"model": 1.0}


def test_presets_have_no_price() -> None:
    assert rules_for("priced", RULES) == RULES
    assert rules_for("window", RULES) == ["agree", "longer", "first"]


def test_draft_costs_are_numbers() -> None:
    assert parse_draft_costs(["0.1,0.03", "0.1", " 1 "]) == [0.1, 0.03, 1.0]
    for wrong in (["x"], ["-1"], ["nan"], ["101"], [""], []):
        with pytest.raises(ConfigError, match="draft_cost must"):
            parse_draft_costs(wrong)
