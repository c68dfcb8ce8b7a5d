"""The Responses API over a real socket, with OpenAI's own client and its streaming helper."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import openai
import pydantic
import pytest

from copyahead.chat.messages import checked
from copyahead.server.openai.responses_input import ResponsesRequest, messages_of
from tests.server.toys import (
    LOOK,
    SAID_CALLS,
    TOKENIZER,
    WRITE,
    Running,
    running,
    toy_backend,
    toy_template,
    typed_events,
)

TOOLS: Any = [
    {"type": "function", "name": name, "description": "d", "strict": False,
     "parameters": {"type": "object", "properties": {"a": {}}}}
    for name in ("look", "write")
]  # fmt: skip


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """A stream's events, after checks of what every stream has."""
    body = {"model": "m", "stream": True, **body}
    events = typed_events(httpx.post(f"{server.api}/responses", json=body))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    return events


def test_an_answer_has_text_and_usage(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="m", input="say:hello", instructions="Obey.")
    assert answer.output_text == "hello"
    assert answer.status == "completed"
    assert answer.instructions == "Obey."
    assert answer.tools == []
    assert answer.usage is not None
    assert answer.usage.output_tokens == len(TOKENIZER.encode("hello")) + 1
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_the_streaming_helper_gives_the_same_response(client: openai.OpenAI) -> None:
    options: Any = {"model": "m", "input": "babble", "max_output_tokens": 40}
    options["extra_body"] = {"seed": 3}
    whole = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        events = list(stream)
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == whole.output_text
    assert len(texts) > 5
    final = events[-1]
    assert final.type == "response.incomplete"
    assert whole.status == final.response.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert final.response.usage is not None
    assert whole.usage is not None
    assert final.response.usage.output_tokens == whole.usage.output_tokens == 40
    item = final.response.output[0]
    assert item.type == "message"
    assert item.status == "incomplete"


def test_events_come_in_the_official_order_with_the_same_ids(server: Running) -> None:
    text = f"ab {LOOK}\n{WRITE}\nthe end"
    events = events_of(server, input=f"say:{text}", tools=TOOLS)
    created, final = events[0]["response"], events[-1]["response"]
    assert created["status"] == "in_progress"
    assert created["output"] == []
    assert created["id"] == final["id"]
    assert final["status"] == "completed"
    types = [event["type"].removeprefix("response.") for event in events[2:]]
    shape = [kind for kind, last in zip(types, ["", *types], strict=False) if kind != last]
    text_item = [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
    ]  # fmt: skip
    call_item = [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
    ]  # fmt: skip
    assert shape == [*text_item, *call_item, *call_item, *text_item, "completed"]
    for place, item in enumerate(final["output"]):
        mine = [e for e in events if e.get("output_index") == place]
        assert {e["item_id"] for e in mine if "item_id" in e} == {item["id"]}
        assert mine[0]["item"]["id"] == mine[-1]["item"]["id"] == item["id"]
        assert mine[0]["item"]["status"] == "in_progress"
        assert mine[-1]["item"] == item
        deltas = "".join(e["delta"] for e in mine if "delta" in e)
        assert deltas == (item.get("arguments") or item["content"][0]["text"])
    assert len({item["id"] for item in final["output"]}) == 4
    look, write = final["output"][1:3]
    assert look["call_id"] != write["call_id"]
    assert json.loads(write["arguments"]) == {"a": "}\n"}


@pytest.mark.parametrize(("text", "calls", "content"), SAID_CALLS)
def test_calls_are_accumulated_by_the_client(
    client: openai.OpenAI, text: str, calls: list[Any], content: str
) -> None:
    def found(response: Any) -> list[Any]:
        items = [item for item in response.output if item.type == "function_call"]
        assert len({item.call_id for item in items}) == len(items)
        return [(item.name, json.loads(item.arguments)) for item in items]

    whole = client.responses.create(model="m", input=f"say:{text}", tools=TOOLS)
    assert found(whole) == calls
    assert whole.output_text == content
    with client.responses.stream(model="m", input=f"say:{text}", tools=TOOLS) as stream:
        assert found(stream.get_final_response()) == calls


