"""The Messages API over a real socket, with Anthropic's own client and its streaming helper."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from copyahead.server.anthropic.messages_input import MessagesRequest, messages_of
from copyahead.server.service import ServerOptions
from tests.server.toys import (
    CALL,
    LOOK,
    SAID_CALLS,
    TOKENIZER,
    WRITE,
    Running,
    running,
    serving_model,
    toy_backend,
    toy_template,
    typed_events,
)

TOOLS: Any = [
    {"name": name, "description": "d", "input_schema": {"type": "object", "properties": {"a": {}}}}
    for name in ("look", "write")
]


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def said(text: str, **more: Any) -> Any:
    message = {"role": "user", "content": f"say:{text}"}
    return {"model": "m", "max_tokens": 300, "messages": [message], **more}


def plain(message: Any) -> list[dict[str, Any]]:
    """The blocks as they came, without what the helper adds."""
    return [
        {name: value for name, value in block.to_dict().items() if name != "parsed_output"}
        for block in message.content
    ]


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """A stream's events."""
    url = f"{server.api}/messages?beta=true"
    return typed_events(httpx.post(url, json={**body, "stream": True}))


def test_an_answer_has_text_and_usage(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**said("hello", system="Obey."))
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": "hello"}]
    assert answer.role == "assistant"
    assert answer.stop_reason == "end_turn"
    assert answer.stop_sequence is None
    assert answer.usage.output_tokens == len(TOKENIZER.encode("hello")) + 1
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) > 5


def test_the_streaming_helper_gives_the_same_message(client: anthropic.Anthropic) -> None:
    options: Any = {
        "model": "m", "max_tokens": 40, "messages": [{"role": "user", "content": "babble"}],
        "extra_body": {"seed": 3},
    }  # fmt: skip
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) > 5
    assert final.content[0].type == "text"
    assert "".join(texts) == final.content[0].text
    assert plain(final) == plain(whole)
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 40
    assert final.usage.cache_read_input_tokens is not None
    total = final.usage.input_tokens + final.usage.cache_read_input_tokens
    assert (
        total == client.messages.count_tokens(model="m", messages=options["messages"]).input_tokens
    )


def test_events_come_in_order_and_one_block_at_a_time(server: Running) -> None:
    events = events_of(server, **said(f"ab and {LOOK}\n{WRITE}\nthe end", tools=TOOLS))
    types = [event["type"] for event in events]
    assert types[:2] == ["message_start", "ping"]
    start = events[0]["message"]
    assert start["content"] == []
    assert start["stop_reason"] is None
    assert start["usage"]["input_tokens"] > 0
    assert start["usage"]["output_tokens"] == 0
    assert types[-2:] == ["message_delta", "message_stop"]
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] > 20
    shape = [
        (event["type"].removeprefix("content_block_"), event["index"])
        for event, before in zip(events[2:-2], events[1:-3], strict=True)
        if (event["type"], event["index"]) != (before["type"], before.get("index"))
    ]
    assert shape == [(kind, index) for index in range(4) for kind in ("start", "delta", "stop")]
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use", "text"]
    assert blocks[1]["input"] == blocks[2]["input"] == {}
    assert blocks[1]["id"] != blocks[2]["id"]


@pytest.mark.parametrize(("text", "calls", "content"), SAID_CALLS)
def test_calls_are_accumulated_by_the_client(
    client: anthropic.Anthropic, text: str, calls: list[Any], content: str
) -> None:
    whole = client.messages.create(**said(text, tools=TOOLS))
    with client.messages.stream(**said(text, tools=TOOLS)) as stream:
        final = stream.get_final_message()
    answers: list[Any] = [whole, final]
    for answer in answers:
        used = [block for block in answer.content if block.type == "tool_use"]
        assert [(block.name, block.input) for block in used] == calls
        assert len({block.id for block in used}) == len(calls)
        assert "".join(b.text for b in answer.content if b.type == "text") == content
        assert answer.stop_reason == ("tool_use" if calls else "end_turn")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, None),
        ({"type": "tool", "name": "write"}, ["write"]),
        ({"type": "none"}, []),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["look"]),
    ],
)
def test_tool_choice(client: anthropic.Anthropic, choice: Any, names: list[str] | None) -> None:
    answer = client.messages.create(**said(f"{LOOK}\n{WRITE}", tools=TOOLS, tool_choice=choice))
    used = [block.name for block in answer.content if block.type == "tool_use"]
    assert used if names is None else used == names


