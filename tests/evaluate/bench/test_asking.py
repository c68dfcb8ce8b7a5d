"""One request: what is counted, and what becomes of a server's faults."""

from __future__ import annotations

import asyncio
import email.utils
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from copyahead.evaluate.bench.asking import Answer, Ask, Options, Target, ask
from copyahead.evaluate.bench.figures import speed, time_a_token
from tests.evaluate.bench.servers import (
    Handler,
    Reply,
    in_turn,
    piece,
    scripted,
    stream,
    usage,
)
from tests.server.toys import running, toy_backend

HELLO = {"role": "user", "content": "say:hello there"}
CHAT = Ask(number=0, session="s", max_tokens=20, messages=(HELLO,))
TEXT = Ask(number=0, session="s", max_tokens=20, prompt="ab the ab the")
IDS = Ask(number=0, session="s", max_tokens=20, prompt=[5, 6, 7, 5, 6, 7])
WHOLE = stream(piece("a"), piece("b", "stop"), usage(3, 9), "[DONE]")


def answer(url: str, request: Ask = CHAT, **options: Any) -> Answer:
    async def run() -> Answer:
        async with httpx.AsyncClient(timeout=None) as client:
            target = Target(f"{url}/v1", "m", "key")
            return await ask(client, target, request, Options(**options))

    return asyncio.run(run())


def answer_to(reply: Reply, request: Ask = CHAT, **options: Any) -> Answer:
    with scripted(reply) as server:
        return answer(server.url, request, **options)


@pytest.mark.parametrize("request_", [CHAT, TEXT, IDS])
def test_a_real_server_is_timed_by_its_own_count_of_tokens(request_: Ask) -> None:
    # Drafts make several tokens a chunk.
    with running(toy_backend(seconds=0.002), policy="fixed") as server:
        found = answer(server.url, request_)
        asked = (
            {"messages": request_.messages} if request_.messages else {"prompt": request_.prompt}
        )
        route = "chat/completions" if request_.messages else "completions"
        body = {"model": "m", "max_tokens": 20, "temperature": 0, **asked}
        told = httpx.post(f"{server.api}/{route}", json=body).json()["usage"]
    assert found.error is None
    assert found.output_tokens == told["completion_tokens"] > 2
    assert found.prompt_tokens == told["prompt_tokens"] > 2
    assert found.first is not None
    assert found.last is not None
    assert 0 < found.first < found.last <= found.total
    assert speed(found) == pytest.approx((found.output_tokens or 0) / found.total)
    expected = (found.last - found.first) / ((found.output_tokens or 0) - 1)
    assert time_a_token(found) == pytest.approx(expected)


def test_tokens_are_not_chunks() -> None:
    found = answer_to(WHOLE)
    assert (found.error, found.prompt_tokens, found.output_tokens) == (None, 3, 9)


def test_what_is_sent_is_what_was_asked_for() -> None:
    with scripted(WHOLE) as server:
        for request in (CHAT, TEXT, IDS):
            assert answer(server.url, request, temperature=0.5).error is None
    chat, text, ids = server.bodies
    assert (chat["path"], chat["messages"]) == ("/v1/chat/completions", [HELLO])
    assert (text["path"], text["prompt"]) == ("/v1/completions", "ab the ab the")
    assert ids["prompt"] == [5, 6, 7, 5, 6, 7]
    for body in server.bodies:
        assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 20, 0.5)
        assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert server.keys == ["Bearer key"] * 3


def test_a_server_without_usage_is_not_guessed_at() -> None:
    found = answer_to(stream(piece("a"), piece("b"), piece("", "stop"), "[DONE]"))
    assert (found.error, found.output_tokens, found.prompt_tokens) == (None, None, None)
    assert found.first is not None
    assert speed(found) is None
    assert time_a_token(found) is None


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]},
        {"choices": [{"text": "\u2028 a line break that ends no event"}]},
    ],
)
def test_all_that_a_model_writes_is_text(event: dict[str, Any]) -> None:
    found = answer_to(stream(event, piece("", "stop"), "[DONE]"))
    assert (found.error, found.first is not None) == (None, True)


