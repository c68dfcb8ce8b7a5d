"""What cannot fit the context, and bodies larger than it can fill."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.chat.prompt import chat_prompt
from copyahead.server.errors import ApiError
from copyahead.server.http.text_limit import TextLimit, texts_in
from copyahead.server.service import ServerOptions
from tests.server.http.test_streaming import options
from tests.server.toys import PIECES, TOKENIZER, running, toy_backend, toy_template

LIMIT = TextLimit.of(TOKENIZER, PIECES, context_size=64)
LONGEST = max(map(len, PIECES))
LONG = "x" * (LONGEST * 64)
FITS = "x" * (LONGEST * 62)
"""By its bytes alone."""


def test_the_longest_token_may_be_a_control_token() -> None:
    assert LIMIT.token_bytes == max(LONGEST, *(len(t) for t in TOKENIZER.control_texts))
    assert TextLimit.of(TOKENIZER, [b""], 64).token_bytes == len("<|answer|>")


@given(st.text("ab <|end|>\u00e9\U0001f600\n "), st.integers(1, 64))
def test_no_text_is_refused_that_fits(text: str, context_size: int) -> None:
    limit = TextLimit.of(TOKENIZER, PIECES, context_size)
    messages = [{"role": "user", "content": text}]
    for field, num_tokens in (
        ("prompt", len(TOKENIZER.encode(text))),
        ("messages", len(chat_prompt(toy_template(), TOKENIZER, messages).tokens)),
    ):
        try:
            limit.check(field, [text])
        except ApiError:
            assert num_tokens >= context_size


@pytest.mark.parametrize("difference", [-1, 0])
def test_the_limit_is_the_context(difference: int) -> None:
    texts = ["\n" * 999 + "x" * (LIMIT.token_bytes * 63) + " " * 999, "x"[difference + 1 :]]
    texts[1] = "x" if difference == 0 else ""
    if difference < 0:
        LIMIT.check("messages", texts)
        return
    with pytest.raises(ApiError, match="has at least 64: shorten") as refusal:
        LIMIT.check("messages", texts)
    assert refusal.value.code == "context_length_exceeded"
    assert refusal.value.extra == {"n_prompt_tokens": 64, "n_ctx": 64}


def test_texts_are_found_in_parts_and_results_and_thinking_is_none() -> None:
    parts = [{"type": "text", "text": "a"}, None, 3, {"type": "x", "content": [{"text": "b"}, "c"]}]
    items = [{"content": parts}, {"output": "d"}, {"type": "reasoning", "content": "e"}]
    assert sorted(texts_in(items)) == ["a", "b", "c", "d"]
    assert list(texts_in(None)) == []


def said(content: Any) -> list[Any]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("path", "param", "body"),
    [
        ("/v1/chat/completions", "messages", {"messages": said(LONG)}),
        ("/v1/chat/completions", "messages", {"messages": said(FITS) + said("x" * 99)}),
        ("/v1/chat/completions", "messages", {"messages": said([{"type": "text", "text": LONG}])}),
        (
            "/v1/chat/completions",
            "prediction",
            {"messages": said("x"), "prediction": {"type": "content", "content": LONG}},
        ),
        ("/v1/completions", "prompt", {"prompt": LONG}),
        ("/v1/completions", "prompt", {"prompt": ["x", LONG]}),
        ("/v1/completions", "suffix", {"prompt": "x", "suffix": LONG}),
        ("/v1/responses", "input", {"input": LONG}),
        ("/v1/responses", "input", {"input": "x", "instructions": LONG}),
        ("/v1/responses", "input", {"input": said([{"type": "input_text", "text": LONG}])}),
        ("/tokenize", "messages", {"messages": said(LONG)}),
    ],
)
def test_every_route_refuses_it_before_anything_is_done(
    path: str, param: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(toy_backend(context_size=64)) as server:
        for name in ("chat_prompt", "encode_part"):
            monkeypatch.setattr(server.service, name, None)
        error = httpx.post(server.url + path, json=body).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "at least" in error["message"]
    assert error["n_prompt_tokens"] >= 64


def test_anthropic_s_clients_read_it_in_their_own_words() -> None:
    with running(toy_backend(context_size=64)) as server:
        for more in ({"messages": said(LONG)}, {"messages": said("x"), "system": LONG}):
            body = {"max_tokens": 2, **more}
            error = httpx.post(f"{server.url}/v1/messages", json=body).json()["error"]
            assert re.fullmatch(r"prompt is too long: 6[45] tokens > 63 maximum", error["message"])


def test_several_prompts_need_not_fit_together() -> None:
    with running(toy_backend(context_size=64)) as server:
        body = {"prompt": ["ab" * 60] * 3, "max_tokens": 1}
        assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200


def test_a_body_is_taken_as_far_as_the_context_goes_and_by_its_own_limit_where_there_is_one() -> (
    None
):
    large = json.dumps({"prompt": "x", "max_tokens": 1, "ignored": "x" * 4_500_000}).encode()
    headers = {"content-type": "application/json"}

    def status(given: ServerOptions) -> httpx.Response:
        with running(toy_backend(context_size=64), given) as server:
            return httpx.post(f"{server.url}/v1/completions", content=large, headers=headers)

    refused = status(options())
    assert refused.status_code == 413
    assert "maximum context length is 64 tokens" in refused.json()["error"]["message"]
    assert status(options(max_body_mb=5)).status_code == 200


def test_the_largest_body_is_16_mb_by_default() -> None:
    assert TextLimit(2**24, 100).max_body_bytes == 16_000_000
    assert TextLimit(64, 10).max_body_bytes == 4_003_840
