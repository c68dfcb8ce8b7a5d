"""A server with a draft model: what an answer and the metrics say of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from copyahead.config import DraftModelOptions
from copyahead.drafters.model import ModelDrafter
from copyahead.drafters.pass_seconds import PassSeconds
from tests.server.toys import Running, running, toy_backend

TEXT = "A boat, a rope and a bell; then tea at six."


@pytest.fixture(scope="module")
def drafted() -> Iterator[Running]:
    options = DraftModelOptions(draft_model="toy", hybrid="first")
    seconds = PassSeconds({1: 1e-9, 2: 2e-9}, 128)
    drafter = ModelDrafter(toy_backend(), options, seconds=seconds)
    with running(policy="priced", model_drafter=drafter) as server:
        yield server


def ask(server: Running, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"say:{TEXT}"}]
    body = {"messages": messages, "temperature": 0, **options}
    answer: dict[str, Any] = httpx.post(f"{server.api}/chat/completions", json=body).json()
    return answer


def test_timings_tell_what_the_draft_model_did(drafted: Running) -> None:
    answer = ask(drafted, speculative={"policy": "model"})
    assert answer["choices"][0]["message"]["content"] == TEXT
    timings = answer["timings"]
    assert timings["draft_n_accepted"] > 20
    assert timings["by_source"]["model"]["accepted"] == timings["draft_n_accepted"]
    assert timings["draft_model"]["passes"] > 20
    assert timings["draft_model"]["ms"] > 0
    page = httpx.get(f"{drafted.url}/metrics").text
    assert 'source="model"} ' in page
    assert "copyahead:draft_model_passes_total" in page


@pytest.mark.parametrize(
    "policy", ["priced", "priced+off", "window", "window+agree", "priced+priced"]
)
def test_a_request_may_say_who_drafts(policy: str, drafted: Running) -> None:
    answer = ask(drafted, speculative={"policy": policy})
    assert answer["choices"][0]["message"]["content"] == TEXT
    if policy.endswith("off"):
        assert "model" not in answer["timings"]["by_source"]
        assert answer["timings"]["draft_model"]["passes"] == 0


def test_a_wrong_rule_is_named(drafted: Running) -> None:
    answer = ask(drafted, speculative={"policy": "priced+x"})
    assert answer["error"]["param"] == "speculative.policy"
    assert "there is no rule 'x'" in answer["error"]["message"]


def test_without_a_draft_model_there_is_none_to_ask(server: Running) -> None:
    answer = ask(server, speculative={"policy": "model"})
    assert answer["error"]["param"] == "speculative.policy"
    assert "needs draft_model" in answer["error"]["message"]
