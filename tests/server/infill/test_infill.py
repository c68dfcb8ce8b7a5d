"""`POST /infill` and `suffix` over a real socket, as plugins of editors and OpenAI's client ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from copyahead.config import Limits
from copyahead.server.service import ServerOptions
from tests.server.infill.toys import FIM, GapLM, GapTokenizer, gap_backend
from tests.server.toys import END, Running, running

BEHIND = "return the value\n    and the rest of the file\n"
PLUGIN = [
    "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
    "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms",
    "timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached",
]  # fmt: skip
"""What llama.vim asks for."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(gap_backend(), policy="fixed") as server:
        yield server


def post(server: Running, **body: Any) -> httpx.Response:
    given = {"input_prefix": "def f(x):\n    ", "input_suffix": BEHIND, **body}
    return httpx.post(f"{server.url}/infill", json=given)


def frames(answer: httpx.Response) -> list[dict[str, Any]]:
    """Each frame of a stream; every one of them is JSON, and nothing follows the last."""
    lines = [line for line in answer.text.split("\n\n") if line and not line.startswith(":")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def seen(server: Running) -> list[list[int]]:
    model = server.backend.model
    assert isinstance(model, GapLM)
    return model.seen


def test_what_is_missing_is_written(server: Running) -> None:
    answer = post(server, prompt="y = ", n_predict=100).json()
    assert answer["content"] == BEHIND
    assert (answer["stop"], answer["stop_type"], answer["stopping_word"]) == (True, "eos", "")
    assert answer["tokens_predicted"] == len(answer["tokens"]) == answer["timings"]["predicted_n"]
    assert answer["tokens_evaluated"] == len(seen(server)[-1])
    assert answer["tokens_cached"] == answer["tokens_evaluated"] + answer["tokens_predicted"]
    assert (answer["model"], answer["truncated"], answer["has_new_line"]) == (
        "copyahead", False, True,
    )  # fmt: skip
    tokenizer = GapTokenizer()
    assert seen(server)[-1] == [
        FIM.prefix, *tokenizer.encode("def f(x):\n    y = ", special=False),
        FIM.suffix, *tokenizer.encode(BEHIND, special=False), FIM.middle,
    ]  # fmt: skip


def test_drafts_are_copied_from_what_stands_behind(server: Running) -> None:
    answer = post(server, include_copied=True).json()
    assert answer["content"] == BEHIND
    assert answer["timings"]["draft_n_accepted"] > 0
    assert answer["timings"]["rounds"] < answer["tokens_predicted"]
    copied = [run["text"] for run in answer["copied"] if run["copied"]]
    assert copied
    assert "".join(run["text"] for run in answer["copied"]) == BEHIND
    plain = post(server, speculative={"enabled": False}).json()
    assert (plain["content"], plain["timings"]["draft_n"]) == (BEHIND, 0)


def test_the_request_of_a_plugin_gets_the_fields_that_it_reads(server: Running) -> None:
    answer = post(
        server, prompt="", n_predict=256, n_indent=0, top_k=40, top_p=0.99, stream=False,
        samplers=["top_k", "top_p", "infill"], cache_prompt=True, t_max_prompt_ms=500,
        t_max_predict_ms=1500, response_fields=PLUGIN,
        input_extra=[{"text": "chunk\n", "time": [1, 2], "filename": "other.py"}],
    ).json()  # fmt: skip
    assert list(answer) == PLUGIN
    assert answer["content"] == BEHIND
    assert FIM.repository in seen(server)[-1]


def test_a_warming_request_reads_the_prompt_and_writes_nothing(server: Running) -> None:
    """As llama.vim sends it while nobody types."""
    files = [{"text": "warm " * 30, "filename": "warm.py"}]
    answer = post(
        server, input_prefix="", input_suffix="", input_extra=files, prompt="", n_predict=0,
        temperature=0.0, samplers=[], cache_prompt=True, t_max_prompt_ms=1, t_max_predict_ms=1,
        response_fields=[""],
    )  # fmt: skip
    assert (answer.status_code, answer.json()) == (200, {})
    whole = post(server, input_extra=files, n_predict=0).json()
    assert (whole["content"], whole["tokens_predicted"], whole["timings"]["predicted_n"]) == (
        "", 0, 0,
    )  # fmt: skip
    assert whole["timings"]["cache_n"] > 60
    after = post(server, input_extra=files).json()
    assert after["timings"]["cache_n"] == whole["tokens_evaluated"] - 1
    assert after["content"] == BEHIND


def test_a_stream_says_what_the_whole_answer_says(server: Running) -> None:
    whole = post(server).json()
    *parts, last = frames(post(server, stream=True))
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert all(part["stop"] is False for part in parts)
    assert (last["stop"], last["content"], last["tokens"]) == (True, "", [])
    for name in ("stop_type", "tokens_predicted", "tokens_evaluated", "truncated", "model"):
        assert last[name] == whole[name]
    # The end token has no text, and comes with the last text or not at all.
    sent = [token for part in parts for token in part["tokens"]]
    assert whole["tokens"] in (sent, [*sent, END])


@pytest.mark.parametrize(
    ("fields", "content", "kind", "word"),
    [
        ({"n_predict": 3}, None, "limit", ""),
        ({"max_tokens": 3}, None, "limit", ""),
        ({"stop": ["nothing", "value"]}, "return the ", "word", "value"),
        ({"n_indent": 5}, "return the value", "limit", ""),
        ({"n_indent": 4}, "return the value\n    and the rest of the file\n", "eos", ""),
    ],
)
def test_why_it_ended_is_said(
    server: Running, fields: dict[str, Any], content: str | None, kind: str, word: str
) -> None:
    whole = post(server, **fields).json()
    *parts, last = frames(post(server, stream=True, **fields))
    for answer in (whole, last):
        assert (answer["stop_type"], answer["stopping_word"]) == (kind, word)
    assert "".join(part["content"] for part in parts) == whole["content"]
    if content is None:
        assert whole["tokens_predicted"] == 3
    else:
        assert whole["content"] == content
    assert server.is_idle()


def test_what_its_lines_have_ended_was_not_cancelled(server: Running) -> None:
    def counted(reason: str) -> str:
        page = httpx.get(f"{server.url}/metrics").text
        lines = [line for line in page.splitlines() if f'"{reason}"' in line]
        return "\n".join(lines)

    cancelled, length = counted("cancelled"), counted("length")
    assert post(server, n_indent=5).json()["stop_type"] == "limit"
    assert server.is_idle()
    assert counted("cancelled") == cancelled
    assert counted("length") != length


def test_a_file_that_is_too_long_is_cut_around_the_cursor() -> None:
    with running(gap_backend(context_size=128), policy="fixed") as server:
        answer = post(server, input_prefix="x" * 9000 + "END", n_predict=20).json()
        (prompt,) = seen(server)
    assert answer["truncated"] is True
    assert len(prompt) <= 128 - 20 - 1
    assert bytes(GapTokenizer().token_bytes(t)[0] for t in prompt[: prompt.index(FIM.suffix)][-3:])
    assert answer["content"] in BEHIND[: len(answer["content"])]


def test_a_prompt_is_cut_to_what_the_server_takes() -> None:
    options = ServerOptions(limits=Limits(max_prompt_tokens=60))
    with running(gap_backend(), options) as server:
        answer = post(server, input_prefix="x" * 300, input_suffix="y").json()
    assert answer["truncated"] is True
    assert answer["tokens_evaluated"] <= 60


def test_what_begins_another_file_ends_the_answer(server: Running) -> None:
    spelled = "ab<|file|>cd"
    assert post(server, input_suffix=spelled).json()["content"] == spelled
    for stop in sorted(FIM.ends):
        body = {"input_suffix": "ab", "logit_bias": {str(stop): 100}, "n_predict": 9}
        answer = post(server, **body).json()
        assert (answer["content"], answer["stop_type"]) == ("", "eos")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 3}, "input_suffix"),
        ({"prompt": ["x"]}, "prompt"),
        ({"input_extra": {"text": "x"}}, "input_extra"),
        ({"input_extra": [{"filename": "x"}]}, "input_extra"),
        ({"input_extra": [{"text": "x", "filename": 3}]}, "input_extra"),
        ({"input_extra": [{"text": "x"}] * 257}, "input_extra"),
        ({"response_fields": ["x"] * 65}, "response_fields"),
        ({"samplers": ["guess"]}, "samplers"),
        ({"n_predict": -2}, "n_predict"),
        ({"n": 2}, "n"),
        ({"n_probs": 3}, "n_probs"),
        ({"repeat_penalty": -1.0}, "repeat_penalty"),
        ({"top_p": 7.0}, "top_p"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"stop": [""]}, "stop"),
        ({"prediction": {"type": "content", "content": "x" * 99999}}, "prediction"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(
    server: Running, fields: dict[str, Any], param: str
) -> None:
    answer = post(server, **fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].split(".")[0] == param


def test_a_model_without_the_tokens_is_refused_by_its_name() -> None:
    with running(options=ServerOptions(model_name="toy")) as server:
        answer = post(server)
        suffixed = httpx.post(f"{server.api}/completions", json={"prompt": "a", "suffix": "b"})
    for refused, status in ((answer, 501), (suffixed, 400)):
        assert refused.status_code == status
        assert refused.json()["error"]["message"].startswith("toy was not taught to fill gaps")


def test_keys_are_asked_for_and_keep_prompts_apart() -> None:
    options = ServerOptions(api_keys=["one", "two"])
    with running(gap_backend(), options) as server:
        assert post(server).status_code == 401
        body = {"input_prefix": "x" * 50, "input_suffix": BEHIND}

        def cached(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            answer = httpx.post(f"{server.url}/infill", json=body, headers=headers).json()
            return int(answer["timings"]["cache_n"])

        assert (cached("one"), cached("two")) == (0, 0)
        assert cached("one") > 50


@pytest.fixture(scope="module")
def gap_client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.api, api_key="any", max_retries=0) as client:
        yield client


def test_suffix_fills_the_gap_for_openai_s_client(
    server: Running, gap_client: openai.OpenAI
) -> None:
    answer = gap_client.completions.create(
        model="m", prompt="def f(", suffix=BEHIND, max_tokens=100
    )
    assert answer.choices[0].text == BEHIND
    assert answer.choices[0].finish_reason == "stop"
    stream = gap_client.completions.create(
        model="m", prompt=["a", "b"], suffix="the <|mid|>", max_tokens=100, stream=True
    )
    texts = ["", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == ["the <|mid|>"] * 2
    assert all(prompt.count(FIM.middle) == 1 for prompt in seen(server))


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompt": [5, 6]}, "prompt"), ({"echo": True}, "echo"), ({"prompt": "x" * 2000}, "prompt")],
)
def test_what_suffix_cannot_be_given_with_is_refused(
    server: Running, fields: dict[str, Any], param: str
) -> None:
    body = {"prompt": "x", "suffix": "y", **fields}
    answer = httpx.post(f"{server.api}/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