def test_arguments_that_are_no_object_are_not_lost(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**said(CALL % ("look", "[1, 2"), tools=TOOLS))
    assert answer.content[0].type == "tool_use"
    assert answer.content[0].input == {"arguments": "[1, 2}"}


@pytest.mark.parametrize("depth", [500, 970, 1400])
def test_arguments_that_are_nested_too_deeply_are_a_text(depth: int) -> None:
    brackets = '{"a": ' + "[" * depth
    said_it = {"content": "say:" + CALL % ("look", brackets + "]" * depth + "}"), "role": "user"}
    body: dict[str, Any] = {"model": "m", "max_tokens": 6000, "messages": [said_it], "tools": TOOLS}
    with running(toy_backend(context_size=16384)) as server:
        (block,) = httpx.post(f"{server.api}/messages", json=body).json()["content"]
        assert block["input"]["arguments"].startswith(brackets)
        events = events_of(server, **body)
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


def test_halves_of_surrogate_pairs_are_question_marks(client: anthropic.Anthropic) -> None:
    text = CALL % ("look", r'{"a": ["\ud83d", "\ud83d\ude00"]}')
    (block,) = client.messages.create(**said(text, tools=TOOLS)).content
    assert block.type == "tool_use"
    assert block.input == {"a": ["?", "😀"]}


@pytest.mark.parametrize(
    ("stops", "text", "reason", "sequence"),
    [
        (["c"], "ab", "stop_sequence", "c"),
        (["x", "cd", "bc"], "a", "stop_sequence", "bc"),
        (["x"], "abcd", "end_turn", None),
        ([], "abcd", "end_turn", None),
    ],
)
def test_stop_sequences(
    client: anthropic.Anthropic, stops: list[str], text: str, reason: str, sequence: str | None
) -> None:
    whole = client.messages.create(**said("abcd", stop_sequences=stops))
    with client.messages.stream(**said("abcd", stop_sequences=stops)) as stream:
        final = stream.get_final_message()
    for answer in (whole, final):
        assert answer.content[0].to_dict()["text"] == text
        assert (answer.stop_reason, answer.stop_sequence) == (reason, sequence)


def test_the_answer_goes_on_from_what_it_is_given(client: anthropic.Anthropic) -> None:
    request = said("hello you")
    request["messages"].append({"role": "assistant", "content": "hello"})
    answer = client.messages.create(**request)
    assert answer.content[0].to_dict()["text"] == " you"


def test_thinking_is_a_block_of_its_own() -> None:
    with running(template=toy_template("<think>")) as server:
        request = said("<think>ab and</think>\n\nthe")
        events = events_of(server, **request)
        with anthropic.Anthropic(base_url=server.url, api_key="any") as client:
            answer = client.messages.create(**request)
            with client.messages.stream(**request) as stream:
                final = stream.get_final_message()
    starts = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]
    assert plain(answer) == plain(final)
    assert answer.content[0].type == "thinking"
    assert answer.content[0].thinking == "ab and"
    assert answer.content[1].to_dict()["text"] == "the"


def test_the_headers_name_the_answer(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**said("a"))
    assert answer._request_id == answer.id
    with client.messages.stream(**said("a")) as stream:
        assert stream.request_id == stream.get_final_message().id


def test_an_empty_answer_is_an_empty_block(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**said(""))
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": ""}]


def test_the_answer_follows_a_schema(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"],
              "additionalProperties": False}  # fmt: skip
    answer = client.messages.create(
        **said("no", output_config={"format": {"type": "json_schema", "schema": schema}})
    )
    assert json.loads(answer.content[0].to_dict()["text"]) == {"x": 1}


def test_what_a_coding_agent_sends(server: Running) -> None:
    body: dict[str, Any] = {
        "model": "m", "max_tokens": 100, "temperature": 1, "metadata": {"user_id": "u"},
        "system": [
            {"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": " an agent."},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "look"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": "é"}},
                {"type": "tool_use", "id": "toolu_2", "name": "look", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "is_error": True,
                 "content": [{"type": "text", "text": "gone"}]},
                {"type": "text", "text": "say:the end"}]},
        ],
        "tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }  # fmt: skip
    events = events_of(server, **body)
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == "the end"
    messages, prefill = messages_of(MessagesRequest.model_validate(body))
    assert prefill == ""
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    assert messages[0]["content"] == "You are an agent."
    assert messages[2]["reasoning_content"] == "hm"
    assert messages[2]["content"] == "Looking."
    calls = [call["function"]["arguments"] for call in messages[2]["tool_calls"]]
    assert calls == ['{"a": "é"}', "{}"]
    assert messages[3] == {"role": "tool", "tool_call_id": "toolu_1", "content": "found"}
    assert messages[4]["content"] == "Error: gone"


