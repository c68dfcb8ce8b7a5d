"""The process that reads large bodies: the same as here, in limits, and not for ever."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.errors import EngineStopped
from copyahead.server.anthropic.messages_input import MessagesRequest
from copyahead.server.errors import ApiError
from copyahead.server.http import reader as reader_module
from copyahead.server.http.bodies import read_body, weight
from copyahead.server.http.reader import BodyReader
from copyahead.server.http.text_limit import TextLimit
from copyahead.server.http.work import LARGE_BYTES
from copyahead.server.openai.responses_input import ResponsesRequest
from copyahead.server.openai.wire import ChatRequest, CompletionRequest
from copyahead.server.wire import Wire
from tests.server.toys import running

LIMIT = TextLimit(2048, 11)


@pytest.fixture(scope="module")
def reader() -> Iterator[BodyReader]:
    reader = BodyReader()
    yield reader
    reader.close()


def outcome(read: Any, data: bytes, model: type[Wire]) -> Any:
    try:
        return read(data, model, LIMIT)
    except ApiError as error:
        return str(error), error.status, error.code, error.param, error.extra


CHAT = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a\n\u2028\ud800"}]}]}


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (ChatRequest, CHAT),
        (ChatRequest, CHAT | {"response_format": {"type": "json_schema", "schema": {"a": 1}}}),
        (ChatRequest, CHAT | {"response_format": {"type": "text", "other": [1]}, "unknown": 3}),
        (ChatRequest, CHAT | {"tools": [{"x": 1e308, "y": None, "z": -0.0}], "seed": 10**300}),
        (ChatRequest, CHAT | {"temperature": float("nan"), "logit_bias": {"1": 1e400}}),
        (ChatRequest, CHAT | {"temperature": None, "tool_choice": "none"}),
        (ChatRequest, {"messages": [{"role": "nobody", "content": "x"}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "x" * 99_999}]}),
        (CompletionRequest, {"prompt": [1, 2, 3], "echo": True}),
        (CompletionRequest, {"prompt": [[1], [2]], "stop": ["a", "b"]}),
        (CompletionRequest, {"prompt": [1, None]}),
        (MessagesRequest, {**CHAT, "max_tokens": 3, "output_config": {"format": {}, "more": 1}}),
        (ResponsesRequest, {"input": "x", "text": {"format": {"type": "text", "schema": {}}}}),
        (ResponsesRequest, {"input": [{"type": "message"}], "reasoning": {"effort": "low"}}),
    ],
)  # fmt: skip
def test_a_body_is_the_same_as_when_it_is_read_here(
    reader: BodyReader, model: type[Wire], given: dict[str, Any]
) -> None:
    for data in (json.dumps(given).encode(), json.dumps(given, indent=1).encode()):
        there, here = outcome(reader.read, data, model), outcome(read_body, data, model)
        assert repr(there) == repr(here)
        if isinstance(here, Wire):
            assert there.model_fields_set == here.model_fields_set


@settings(max_examples=50, deadline=None)
@given(st.binary() | st.text('{}[]":,\n\r\t 1a\\').map(str.encode))
def test_what_is_no_body_is_refused_as_it_is_here(data: bytes) -> None:
    assert outcome(SHARED.read, data, ChatRequest) == outcome(read_body, data, ChatRequest)


SHARED = BodyReader()


@pytest.fixture(scope="module", autouse=True)
def _shared() -> Iterator[None]:
    yield
    SHARED.close()


@pytest.mark.parametrize("depth", [50, 300, 900, 960, 980, 990, 995, 1000, 25_000])
def test_what_is_nested_deeply_is_read_or_refused(reader: BodyReader, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    data = b'{"prompt": "x", "response_format": ' + b'{"type": "text", "a": ' + nested + b"}}"
    got = outcome(reader.read, data, CompletionRequest)
    assert isinstance(got, CompletionRequest) or got[1:3] == (400, "invalid_json")
    assert reader.read(b'{"prompt": "x"}', CompletionRequest, LIMIT).prompt == "x"


def test_one_that_takes_too_long_is_refused_and_the_next_one_is_read(
    reader: BodyReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(reader_module, "MAX_SECONDS", 0.0)
        with pytest.raises(ApiError, match="too much time or memory") as refusal:
            reader.read(b'{"prompt": "x"}', CompletionRequest, LIMIT)
    assert refusal.value.status == 413
    assert reader.read(b'{"prompt": "x"}', CompletionRequest, LIMIT).prompt == "x"


def test_where_no_process_starts_it_is_read_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("planted")

    monkeypatch.setattr(reader_module, "ChildProcess", fails)
    assert BodyReader().read(b'{"prompt": "x"}', CompletionRequest, LIMIT).prompt == "x"


def test_it_rests_and_begins_again_until_it_is_closed() -> None:
    reader = BodyReader()
    for _ in range(2):
        reader.read(b'{"prompt": "x"}', CompletionRequest, LIMIT)
        assert reader._child is not None
        pid = reader._child.pid
        reader.rest()
        reader.rest()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    reader.close()
    with pytest.raises(EngineStopped):
        reader.read(b'{"prompt": "x"}', CompletionRequest, LIMIT)


def test_large_bodies_and_those_of_many_objects_are_read_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import httpx

    seen: list[int] = []
    read = BodyReader.read

    def noted(self: BodyReader, data: bytes, *more: Any) -> Any:
        seen.append(len(data))
        return read(self, data, *more)

    monkeypatch.setattr(BodyReader, "read", noted)
    headers = {"content-type": "application/json"}
    with running() as server:
        for body in (b'{"prompt": "x"}', b'{"prompt": "x", "a": "%s"}' % (b"a" * LARGE_BYTES),
                     b'{"prompt": "x", "stop": [%s]}' % b",".join([b"{}"] * 20_000)):  # fmt: skip
            httpx.post(f"{server.api}/completions", content=body, headers=headers)
    assert len(seen) == 2
    assert weight(b"[{}]") == 204