def test_one_call_where_parallel_calls_are_off(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="m", input=f"say:{LOOK}\n{WRITE}", tools=TOOLS, parallel_tool_calls=False
    )
    assert [item.type for item in answer.output] == ["function_call"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "write"}])
def test_a_call_that_is_asked_for_comes(client: openai.OpenAI, choice: Any) -> None:
    answer = client.responses.create(
        model="m", input="say:{", tools=TOOLS, tool_choice=choice, max_output_tokens=300
    )
    names = [item.name for item in answer.output if item.type == "function_call"]
    assert names[:1] == ["write"] if isinstance(choice, dict) else names


def test_the_answer_follows_a_schema(client: openai.OpenAI) -> None:
    class Point(pydantic.BaseModel):
        x: bool

    with client.responses.stream(model="m", input='say:{"x":true}', text_format=Point) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == Point(x=True)


def test_thinking_is_an_item_of_its_own() -> None:
    with running(template=toy_template("<think>")) as server:
        events = events_of(server, input="say:<think>ab and</think>\n\nthe")
        final = events[-1]["response"]
        reasoning, message = final["output"]
        assert reasoning["type"] == "reasoning"
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "ab and"}]
        assert message["content"][0]["text"] == "the"
        deltas = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
        assert "".join(deltas) == "ab and"
        details = final["usage"]["output_tokens_details"]
        assert 0 < details["reasoning_tokens"] < final["usage"]["output_tokens"]
        with openai.OpenAI(base_url=server.api, api_key="any") as client:
            answer = client.responses.create(model="m", input="say:<think>ab and</think>\n\nthe")
            assert answer.output_text == "the"


def test_an_empty_answer_is_an_empty_message(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="m", input="say:")
    assert answer.output_text == ""
    assert [item.type for item in answer.output] == ["message"]