def test_blocks_of_tools_elsewhere_are_read_as_text_or_left_out(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    found = {"type": "web_search_result", "title": "Llamas", "url": "http://x",
             "encrypted_content": "abc"}  # fmt: skip
    fetched = {"type": "web_fetch_result", "url": "http://y", "content": {
        "type": "document", "source": {"type": "text", "data": "A page."}}}  # fmt: skip
    body = {"max_tokens": 9, "messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "é"}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": [found]},
            {"type": "web_fetch_tool_result", "tool_use_id": "f", "content": fetched},
            {"type": "tool_use", "id": "t", "name": "look", "input": {}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "tool_reference", "tool_name": "write"}, {"type": "text", "text": "x"}]},
            {"type": "container_upload", "file_id": "f"},
            {"type": "container_upload", "file_id": "g"},
            {"type": "text", "text": "say:ok"}]},
    ]}  # fmt: skip
    with caplog.at_level(logging.INFO, "copyahead.chat.tools.elsewhere"):
        answer = httpx.post(f"{server.api}/messages", json=body)
    assert answer.json()["content"][0]["text"] == "ok"
    (line,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert line.endswith(": container_upload")
    messages, _ = messages_of(MessagesRequest.model_validate(body))
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert messages[1]["content"] == (
        '[server_tool_use]\nweb_search\n{"query": "é"}\n'
        "[web_search_tool_result]\nLlamas\nhttp://x\n"
        "[web_fetch_tool_result]\nhttp://y\nA page.\n"
    )
    assert messages[2]["content"] == "[tool_reference]\nwrite\nx"
    assert messages[3]["content"] == "say:ok"


@pytest.mark.parametrize("given", [{}, "", " \n", None])
def test_a_call_without_arguments_may_come_back(server: Running, given: Any) -> None:
    body = {"max_tokens": 9, "messages": [
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "look", "input": given}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t"}, {"type": "text", "text": "say:ok"}]},
    ]}  # fmt: skip
    answer = httpx.post(f"{server.api}/messages", json=body)
    assert answer.status_code == 200, answer.text
    messages, _ = messages_of(MessagesRequest.model_validate(body))
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == "{}"


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "max_tokens"),
        ({"max_tokens": 5}, "messages"),
        ({"max_tokens": 5, "messages": []}, "messages"),
        ({"max_tokens": 5, "messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        (user({"type": "image", "source": {}}), "messages[0].content[0]"),
        (user({"type": "text", "text": "a"}, {"type": "document"}), "messages[0].content[1]"),
        (user({"type": "tool_result", "content": "a"}), "messages[0].content[0].tool_use_id"),
        (
            user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0]",
        ),
        (
            {
                "max_tokens": 5,
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "input": [1]}]}
                ],
            },
            "messages[0].content[0].input",
        ),
        ({**user({"type": "text", "text": "a"}), "stop_sequences": [""]}, "stop_sequences"),
        ({**user({"type": "text", "text": "a"}), "n": 2}, "n is not supported"),
        ({**user({"type": "text", "text": "a"}), "include_copied": True}, "include_copied is not"),
        ({**user({"type": "text", "text": "a"}), "temperature": -1}, "temperature"),
        ({**user({"type": "text", "text": "a"}), "max_tokens": -3}, "max_tokens"),
        ({**user({"type": "text", "text": "a"}), "tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {**user({"type": "text", "text": "a"}), "output_config": {"format": {"type": "x"}}},
            "output_config.format",
        ),
        ({**user({"type": "text", "text": "a"}), "tools": [{"name": 4}]}, "tools[0].name"),
        (
            {
                **user({"type": "text", "text": "a"}),
                "tools": [{"type": "web_search_1"}, {"name": "f", "input_schema": []}],
            },
            "tools[1].input_schema",
        ),
        (
            {**user({"type": "text", "text": "a"}), "tool_choice": {"type": "tool"}},
            "tool_choice of type 'tool' needs the name",
        ),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (
            {"max_tokens": 5, "messages": [{"role": "assistant", "content": [{"type": "image"}]}]},
            "messages[0].content[0] is a block",
        ),
        (
            {"max_tokens": 5, "messages": [{"role": "assistant", "content": "a"}]},
            "messages holds nothing but the beginning",
        ),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    server: Running, body: dict[str, Any], field: str
) -> None:
    for stream in (False, True):
        answer = httpx.post(f"{server.api}/messages", json={**body, "stream": stream})
        assert answer.status_code == 400, answer.text
        assert answer.json()["type"] == "error"
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert field in error["message"]