def test_what_brings_no_text_is_not_the_first_token() -> None:
    def reply(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.raw(b": keep-alive\n\n")
        handler.send({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        time.sleep(0.2)
        handler.send(piece("a", "stop"), "[DONE]")
        handler.end()

    found = answer_to(reply)
    assert found.first is not None
    assert found.first > 0.15


def test_events_may_come_in_any_pieces() -> None:
    def reply(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        text = b'data: {"choices": [{"delta": {"content": "\xc3\xa9"}}]}\r\n\r\ndata: [DONE]'
        for byte in text:
            handler.raw(bytes([byte]))
        handler.end()

    found = answer_to(reply)
    assert (found.error, found.first is not None) == (None, True)


def test_an_answer_that_is_not_streamed_is_taken_in_one_piece() -> None:
    document = {
        "choices": [{"message": {"content": "ab"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    found = answer_to(lambda handler, body: handler.whole(200, document))
    assert (found.error, found.output_tokens) == (None, 2)
    assert found.first == found.last
    assert time_a_token(found) is None


def test_a_server_that_says_when_to_come_back_is_asked_again() -> None:
    def busy(handler: Handler, body: dict[str, Any]) -> None:
        handler.whole(429, {"error": {"message": "full"}}, {"retry-after": "1"})

    began = time.perf_counter()
    found = answer_to(in_turn(busy, WHOLE))
    wall = time.perf_counter() - began
    assert (found.error, found.refusals) == (None, 1)
    # The wait is the server's wish, and no part of its speed.
    assert wall - found.total > 1

    found = answer_to(in_turn(busy, busy, WHOLE), retries=1)
    assert (found.error, found.detail, found.refusals) == ("HTTP 429", "full", 1)


def test_a_date_to_come_back_at_is_understood() -> None:
    def busy(handler: Handler, body: dict[str, Any]) -> None:
        date = email.utils.formatdate(time.time() - 5, usegmt=True)
        handler.whole(503, b"later", {"retry-after": date})

    assert answer_to(in_turn(busy, WHOLE)).error is None


@pytest.mark.parametrize(
    ("reply", "error", "detail"),
    [
        (lambda h, b: h.whole(429, {"error": {"message": "full"}}), "HTTP 429", "full"),
        (lambda h, b: h.whole(429, b"x", {"retry-after": "soon"}), "HTTP 429", "x"),
        (lambda h, b: h.whole(400, {"error": "no"}), "HTTP 400", "no"),
        (lambda h, b: h.whole(500, b"<html>oops"), "HTTP 500", "<html>oops"),
        (lambda h, b: h.whole(200, b"<html>oops"), "not understood", "oops"),
        (lambda h, b: h.whole(200, {"detail": "x"}), "not understood", "x"),
        (stream(piece("a"), "{broken"), "not understood", "broken"),
        (stream(piece("a"), {"choices": ["x"]}), "not understood", "no object"),
        (
            stream(piece("a"), {"error": {"message": "out of memory"}}),
            "error in the stream",
            "out of memory",
        ),
        (stream(piece("a")), "cut off", "without a finish_reason"),
        (stream(), "cut off", "without a finish_reason"),
    ],
)
def test_faults_are_told_apart(reply: Reply, error: str, detail: str) -> None:
    found = answer_to(reply)
    assert found.error == error
    assert detail in found.detail


def test_a_connection_that_breaks_is_an_answer_cut_off() -> None:
    def reply(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.send(piece("a"))
        handler.cut()

    found = answer_to(reply)
    assert (found.error, found.first is not None) == ("cut off", True)


def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert answer(f"http://127.0.0.1:{port}").error == "cannot connect"


def test_a_server_that_never_answers_is_given_up() -> None:
    over = threading.Event()
    try:
        found = answer_to(lambda handler, body: void(over.wait(20)), timeout=0.2)
    finally:
        over.set()
    assert (found.error, found.detail) == ("timeout", "nothing came for 0.2 seconds")


def test_what_counts_is_the_time_without_a_new_piece() -> None:
    over = threading.Event()

    def slow(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        for _ in range(4):
            handler.send(piece("a"))
            time.sleep(0.6)
        handler.send(piece("", "stop"), usage(1, 5), "[DONE]")
        handler.end()

    def stalls(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.send(piece("a"))
        while not over.wait(0.05):
            handler.raw(b": still there\n\n")

    assert answer_to(slow, timeout=2.0).error is None
    try:
        found = answer_to(stalls, timeout=0.5)
    finally:
        over.set()
    assert (found.error, found.first is not None) == ("timeout", True)


def test_a_stream_that_is_left_open_after_its_end_is_whole() -> None:
    over = threading.Event()

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.send(piece("a", "stop"), usage(1, 1), "[DONE]")
        over.wait(20)

    began = time.perf_counter()
    try:
        found = answer_to(reply)
    finally:
        over.set()
    assert (found.error, found.output_tokens) == (None, 1)
    # The time until the connection is given up is not the answer's.
    assert time.perf_counter() - began - found.total > 0.9


def void(_: object) -> None:
    """Nothing of it."""