def test_what_a_coding_agent_sends(server: Running) -> None:
    body = {
        "model": "m",
        "instructions": "You are a coding agent.",
        "input": [
            {"type": "message", "role": "developer",
             "content": [{"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "role": "user",
             "content": [{"type": "input_text", "text": "look at it"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}],
             "content": None, "encrypted_content": "xyz"},
            {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "Looking.", "annotations": []}]},
            {"type": "function_call", "name": "look", "arguments": "{\"a\":1}", "call_id": "c1"},
            {"type": "function_call_output", "call_id": "c1", "output": "found"},
            {"role": "user", "content": "say:the end"},
        ],
        "tools": [
            *TOOLS, {"type": "local_shell"}, {"type": "web_search", "external_web_access": False},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        ],
        "tool_choice": "auto", "parallel_tool_calls": False, "store": False, "stream": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "text": {"verbosity": "low"}, "client_metadata": {"a": "b"},
    }  # fmt: skip
    final = events_of(server, **body)[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == "the end"
    assert [tool["name"] for tool in final["tools"]] == ["look", "write"]
    assert final["reasoning"]["effort"] == "medium"
    messages = messages_of(ResponsesRequest.model_validate(body))
    assert [message["role"] for message in messages] == [
        "system", "developer", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    assert messages[3] == {
        "role": "assistant",
        "reasoning_content": "hm",
        "content": "Looking.",
        "tool_calls": [
            {"id": "c1", "type": "function",
             "function": {"name": "look", "arguments": '{"a":1}'}}
        ],
    }  # fmt: skip


def test_calls_and_outputs_of_several_turns() -> None:
    call = {"type": "function_call", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "output": [{"type": "input_text", "text": "x"}]}
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {**call, "call_id": "1"}, {**call, "call_id": "2"},
        {**output, "call_id": "1"}, {**output, "call_id": "2"},
        {**call, "call_id": "3"}, {**output, "call_id": "3"},
        {"type": "custom_tool_call", "name": "patch", "input": "+a", "call_id": "4"},
        {"type": "custom_tool_call_output", "call_id": "4", "output": "ok"},
        {"role": "assistant", "content": "one"}, {"role": "assistant", "content": "two"},
    ]  # fmt: skip
    messages = messages_of(ResponsesRequest.model_validate({"input": items}))
    assert [(m["role"], len(m.get("tool_calls", ()))) for m in messages] == [
        ("user", 0), ("assistant", 2), ("tool", 0), ("tool", 0), ("assistant", 1), ("tool", 0),
        ("assistant", 1), ("tool", 0), ("assistant", 0), ("assistant", 0),
    ]  # fmt: skip
    assert messages[2] == {"role": "tool", "tool_call_id": "1", "content": "x"}
    assert messages[6]["tool_calls"][0]["function"]["arguments"] == '{"input": "+a"}'


def test_items_of_tools_elsewhere_are_read_as_text_or_left_out(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    action = {"type": "exec", "command": ["ls", "é"]}
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"type": "web_search_call", "id": "ws", "status": "completed",
         "action": {"type": "search", "query": "llamas"}},
        {"type": "mcp_list_tools", "server_label": "x", "tools": []},
        {"type": "image_generation_call", "id": "i", "result": "aGVsbG8="},
        {"type": "image_generation_call", "id": "j", "result": "aGVsbG8="},
        {"type": "code_interpreter_call", "code": "1+1", "outputs": [
            {"type": "logs", "logs": "2"}, {"type": "image", "url": ""}]},
        {"type": "local_shell_call", "call_id": "1", "id": "x", "action": action},
        {"type": "local_shell_call_output", "id": "1", "output": "a.txt"},
        {"type": "shell_call", "call_id": "2", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "2", "output": [
            {"stdout": "b.txt", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
        {"type": "SOMETHING the user wrote"},
        {"role": "user", "content": "say:ok"},
    ]  # fmt: skip
    with caplog.at_level(logging.INFO, "copyahead.chat.tools.elsewhere"):
        answer = httpx.post(f"{server.api}/responses", json={"input": items})
    assert answer.json()["output"][0]["content"][0]["text"] == "ok"
    (line,) = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert line.endswith("image_generation_call, mcp_list_tools, other")
    messages = messages_of(ResponsesRequest.model_validate({"input": items}))
    assert [message["role"] for message in messages] == [
        "user", "assistant", "tool", "assistant", "tool", "user",
    ]  # fmt: skip
    assert messages[1]["content"] == (
        '[web_search_call]\n{"type": "search", "query": "llamas"}\n\n'
        "[code_interpreter_call]\n1+1\n2"
    )
    (call,) = messages[1]["tool_calls"]
    assert call["function"] == {
        "name": "local_shell", "arguments": json.dumps(action, ensure_ascii=False)
    }  # fmt: skip
    assert (messages[2]["tool_call_id"], messages[2]["content"]) == (call["id"], "a.txt")
    assert messages[3]["tool_calls"][0]["function"]["name"] == "shell"
    assert messages[4]["content"] == "b.txt"


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"type": "item_reference", "id": "m"}, "keeps nothing: send the whole conversation"),
        ({"type": "compaction", "encrypted_content": "x"}, "its text is encrypted"),
        (
            {"type": "computer_call_output", "call_id": "1", "output": {"image_url": "x"}},
            "'computer_call_output', and it is an image",
        ),
    ],
)
def test_items_without_which_it_would_mean_something_else_are_refused(
    server: Running, item: Any, words: str
) -> None:
    error = httpx.post(f"{server.api}/responses", json={"input": [item]}).json()["error"]
    assert error["param"] == "input[0].type"
    assert words in error["message"]


