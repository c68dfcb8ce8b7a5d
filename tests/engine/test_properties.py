"""Whatever is drafted, in whatever company: the text is that of plain decoding.

The quick suite runs 200 examples of each; `pytest -m slow` runs 2,000.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from copyahead.engine import Request
from copyahead.engine.scheduler import EngineOptions
from copyahead.sampling import SamplingOptions
from copyahead.testing import TOY_PIECES, FakeBackend, ToyLM
from copyahead.types import Exactness
from tests.toys import plain, run, same

VOCAB = len(TOY_PIECES)
TOKEN = st.integers(0, VOCAB - 1)
PROMPT = st.lists(st.integers(1, 6), min_size=1, max_size=40)


@st.composite
def sampling(draw: st.DrawFn) -> SamplingOptions:
    return SamplingOptions(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.8, 1.5])),
        top_k=draw(st.sampled_from([0, 0, 1, 3, 10])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.9, 0.3])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.1])),
        typical_p=draw(st.sampled_from([1.0, 1.0, 0.7])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5, -0.3])),
        dry_multiplier=draw(st.sampled_from([0.0, 0.0, 0.8])),
        logit_bias=draw(st.dictionaries(TOKEN, st.sampled_from([-100.0, -2.0, 3.0]), max_size=2)),
        seed=draw(st.integers(0, 5)),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 60)))
    return Request(
        prompt=draw(PROMPT),
        sampling=draw(sampling()),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(8, max_tokens or 8))),
        stop=tuple(
            draw(st.lists(st.sampled_from(["END", "ab", " ", "\N{GRINNING FACE}"]), max_size=2))
        ),
        stop_token_ids=tuple(draw(st.lists(TOKEN, max_size=2))),
        ignore_eos=draw(st.booleans()),
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
        max_draft_tokens=draw(st.sampled_from([None, None, 0, 1, 5])),
        lookup=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def plans(draw: st.DrawFn) -> Any:
    """Drafts that are right, wrong, empty, over-long, poisoned, or a drafter that raises."""
    kind = draw(st.sampled_from(["repeat", "random", "mixed", "raise"]))
    noise = draw(st.lists(TOKEN, min_size=1, max_size=70))

    def plan(history: tuple[int, ...]) -> list[int]:
        size = (len(history) * 7 + len(noise)) % 19
        if kind == "raise" and len(history) % 3 == 0:
            raise RuntimeError("a drafter's own fault")
        if kind == "random" or (kind == "mixed" and len(history) % 2):
            return noise[size:] + noise
        for back in range(len(history) - 2, 0, -1):
            if history[back - 1 : back + 1] == history[-2:]:
                return list(history[back + 1 : back + 1 + size])
        return []

    return plan


@st.composite
def backends(draw: st.DrawFn) -> dict[str, Any]:
    context = draw(st.sampled_from([64, 96]))
    slots = draw(st.integers(1, 4))
    return {
        "context_size": context,
        "num_slots": slots,
        "num_cells": draw(st.sampled_from([context + 8, context * 2, context * slots + 64])),
        "max_rows": draw(st.sampled_from([8, 33, 128])),
        "max_rewind": draw(st.sampled_from([None, None, 0, 4])),
        "can_fork": draw(st.booleans()),
        "exactness": draw(st.sampled_from([None, Exactness("exact", 8, 0.0)])),
    }


def check_draft_independence(
    seed: int, wanted: list[Request], plan: Any, config: dict[str, Any], data: st.DataObject
) -> None:
    arrivals = [data.draw(st.integers(0, 30)) for _ in wanted]
    options = EngineOptions(chunk_tokens=data.draw(st.sampled_from([1, 7, 512])))
    together = run(
        FakeBackend(ToyLM(seed=seed), **config), wanted, plan, arrivals=arrivals, options=options
    )
    for request, got in zip(wanted, together, strict=True):
        alone = plain(FakeBackend(ToyLM(seed=seed), context_size=config["context_size"]), request)
        assert same(got, alone)
        assert got.stats.num_output_tokens == sum(len(c.tokens) for c in alone.choices)


ARGUMENTS = {
    "seed": st.integers(0, 3),
    "wanted": st.lists(requests(), min_size=1, max_size=5),
    "plan": plans(),
    "config": backends(),
    "data": st.data(),
}
QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)


@settings(max_examples=200, deadline=None, suppress_health_check=QUIET)
@given(**ARGUMENTS)
def test_draft_independence(
    seed: int, wanted: list[Request], plan: Any, config: dict[str, Any], data: st.DataObject
) -> None:
    check_draft_independence(seed, wanted, plan, config, data)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=QUIET)
@given(**ARGUMENTS)
def test_draft_independence_at_length(
    seed: int, wanted: list[Request], plan: Any, config: dict[str, Any], data: st.DataObject
) -> None:
    check_draft_independence(seed, wanted, plan, config, data)
