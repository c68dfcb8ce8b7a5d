"""Chat over a real socket, with OpenAI's own client."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import openai
import pytest

from copyahead.chat.messages import checked
from copyahead.server.openai.legacy import messages_of
from copyahead.server.openai.wire import ChatRequest
from tests.server.toys import (
    CALL,
    LOOK,
    SAID_CALLS,
    TOKENIZER,
    WRITE,
    Running,
    running,
    toy_template,
)

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
    for name in ("look", "write")
]
COPIED = "the and the and ab the and the and ab the and the and ab"


def said(text: str) -> Any:
    return [{"role": "user", "content": f"say:{text}"}]


def babble(number: int = 0) -> Any:
    return [{"role": "user", "content": f"tell me {number}"}]


def test_an_answer_has_text_reason_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=said("hello"))
    choice, usage = answer.choices[0], answer.usage
    assert answer.object == "chat.completion"
    assert choice.message.content == "hello"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert usage is not None
    assert usage.completion_tokens == len(TOKENIZER.encode("hello")) + 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    options: Any = {"model": "m", "messages": babble(), "seed": 3, "max_tokens": 60, "n": 2}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    texts, reasons, counts = ["", ""], [0, 0], [0, 0]
    last = None
    usages = []
    for chunk in client.chat.completions.create(
        **options, logprobs=True, top_logprobs=2, stream=True,
        stream_options={"include_usage": True},
    ):  # fmt: skip
        last = chunk
        usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] += choice.finish_reason is not None
            counts[choice.index] += len((choice.logprobs and choice.logprobs.content) or [])
    assert texts == [choice.message.content for choice in whole.choices]
    assert texts[0] != texts[1]
    assert reasons == [1, 1]
    assert last is not None
    assert last.choices == []
    assert all(usage is None for usage in usages[:-1])
    given, streamed = whole.usage, usages[-1]
    assert given is not None
    assert streamed is not None
    assert streamed.completion_tokens == given.completion_tokens == sum(counts)
    assert streamed.prompt_tokens == given.prompt_tokens


def test_without_include_usage_no_chunk_has_usage(server: Running) -> None:
    body = {"model": "m", "messages": said("abc"), "stream": True}
    frames = raw_frames(server, body)
    assert all("usage" not in frame for frame in frames)
    assert all(frame["choices"] for frame in frames)
    assert [f for f in frames if "timings" in f] == frames[-1:]


def raw_frames(server: Running, body: dict[str, Any], path: str = "chat/completions") -> list[Any]:
    """The documents of a stream, whose last frame must be [DONE]."""
    answer = httpx.post(f"{server.api}/{path}", json=body)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_every_chunk_has_the_keys_that_clients_read(server: Running) -> None:
    frames = raw_frames(server, {"messages": said("abc"), "stream": True})
    assert frames[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len({frame["id"] for frame in frames}) == 1
    for frame in frames:
        assert {"id", "object", "created", "model", "choices"} <= frame.keys()
        assert frame["object"] == "chat.completion.chunk"
        assert {"index", "delta", "finish_reason", "logprobs"} <= frame["choices"][0].keys()
    assert [f["choices"][0]["finish_reason"] for f in frames[:-1]] == [None] * (len(frames) - 1)
    assert frames[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("text", "calls", "content"), SAID_CALLS)
def test_tool_calls_are_accumulated_by_the_client(
    client: openai.OpenAI, text: str, calls: list[Any], content: str
) -> None:
    whole = client.chat.completions.create(model="m", messages=said(text), tools=TOOLS)
    reason = "tool_calls" if calls else "stop"
    assert whole.choices[0].finish_reason == reason
    message = whole.choices[0].message
    assert read_calls(message) == calls
    assert (message.content or "") == content
    with client.chat.completions.stream(model="m", messages=said(text), tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert read_calls(final.choices[0].message) == calls
    assert final.choices[0].finish_reason == reason
    ids = [call.id for call in final.choices[0].message.tool_calls or []]
    assert len(set(ids)) == len(calls)


@pytest.mark.parametrize("arguments", ["", " \n", None, {}, "{}"])
def test_a_call_without_arguments_may_come_back(server: Running, arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    messages = [{"role": "assistant", "tool_calls": [call]}, *said("ok")]
    answer = httpx.post(f"{server.api}/chat/completions", json={"messages": messages})
    assert answer.status_code == 200, answer.text
    assert checked(messages)[0]["tool_calls"][0]["function"]["arguments"] == "{}"


FUNCTIONS: Any = [tool["function"] for tool in TOOLS]


@pytest.mark.parametrize("choice", [None, "auto", {"name": "look"}])
def test_functions_as_they_were_before_tools(client: openai.OpenAI, choice: Any) -> None:
    told: Any = {"model": "m", "messages": said(f"{LOOK}\n{WRITE}"), "functions": FUNCTIONS}
    told |= {} if choice is None else {"function_call": choice}
    (whole,) = client.chat.completions.create(**told).choices
    assert whole.finish_reason == "function_call"
    assert whole.message.tool_calls is None
    assert whole.message.function_call is not None
    assert whole.message.function_call.name == "look"
    assert json.loads(whole.message.function_call.arguments) == {"a": 1}
    name, arguments, reasons = "", "", []
    for chunk in client.chat.completions.create(**told, stream=True):
        (part,) = chunk.choices
        reasons += [part.finish_reason] if part.finish_reason else []
        if part.delta.function_call is not None:
            name += part.delta.function_call.name or ""
            arguments += part.delta.function_call.arguments or ""
    assert (name, json.loads(arguments), reasons) == ("look", {"a": 1}, ["function_call"])
    (none,) = client.chat.completions.create(**{**told, "function_call": "none"}).choices
    assert none.message.content == f"{LOOK}\n{WRITE}"


def test_earlier_calls_may_be_functions_or_custom_tools() -> None:
    messages = [
        {"role": "assistant", "function_call": {"name": "look", "arguments": ""}},
        {"role": "function", "name": "look", "content": "seen"},
        {"role": "assistant", "tool_calls": [
            {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "+é"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "done"},
    ]  # fmt: skip
    read = checked(messages_of(ChatRequest.model_validate({"messages": messages})))
    assert [message["role"] for message in read] == ["assistant", "tool", "assistant", "tool"]
    assert read[0]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert read[1]["tool_call_id"] == read[0]["tool_calls"][0]["id"]
    assert read[2]["tool_calls"][0]["function"] == {
        "name": "patch", "arguments": '{"input": "+é"}'
    }  # fmt: skip
    assert read[3]["name"] == "patch"


def test_tools_that_are_no_functions_are_skipped_as_by_the_other_route(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    custom = {"type": "custom", "custom": {"name": "patch"}}
    body = {"messages": said(LOOK), "tools": [custom, *TOOLS]}
    flat = [{"type": "function", **function} for function in FUNCTIONS]
    other = {"input": said(LOOK), "tools": [{"type": "custom", "name": "patch"}, *flat]}
    for path, asked in (("chat/completions", body), ("responses", other)):
        with caplog.at_level(logging.INFO, "copyahead.chat.tools.elsewhere"):
            answer = httpx.post(f"{server.api}/{path}", json=asked)
        assert answer.status_code == 200, answer.text
        assert '"look"' in answer.text
        (line,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
        assert line.endswith(": custom")
        caplog.clear()


def read_calls(message: Any) -> list[tuple[str, Any]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]


def test_halves_of_surrogate_pairs_in_arguments_are_question_marks(server: Running) -> None:
    body = {"messages": said(CALL % ("look", r'"\ud83d\ud83d\ude00"')), "tools": TOOLS}
    whole = httpx.post(f"{server.api}/chat/completions", json=body).json()
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    assert call["function"]["arguments"] == "?😀"
    frames = raw_frames(server, {**body, "stream": True})
    deltas = [frame["choices"][0]["delta"] for frame in frames]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == "?😀"


def test_the_first_delta_of_a_call_names_it_and_has_no_arguments(server: Running) -> None:
    body = {"messages": said(CALL % ("look", '{"a": 1}')), "tools": TOOLS, "stream": True}
    deltas = [
        call
        for frame in raw_frames(server, body)
        for call in frame["choices"][0]["delta"].get("tool_calls", [])
    ]
    first, *later = deltas
    assert {"index", "id", "type", "function"} == first.keys()
    assert first["function"] == {"name": "look", "arguments": ""}
    assert all({"index", "function"} == call.keys() for call in later)
    assert json.loads("".join(call["function"]["arguments"] for call in later)) == {"a": 1}


def test_a_call_is_text_where_no_tool_is_offered(client: openai.OpenAI) -> None:
    text = CALL % ("look", "{}")
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = client.chat.completions.create(model="m", messages=said(text), **options)
        assert answer.choices[0].message.content == text
        assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "write"}}]
)
def test_a_call_that_is_asked_for_comes_whatever_the_model_would_say(
    client: openai.OpenAI, choice: Any
) -> None:
    tools: Any = [
        {
            "type": "function",
            "function": {
                "name": "write",
                "parameters": {
                    "type": "object",
                    "properties": {"kind": {"enum": ["x", "y"]}},
                    "required": ["kind"],
                    "additionalProperties": False,
                },
            },
        }
    ]
    answer = client.chat.completions.create(
        model="m", messages=babble(), tools=tools, tool_choice=choice, max_tokens=400,
        parallel_tool_calls=False,
    )  # fmt: skip
    calls = read_calls(answer.choices[0].message)
    assert calls[0][0] == "write"
    assert calls[0][1]["kind"] in ("x", "y")
    assert answer.choices[0].finish_reason == "tool_calls"


def test_an_answer_follows_a_json_schema(client: openai.OpenAI) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="m",
        messages=babble(),
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    content = json.loads(answer.choices[0].message.content or "")
    assert content.keys() == {"ok", "n"}
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("thinking", ["", "<think>"])
def test_tools_may_be_called_where_the_answer_has_a_schema(thinking: str) -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
    before = "#" * len(TOKENIZER.encode(thinking)) + "hm</think>\n\n" if thinking else ""
    call = CALL % ("look", '{"a": 1}')
    cases: Any = [(call, [("look", {"a": 1})], None), ('{"a": 2}', [], '{"a": 2}')]
    with running(template=toy_template(thinking)) as server:
        for text, calls, content in cases:
            body = {"messages": said(before + text), "response_format": form, "tools": TOOLS}
            answer = httpx.post(f"{server.api}/chat/completions", json={**body, "temperature": 0})
            message = answer.json()["choices"][0]["message"]
            found = [call["function"] for call in message.get("tool_calls", ())]
            assert [(f["name"], json.loads(f["arguments"])) for f in found] == calls
            assert message["content"] == content


def test_a_schema_that_does_not_compile_is_refused_before_any_work(client: openai.OpenAI) -> None:
    wrong: Any = ({"type": "nonsense"}, {"type": "string", "pattern": "("})
    for schema in wrong:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model="m", messages=babble(), stream=True,
                response_format={
                    "type": "json_schema", "json_schema": {"name": "x", "schema": schema}
                },
            )  # fmt: skip
        assert caught.value.param == "response_format"


def test_log_probabilities_have_a_token_each(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m", messages=said("abc"), logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    assert "".join(entry.token for entry in logprobs.content) == "abc"
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob <= 0
    bare = client.chat.completions.create(model="m", messages=said("abc"), logprobs=True)
    assert bare.choices[0].logprobs is not None
    assert bare.choices[0].logprobs.content is not None
    assert bare.choices[0].logprobs.content[0].top_logprobs == []


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [
        (None, "one END two", "stop"),
        ([], "one END two", "stop"),
        ("END", "one ", "stop"),
        (["zzz", " two"], "one END", "stop"),
        ([" "], "one", "stop"),
        (["a", "b", "c", "d", "END"], "one ", "stop"),
    ],
)
def test_stop_in_every_form(client: openai.OpenAI, stop: Any, text: str, reason: str) -> None:
    answer = client.chat.completions.create(model="m", messages=said("one END two"), stop=stop)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == reason


def test_seeded_answers_are_the_same_and_others_are_not(client: openai.OpenAI) -> None:
    def write(**options: Any) -> Any:
        answer = client.chat.completions.create(
            model="m", messages=babble(), max_tokens=40, **options
        )
        return answer.choices[0].message.content

    assert write(seed=5) == write(seed=5)
    assert write(seed=5) != write(seed=6)
    assert write(seed=-1) == write(seed=2**32 - 1)
    assert write(temperature=0) == write(temperature=0, seed=9)
    assert write() != write()


def test_a_bias_bars_a_token(client: openai.OpenAI) -> None:
    (token,) = TOKENIZER.encode("x")
    answer = client.chat.completions.create(
        model="m", messages=said("axb"), logit_bias={str(token): -100}, temperature=0
    )
    assert "x" not in (answer.choices[0].message.content or "")


def test_text_is_the_same_with_and_without_copying(server: Running) -> None:
    body = {"messages": said(COPIED), "include_copied": True, "temperature": 0}
    on = httpx.post(f"{server.api}/chat/completions", json=body).json()
    off = httpx.post(
        f"{server.api}/chat/completions", json={**body, "speculative": {"enabled": False}}
    ).json()
    assert on["choices"][0]["message"] == off["choices"][0]["message"]
    assert on["timings"]["draft_n_accepted"] > 10
    assert on["timings"]["rounds"] < on["usage"]["completion_tokens"] / 2
    assert on["timings"]["tokens_per_round"] > 2
    assert off["timings"]["draft_n"] == 0
    assert off["timings"]["rounds"] == off["usage"]["completion_tokens"]
    assert "".join(run["text"] for run in on["choices"][0]["copied"]) == COPIED
    assert any(run["copied"] for run in on["choices"][0]["copied"])
    assert [run["copied"] for run in off["choices"][0]["copied"]] == [False]
    sources = on["timings"]["by_source"]
    assert sum(count["accepted"] for count in sources.values()) == on["timings"]["draft_n_accepted"]


def test_copied_text_is_marked_in_streams_too(server: Running) -> None:
    frames = raw_frames(server, {"messages": said(COPIED), "include_copied": True, "stream": True})
    runs = [run for f in frames for c in f["choices"] for run in c.get("copied", [])]
    assert "".join(run["text"] for run in runs) == COPIED
    assert any(run["copied"] for run in runs)
    plain = raw_frames(server, {"messages": said(COPIED), "stream": True})
    assert all("copied" not in choice for frame in plain for choice in frame["choices"])


def test_sources_are_told_where_they_are_asked_for(server: Running) -> None:
    body = {"messages": said(COPIED), "temperature": 0, "include_sources": True}
    answer = httpx.post(f"{server.api}/chat/completions", json=body).json()
    whole = answer["choices"][0]["copyahead"]["runs"]
    frames = raw_frames(server, {**body, "stream": True})
    told = [c["copyahead"] for f in frames for c in f["choices"] if "copyahead" in c]
    runs = [run for one in told for run in one["runs"]]
    assert runs == whole
    assert "".join(run["text"] for run in runs) == COPIED
    assert {tuple(run) for run in runs} == {("text", "source", "match", "drafted", "accepted")}
    copies = [run for run in runs if run["source"] is not None]
    assert {run["source"] for run in copies} <= {"prompt", "output"}
    assert all(run["match"] > 0 and 0 < run["accepted"] <= run["drafted"] for run in copies)
    counts = answer["timings"]["by_source"]
    for source, count in counts.items():
        text = "".join(run["text"] for run in copies if run["source"] == source)
        # The last token that is accepted ends the turn, and has no text.
        assert count["accepted"] - len(TOKENIZER.encode(text)) in (0, 1)
    plain = raw_frames(server, {"messages": said(COPIED), "stream": True})
    assert all("copyahead" not in choice for frame in plain for choice in frame["choices"])
    del body["include_sources"]
    choice = httpx.post(f"{server.api}/chat/completions", json=body).json()["choices"][0]
    assert "copyahead" not in choice


def test_a_request_chooses_its_policy_and_its_longest_draft(server: Running) -> None:
    def drafted(speculative: dict[str, Any]) -> int:
        body = {"messages": said(COPIED), "speculative": speculative}
        timings = httpx.post(f"{server.api}/chat/completions", json=body).json()["timings"]
        return int(timings["draft_n"])

    assert drafted({"max_draft_tokens": 0}) == 0
    assert 0 < drafted({"policy": "single"}) < drafted({"policy": "fixed"})


def test_a_prediction_is_copied_from_and_counted(client: openai.OpenAI) -> None:
    text = "Sphinx of black quartz, judge my vow; pack my box with five dozen jugs."
    options: Any = {
        "model": "m", "messages": said(text), "extra_body": {"speculative": {"policy": "priced"}},
    }  # fmt: skip

    def ask(**more: Any) -> tuple[Any, Any]:
        answer = client.chat.completions.create(**options, **more)
        assert answer.choices[0].message.content == text
        return answer.usage.completion_tokens_details, answer.model_dump()["timings"]["by_source"]

    details, _ = ask()
    assert details.accepted_prediction_tokens == details.rejected_prediction_tokens == 0
    wrong = text.replace("five", "5")
    parts = [{"type": "text", "text": wrong[:20]}, {"type": "text", "text": wrong[20:]}]
    for content in (wrong, parts):
        details, sources = ask(prediction={"type": "content", "content": content})
        assert details.accepted_prediction_tokens > 5
        drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens
        assert drafted == sources["prediction"]["drafted"]


def test_the_next_turn_reads_only_what_is_new(client: openai.OpenAI) -> None:
    first = said("one two three four five")
    answer = client.chat.completions.create(model="m", messages=first)
    turn = [
        *first,
        {"role": "assistant", "content": answer.choices[0].message.content},
        {"role": "user", "content": "say:x"},
    ]
    second = client.chat.completions.create(model="m", messages=turn)
    assert answer.usage is not None
    assert second.usage is not None
    details = second.usage.prompt_tokens_details
    assert details is not None
    assert (details.cached_tokens or 0) >= answer.usage.total_tokens - 1


def test_thinking_has_its_own_field() -> None:
    with running(template=toy_template()) as server:
        text = "<think>\nhm, é\n</think>\n\nyes </think>"
        url = f"{server.api}/chat/completions"
        answer = httpx.post(url, json={"messages": said(text)}).json()
        message, usage = answer["choices"][0]["message"], answer["usage"]
        assert message["reasoning_content"] == "hm, é"
        assert message["content"] == "yes </think>"
        reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
        assert 0 < reasoning < usage["completion_tokens"]
        frames = raw_frames(server, {"messages": said(text), "stream": True})
        deltas = [frame["choices"][0]["delta"] for frame in frames]
        assert "".join(d.get("reasoning_content", "") for d in deltas) == "hm, é"
        assert "".join(d.get("content", "") for d in deltas) == "yes </think>"


def test_thinking_that_the_prompt_opens_may_come_before_json() -> None:
    opening = "<think>"
    # The toy takes what the prompt holds of its answer for something that it has said.
    unsaid = "#" * len(TOKENIZER.encode(opening))
    with running(template=toy_template(opening)) as server:
        body = {
            "messages": said(unsaid + 'hm</think>{"a": 1}'),
            "response_format": {"type": "json_object"},
            "temperature": 0,
        }
        answer = httpx.post(f"{server.api}/chat/completions", json=body).json()
        message = answer["choices"][0]["message"]
        assert message["reasoning_content"] == "hm"
        assert json.loads(message["content"]) == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"dry_base": 0}, "dry_base"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"seed": "1"}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_completion_tokens": -2}, "max_completion_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"functions": [{"name": 3}]}, "functions[0]"),
        ({"functions": FUNCTIONS, "tools": TOOLS}, "functions"),
        ({"functions": FUNCTIONS, "function_call": {"name": "rm"}}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": "maybe"}, "function_call"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"speculative": {"policy": "none such"}}, "speculative.policy"),
        ({"speculative": {"max_draft_tokens": -1}}, "speculative.max_draft_tokens"),
        ({"prediction": {"type": "content", "content": 3}}, "prediction.content"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages.0.role"),
        ({"messages": "hello"}, "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_value_is_refused_by_its_name(
    server: Running, fields: dict[str, Any], param: str, stream: bool
) -> None:
    body = {"messages": said("x"), **({"stream": True} if stream else {}), **fields}
    answer = httpx.post(f"{server.api}/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split(".")[-1].split("[")[0] in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}


def test_unknown_fields_are_ignored(server: Running) -> None:
    body = {
        "messages": [{**said("x")[0], "strange": 1}],
        "mystery": {"a": 1},
        "metadata": {"a": "b"},
        "store": True,
        "reasoning_effort": "low",
    }
    answer = httpx.post(f"{server.api}/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "x"


@pytest.mark.parametrize(
    ("max_tokens", "written", "reason"),
    [(0, 0, "length"), (1, 1, "length"), (3, 3, "length"), (4, 4, "stop"), (-1, 4, "stop"),
     (None, 4, "stop"), (10**9, 4, "stop")],
)  # fmt: skip
def test_every_budget_has_a_defined_result(
    server: Running, max_tokens: int | None, written: int, reason: str
) -> None:
    body = {"messages": said("xyz"), "max_tokens": max_tokens, "temperature": 0}
    answer = httpx.post(f"{server.api}/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == written
    assert answer["choices"][0]["finish_reason"] == reason
    frames = raw_frames(server, {**body, "stream": True})
    assert frames[-1]["choices"][0]["finish_reason"] == reason


def test_content_may_come_in_parts(server: Running) -> None:
    parts = [{"type": "text", "text": "say:a"}, {"type": "text", "text": "b"}]
    body: Any = {"messages": [{"role": "user", "content": parts}]}
    answer = httpx.post(f"{server.api}/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "ab"


def test_turn_ends_never_show_as_text(server: Running) -> None:
    body = {"messages": said("abc"), "ignore_eos": True, "max_tokens": 8}
    whole = httpx.post(f"{server.api}/chat/completions", json=body).json()
    assert whole["choices"][0]["message"]["content"].startswith("abc")
    assert "<|end|>" not in json.dumps(whole)