@pytest.mark.parametrize("arguments", ["", " \n", None])
def test_a_call_without_arguments_may_come_back(server: Running, arguments: str | None) -> None:
    call = {"type": "function_call", "name": "look", "call_id": "1", "arguments": arguments}
    output = {"type": "function_call_output", "call_id": "1", "output": "x"}
    asked = [{"role": "user", "content": "say:ok"}]
    body = {"input": [call, output, *asked], "tools": TOOLS}
    answer = httpx.post(f"{server.api}/responses", json=body)
    assert answer.status_code == 200, answer.text
    (message, _) = checked(messages_of(ResponsesRequest.model_validate({"input": [call, output]})))
    assert message["tool_calls"][0]["function"]["arguments"] == "{}"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "conversation": {"id": "c"}}, "conversation"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "top_logprobs": 2}, "top_logprobs"),
        ({"input": "a", "n": 2}, "n"),
        ({"input": "a", "include_copied": True}, "include_copied"),
        ({"input": "a", "temperature": -1}, "temperature"),
        ({"input": "a", "max_output_tokens": -5}, "max_output_tokens"),
        ({"input": "a", "max_output_tokens": "many"}, "max_output_tokens"),
        ({"input": "a", "stop": ""}, "stop"),
        ({"input": "a", "text": {"format": {"type": "json_schema"}}}, "text.format"),
        (
            {"input": "a", "text": {"format": {"type": "json_schema", "schema": {"type": "u"}}}},
            "text.format",
        ),
        ({"input": "a", "tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"input": "a", "tool_choice": "required"}, "tool_choice"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools[0]"),
        ({"input": "a", "tools": [{"type": "web_search"}, {"type": "function"}]}, "tools[1]"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [1]}]}, "input[0].content[0]"),
        ({"input": [{"type": "custom_tool_call", "name": "f"}]}, "input[0].input"),
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        (
            {"input": [{"type": "function_call", "name": "f", "arguments": 7}]},
            "input[0].arguments",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": "the " * 3000}, "input"),
    ],
)
def test_a_wrong_request_is_refused_by_name(
    server: Running, body: dict[str, Any], field: str
) -> None:
    for stream in (False, True):
        answer = httpx.post(f"{server.api}/responses", json={**body, "stream": stream})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["param"] == field
        assert error["message"]
    if "the " in str(body):
        assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("user", '"\\ud800"'),
        ("metadata", '{"\\udc00": 1}'),
        ("text", '{"verbosity": "\\ud800"}'),
        ("metadata", '{"a": ' + "[" * 500 + "]" * 500 + "}"),
    ],
)
def test_what_a_response_could_not_repeat_is_refused_by_name(
    server: Running, stream: bool, field: str, value: str
) -> None:
    body = f'{{"input": "say:a", "stream": {json.dumps(stream)}, "{field}": {value}}}'
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{server.api}/responses", content=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("stop", "text"), [(None, "abcd"), ([], "abcd"), ("c", "ab"), (["d"], "abc")]
)
def test_stop_in_every_form(client: openai.OpenAI, stop: Any, text: str) -> None:
    answer = client.responses.create(model="m", input="say:abcd", extra_body={"stop": stop})
    assert answer.output_text == text
    assert answer.status == "completed"


def test_a_client_that_leaves_frees_its_slot() -> None:
    with running(toy_backend(seconds=0.01)) as server:
        client = openai.OpenAI(base_url=server.api, api_key="any")
        with client, client.responses.stream(model="m", input="babble") as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    break
        assert server.is_idle(2.0)


def test_a_fault_after_the_stream_began_is_a_failed_response() -> None:
    backend = toy_backend(fail_on=lambda number, _parts: number > 6)
    with running(backend) as server:
        events = events_of(server, input="say:abcdefghijkl")
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert response["id"] == events[0]["response"]["id"]


def test_a_temperature_next_to_zero_is_greedy(client: openai.OpenAI) -> None:
    texts = [
        client.responses.create(
            model="m", input="babble", temperature=temperature, max_output_tokens=20
        ).output_text
        for temperature in (0.0, 1e-308, 1e-6)
    ]
    assert texts[0]
    assert texts.count(texts[0]) == 3
