"""What a plan asks of vLLM."""

from __future__ import annotations

import msgspec
import pytest

from copyahead.errors import ConfigError
from copyahead.evaluate.vllm_methods import METHODS, Answered, Plan
from copyahead.plugins.vllm.measure import Answer


def test_each_method_is_a_setting_of_vllm() -> None:
    plan = Plan(engine={}, methods=tuple(METHODS), num_speculative_tokens=9, draft_model="small")
    configs = {method: plan.speculative_config(method) for method in METHODS}
    assert configs["none"] is None
    assert configs["copyahead"] == {
        "method": "custom_class",
        "model": "copyahead.plugins.vllm.Proposer",
        "num_speculative_tokens": 9,
    }
    assert configs["beside"] == configs["draft_model"]
    assert all(c is None or c["num_speculative_tokens"] == 9 for c in configs.values())


def test_a_draft_model_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="method draft_model needs draft_model"):
        Plan(engine={}, methods=()).speculative_config("draft_model")


def test_what_the_process_writes_is_what_is_read() -> None:
    written = msgspec.json.encode(Answer(seconds=1.5, tokens=[[1, 2]], num_draft_tokens=3))
    assert msgspec.json.decode(written, type=Answered) == Answered(
        seconds=1.5, tokens=[[1, 2]], num_draft_tokens=3
    )
