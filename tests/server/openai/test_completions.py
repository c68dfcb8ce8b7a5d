"""Text completions over a real socket."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.server.openai.test_chat import raw_frames
from tests.server.toys import PIECES, TOKENIZER, Running

PROMPT = "<|user|>say:%s<|end|><|answer|>"


def post(server: Running, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.api}/completions", json=body)


def test_a_prompt_is_continued(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="m", prompt=PROMPT % "hello")
    assert answer.object == "text_completion"
    assert answer.choices[0].text == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(TOKENIZER.encode("hello")) + 1


def test_prompts_come_in_four_forms(server: Running) -> None:
    text, other = PROMPT % "hello", PROMPT % "you"
    ids, more = TOKENIZER.encode(text), TOKENIZER.encode(other)
    for prompt in (text, [text], ids, [ids]):
        answer = post(server, prompt=prompt).json()
        assert [choice["text"] for choice in answer["choices"]] == ["hello"]
    for prompts in ([text, other], [ids, more]):
        answer = post(server, prompt=prompts, n=2).json()
        assert [c["text"] for c in answer["choices"]] == ["hello", "hello", "you", "you"]
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == len(ids) + len(more)


def test_a_stream_says_what_the_whole_answer_says(server: Running) -> None:
    body: dict[str, Any] = {
        "prompt": ["the and", "tell"], "seed": 3, "n": 2, "max_tokens": 40, "logprobs": 2,
    }  # fmt: skip
    whole = post(server, **body).json()
    frames = raw_frames(
        server, {**body, "stream": True, "stream_options": {"include_usage": True}}, "completions"
    )
    *chunks, last = frames
    assert last["choices"] == []
    assert {k: v for k, v in last["usage"].items() if k != "prompt_tokens_details"} == {
        k: v for k, v in whole["usage"].items() if k != "prompt_tokens_details"
    }
    for given in whole["choices"]:
        parts = [f["choices"][0] for f in chunks if f["choices"][0]["index"] == given["index"]]
        assert "".join(part["text"] for part in parts) == given["text"]
        reasons = [part["finish_reason"] for part in parts if part["finish_reason"]]
        assert reasons == [given["finish_reason"]]
        joined: dict[str, list[Any]] = {}
        for part in parts:
            for name, values in part["logprobs"].items():
                joined.setdefault(name, []).extend(values)
        assert joined == given["logprobs"]
    assert all(frame["usage"] is None for frame in chunks)


def test_log_probabilities_in_the_old_shape(server: Running) -> None:
    answer = post(server, prompt=PROMPT % "a € b", logprobs=3).json()
    (choice,), usage = answer["choices"], answer["usage"]
    logprobs = choice["logprobs"]
    lengths = {name: len(values) for name, values in logprobs.items()}
    assert set(lengths.values()) == {usage["completion_tokens"]}
    assert all(len(top) == 3 for top in logprobs["top_logprobs"])
    euro = [f"bytes:\\x{byte:02x}" for byte in "€".encode()]
    assert logprobs["tokens"] == ["a", " ", *euro, " ", "b", "token_id:0"]
    assert logprobs["text_offset"] == [0, 1, 2, 2, 2, 3, 4, 5]
    for token, value, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == value <= 0
    assert post(server, prompt="x").json()["choices"][0]["logprobs"] is None


def test_echo_gives_the_prompt_back(server: Running) -> None:
    assert post(server, prompt="ab", echo=True, max_tokens=0).json()["choices"][0]["text"] == "ab"
    frames = raw_frames(
        server, {"prompt": "ab", "echo": True, "max_tokens": 3, "stream": True}, "completions"
    )
    assert frames[0]["choices"][0]["text"].startswith("ab")


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_echo_with_log_probabilities_scores_the_prompt(server: Running, max_tokens: int) -> None:
    given: dict[str, Any] = {"prompt": PROMPT % "a € b" + "say more" * 20, "logprobs": 2}
    given |= {"echo": True, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    (choice,) = post(server, **given).json()["choices"]
    scored = choice["logprobs"]
    prompt = TOKENIZER.encode(given["prompt"])
    assert {len(values) for values in scored.values()} == {len(prompt) + max_tokens}
    assert scored["token_logprobs"][0] is None
    assert scored["top_logprobs"][0] is None
    assert all(value <= 0 for value in scored["token_logprobs"][1:])
    assert all(len(top) == 2 for top in scored["top_logprobs"][1:])
    assert scored["text_offset"][len(prompt) :] == sorted(scored["text_offset"][len(prompt) :])
    shown = [name for name in scored["tokens"] if name[:5] not in ("token", "bytes")]
    assert "".join(shown) == choice["text"].replace("€", "")
    # The same as when the model writes these tokens itself.
    for place in (1, len(prompt) - 1):
        before = {**given, "prompt": prompt[:place], "max_tokens": 1, "echo": False}
        before |= {"logit_bias": {str(prompt[place]): 100}, "min_tokens": 1}
        (written,) = post(server, **before).json()["choices"]
        value = scored["token_logprobs"][place]
        assert written["logprobs"]["token_logprobs"][0] == pytest.approx(value, abs=1e-4)
    again = post(server, **given, speculative={"enabled": False}).json()["choices"][0]
    assert again == choice
    frames = raw_frames(server, {**given, "stream": True}, "completions")
    parts = [frame["choices"][0] for frame in frames if frame["choices"]]
    assert "".join(part["text"] for part in parts) == choice["text"]
    joined: dict[str, list[Any]] = {}
    for part in parts:
        for name, values in part["logprobs"].items():
            joined.setdefault(name, []).extend(values)
    assert joined == scored


def test_several_prompts_and_answers_are_each_scored(server: Running) -> None:
    given = {"prompt": ["ab", "c"], "n": 2, "echo": True, "logprobs": 1, "max_tokens": 1}
    choices = post(server, **given).json()["choices"]
    scores = [choice["logprobs"]["token_logprobs"] for choice in choices]
    lengths = [len(TOKENIZER.encode(prompt)) + 1 for prompt in ("ab", "ab", "c", "c")]
    assert [len(values) for values in scores] == lengths
    assert scores[0][:-1] == scores[1][:-1]


def test_the_default_budget_is_sixteen_tokens(server: Running) -> None:
    for fields, count in (({}, 16), ({"max_tokens": 20}, 20)):
        answer = post(server, prompt="tell", ignore_eos=True, **fields).json()
        assert answer["usage"]["completion_tokens"] == count
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [len(PIECES)]}, "prompt"),
        ({"prompt": [len(PIECES)], "echo": True}, "prompt"),
        ({"prompt": ["x", 3]}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": ["x"] * 65, "n": 2}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(
    server: Running, fields: dict[str, Any], param: str
) -> None:
    answer = post(server, **{"prompt": "x", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].split(".")[0] == param


def test_one_wrong_prompt_refuses_all_and_leaves_nothing_behind(server: Running) -> None:
    for stream in (False, True):
        answer = post(server, prompt=[[5, 6], [len(PIECES)], [7]], max_tokens=50, stream=stream)
        assert answer.status_code == 400
        assert server.is_idle()


def test_json_may_be_asked_for(server: Running) -> None:
    answer = post(
        server, prompt="tell", max_tokens=300, seed=1, temperature=0,
        response_format={"type": "json_schema", "json_schema": {"schema": {"enum": ["a", 5]}}},
    ).json()  # fmt: skip
    assert json.loads(answer["choices"][0]["text"]) in ("a", 5)
