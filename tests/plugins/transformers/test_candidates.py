"""Candidates for transformers' own assisted decoding."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from copyahead.errors import ConfigError  # noqa: E402
from copyahead.plugins.transformers import LookupCandidates  # noqa: E402
from copyahead.step_cost import StepCost  # noqa: E402
from tests.plugins.transformers.models import Passes, model_of, plain, prompts  # noqa: E402

CHEAP = StepCost.linear(0.02)


def assisted(model: Any, candidates: LookupCandidates, **options: Any) -> tuple[Any, int]:
    """What transformers' own loop writes with `candidates`, and in how many passes."""
    model._get_candidate_generator = lambda **_: candidates
    try:
        with Passes(model) as passes:
            return model.generate(**options, prompt_lookup_num_tokens=10), passes.count
    finally:
        del model._get_candidate_generator


@pytest.mark.parametrize("policy", ["priced", "fixed", "window"])
def test_assisted_decoding_writes_the_same_text_in_fewer_passes(policy: str) -> None:
    model, candidates = model_of("Llama"), LookupCandidates(policy, step_cost=CHEAP)
    for seed in (5, 6):
        options = {"max_new_tokens": 60, "eos_token_id": None, **prompts(1, seed=seed)}
        expected = plain(model, **options)
        got, count = assisted(model, candidates, **options)
        assert torch.equal(got, expected)
        assert count < 60


def test_candidates_end_before_the_length_that_is_given() -> None:
    ids = torch.tensor([[4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5]])
    got, logits = LookupCandidates("fixed", max_length=17).get_candidates(ids)
    assert logits is None
    assert got[0].tolist() == [*ids[0].tolist(), 6, 7]
    for length in (14, 15):
        got, _ = LookupCandidates("fixed", max_length=length).get_candidates(ids)
        assert torch.equal(got, ids)


def test_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="one row"):
        LookupCandidates().get_candidates(torch.zeros(2, 5, dtype=torch.long))
