"""The server over the real model: two turns of an agent, and answers that copying leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import copyahead
from copyahead.evaluate.workloads import workload
from tests.server.toys import serving_model

pytestmark = [pytest.mark.model]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    options = copyahead.ModelOptions(ctx=6144, parallel=2, threads=1, exact=True)
    engine = copyahead.load(None, model=options)
    with serving_model(engine) as url:
        yield url


def ask(url: str, path: str, body: dict[str, Any], **fields: Any) -> Any:
    answer = httpx.post(f"{url}/v1/{path}", json={**body, **fields}, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def with_copying(url: str, path: str, body: dict[str, Any]) -> Any:
    """By a preset: on a machine where rows are dear the default policy may rightly do nothing."""
    return ask(url, path, body, speculative={"policy": "hysteresis"})


def without_copying(url: str, path: str, body: dict[str, Any]) -> Any:
    return ask(url, path, body, speculative={"enabled": False})


def test_a_copy_is_the_same_text_in_fewer_rounds(url: str) -> None:
    body = {"prompt": workload("list").prompt, "max_tokens": 80, "temperature": 0}
    on, off = with_copying(url, "completions", body), without_copying(url, "completions", body)
    assert on["choices"] == off["choices"]
    assert on["usage"]["completion_tokens"] == off["usage"]["completion_tokens"]
    assert on["timings"]["draft_n_accepted"] > 0
    assert on["timings"]["rounds"] < off["timings"]["rounds"] == 80


def test_a_sampled_answer_is_the_same_text(url: str) -> None:
    body = {
        "prompt": workload("list").prompt, "max_tokens": 60, "seed": 3, "temperature": 0.8,
        "top_p": 0.95, "frequency_penalty": 0.1, "logprobs": 2,
    }  # fmt: skip
    on, off = with_copying(url, "completions", body), without_copying(url, "completions", body)
    assert on["choices"] == off["choices"]


def turns(url: str, document: str, num_lines: int) -> tuple[Any, dict[str, Any]]:
    """A first turn about `document`, and the body of a second one."""
    lines = "\n".join(document.splitlines()[:num_lines])
    messages = [
        {"role": "system", "content": f"The file notes.txt:\n\n{document}"},
        {"role": "user", "content": "Print the file."},
    ]
    body: dict[str, Any] = {"max_tokens": 60, "temperature": 0}
    first = ask(url, "chat/completions", {**body, "messages": messages})
    said = first["choices"][0]["message"]
    messages += [said, {"role": "user", "content": f"Go on. It begins so:\n{lines}"}]
    return first, {**body, "messages": messages}


def check_second_turn(url: str, first: Any, body: dict[str, Any]) -> Any:
    second = with_copying(url, "chat/completions", body)
    plain = without_copying(url, "chat/completions", body)
    assert second["choices"] == plain["choices"]
    # All of the first turn is kept, but for tokens that spell the answer's end in another way.
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["prompt_tokens"]
    return second


def test_a_second_turn_reads_only_what_is_new(url: str) -> None:
    first, body = turns(url, workload("json").prompt[:800], 4)
    check_second_turn(url, first, body)


@pytest.mark.slow
def test_a_second_turn_about_a_file_of_four_thousand_tokens(url: str) -> None:
    document = "\n".join(f"berth {n}: {n * 37 % 101} m, pier {n % 7}" for n in range(270))
    first, body = turns(url, document, 20)
    assert first["usage"]["prompt_tokens"] > 4000
    second = check_second_turn(url, first, body)
    assert second["timings"]["draft_n_accepted"] > 0


def test_a_schema_holds_on_the_real_vocabulary(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    body = {
        "messages": [{"role": "user", "content": "A city, as JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "temperature": 0,
    }
    on, off = (
        with_copying(url, "chat/completions", body),
        without_copying(url, "chat/completions", body),
    )
    assert on["choices"] == off["choices"]
    assert on["choices"][0]["finish_reason"] == "stop"
    assert '"city"' in on["choices"][0]["message"]["content"]


def test_a_prompt_is_scored_the_same_with_and_without_copying(url: str) -> None:
    text = "def add(a, b):\n    return a + b\n\n" * 3
    body = {"prompt": text, "echo": True, "logprobs": 1, "max_tokens": 12, "temperature": 0}
    copied, plain = (each(url, "completions", body) for each in (with_copying, without_copying))
    assert copied["choices"] == plain["choices"]
    values = copied["choices"][0]["logprobs"]["token_logprobs"]
    count = (len(values) - 12) // 3
    assert values[0] is None
    # What stands there for the third time is no surprise.
    assert sum(values[2 * count : 3 * count]) > sum(values[1 : count + 1])


def test_a_tokenizer_is_reached_as_evaluations_reach_vllms(url: str) -> None:
    info = httpx.get(f"{url}/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>"
    assert "im_start" in info["chat_template"]

    def tokens(text: str, **fields: Any) -> list[int]:
        answer = httpx.post(f"{url}/tokenize", json={"prompt": text, **fields}).json()
        found: list[int] = answer["tokens"]
        return found

    # No leading token, and control tokens are read: `add_special` has them both or neither.
    assert len(tokens(info["eos_token"], add_special_tokens=False)) == 1
    assert len(tokens(info["eos_token"], add_special=False)) > 1
    text = "Once upon a time"
    assert tokens(text, add_special_tokens=True) == tokens(text)