def test_a_prompt_that_is_too_long(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+"):
        client.messages.create(**said("the " * 3000))


def test_the_key_comes_in_anthropics_header() -> None:
    with running(options=ServerOptions(api_keys=["secret"])) as server:
        with anthropic.Anthropic(base_url=server.url, api_key="secret") as client:
            assert client.messages.create(**said("ab")).content[0].to_dict()["text"] == "ab"
        with anthropic.Anthropic(base_url=server.url, api_key="other", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.create(**said("ab"))
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.count_tokens(model="m", messages=said("ab")["messages"])


def test_a_client_that_leaves_frees_its_slot() -> None:
    request = said("")
    request.update(messages=[{"role": "user", "content": "babble"}], max_tokens=2000)
    with running(toy_backend(seconds=0.01)) as server:
        client = anthropic.Anthropic(base_url=server.url, api_key="any")
        with client, client.messages.stream(**request) as stream:
            next(iter(stream.text_stream))
        assert server.is_idle(2.0)


def test_a_fault_after_the_stream_began_is_an_error_event() -> None:
    backend = toy_backend(fail_on=lambda number, _parts: number > 6)
    with running(backend) as server:
        events = events_of(server, **said("abcdefghijkl"))
        assert events[-1]["type"] == "error"
        assert events[-1]["error"]["type"] == "api_error"
        assert "message_stop" not in [event["type"] for event in events]
        client = anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)
        streaming, refused = client.messages.stream, pytest.raises(anthropic.APIStatusError)
        with client, streaming(**said("abcdefghijkl")) as stream, refused:
            stream.get_final_message()


@pytest.mark.model
@pytest.mark.slow
def test_a_real_model_calls_reads_the_result_and_writes_the_same_with_and_without_copying() -> None:
    from copyahead.config import LookupOptions, ModelOptions
    from copyahead.loading import load

    text = "\n".join(f"{n:02d} The weather station {n} of Paris is at {n * 7} m." for n in range(5))
    answers = []
    for lookup in (True, False):
        engine = load(
            model=ModelOptions(threads=1, ctx=2048, kv_type="q8_0"),
            lookup=LookupOptions(lookup=lookup),
        )
        with serving_model(engine) as url, anthropic.Anthropic(base_url=url, api_key="x") as client:
            answers.append(two_turns(client, text))
    (with_copies, num_copied), (plainly, num_copied_plainly) = answers
    assert with_copies == plainly
    assert num_copied_plainly == 0 <= num_copied


def two_turns(client: anthropic.Anthropic, text: str) -> tuple[list[Any], int]:
    """A forced call and the answer to its result, and how many tokens of that were copied."""
    options: Any = {"model": "m", "tools": TOOLS, "extra_body": {"temperature": 0}}
    turns: list[Any] = [{"role": "user", "content": "Look at the file, then write it again."}]
    choice: Any = {"type": "tool", "name": "look"}
    call = client.messages.create(**options, max_tokens=60, messages=turns, tool_choice=choice)
    (block,) = call.content
    assert block.type == "tool_use"
    assert call.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": block.id, "content": text}
    asked = {"type": "text", "text": "Write these lines again, word for word."}
    turns.append({"role": "assistant", "content": plain(call)})
    turns.append({"role": "user", "content": [result, asked]})
    final = client.messages.create(**options, max_tokens=60, messages=turns)
    assert (final.usage.cache_read_input_tokens or 0) > 100
    blocks = [{**each, "id": None} for each in plain(final)]
    written = [block.name, block.input, blocks, final.stop_reason, final.usage.output_tokens]
    return written, final.to_dict()["timings"]["draft_n_accepted"]
