"""The limit that a comparison is held against, and what is said where it is passed."""

from __future__ import annotations

import msgspec
import pytest

from copyahead.cli.compare import _limits_text, render
from copyahead.config import LookupOptions
from copyahead.evaluate.compare import Comparison, Plan, compare, limit_of, passes_since
from copyahead.evaluate.workloads import workload
from copyahead.loading import make_engine
from copyahead.sampling import SamplingOptions
from copyahead.step_cost import StepCost
from tests.cli.toys import backend

FLAT = StepCost.linear(1.0)
"""As a probe under load may find it: no row is any cheaper than a pass of its own."""


def test_passes_that_were_cheaper_than_the_probe_says_raise_the_limit() -> None:
    assert FLAT.limit() == 1.0
    # 20 passes of 8 rows took 10 s, and plain decoding writes a token a second.
    assert limit_of(FLAT, {1: (100, 100.0), 8: (20, 10.0)}, plain_tps=1.0) == pytest.approx(16.0)
    assert limit_of(StepCost.linear(0.01), {1: (9, 9.0)}, 1.0) == StepCost.linear(0.01).limit()
    assert limit_of(FLAT, {}, plain_tps=0.0) == 1.0


def test_only_the_passes_of_the_runs_count() -> None:
    before = {1: (2, 2.0), 4: (1, 3.0)}
    assert passes_since(before, {1: (5, 4.0), 4: (1, 3.0), 9: (1, 8.0)}) == {
        1: (3, 2.0),
        9: (1, 8.0),
    }


def test_a_comparison_has_a_limit_from_its_own_passes() -> None:
    work = workload("quote")
    made = backend(prompt=work.prompt)
    made.step_cost = FLAT
    with make_engine(made, lookup=LookupOptions(policy="fixed")) as engine:
        found, _ = compare(engine, work, "fixed", Plan(sampling=SamplingOptions()))
    # The toy takes no longer for 60 rows than for one, whatever a probe may have found.
    assert found.num_accepted_tokens > 0
    assert found.limit > 1.5


COMPARISON = Comparison(
    workload="list", policy="priced", temperature=0.0, prompt_tokens=9, output_tokens=9,
    plain_tps=10.0, lookup_tps=12.0, speedup=1.2, limit=1.5, rounds=5, tokens_per_round=2.0,
    num_draft_tokens=4, num_accepted_tokens=4, longest_match=9, identical=True,
)  # fmt: skip


def cells(result: Comparison) -> list[str]:
    return [str(column._cells[0]) for column in render([result]).columns]


def test_a_share_of_the_limit_is_never_more_than_all_of_it() -> None:
    assert "80%" in cells(COMPARISON)
    above = msgspec.structs.replace(COMPARISON, speedup=2.1)
    assert "above" in cells(above)
    assert not any("%" in cell for cell in cells(above))
    assert "1.50 times" in _limits_text([COMPARISON])
    assert "changed between the runs" not in _limits_text([COMPARISON])
    assert "changed between the runs" in _limits_text([COMPARISON, above])
