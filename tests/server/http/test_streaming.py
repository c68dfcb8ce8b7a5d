"""Streams: keep-alives, clients that leave, faults, and a loop that is never blocked."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest

from copyahead.config import Limits
from copyahead.contracts import Logits, Part
from copyahead.errors import BackendError
from copyahead.server.service import ServerOptions
from copyahead.types import Token
from tests.server.toys import (
    TOKENIZER,
    ByteTokenizer,
    ObedientLM,
    Running,
    SlowBackend,
    is_up,
    running,
    toy_backend,
)


def options(**limits: float) -> ServerOptions:
    return ServerOptions(limits=Limits(**limits))  # type: ignore[arg-type]


def babble(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "tell me"}], "ignore_eos": True, **fields}


def say(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"say:{text}"}], **fields}


class Gated(SlowBackend):
    """Its passes wait for a permit."""

    def __init__(self, **options: Any) -> None:
        options = {"context_size": 512, "num_slots": 2, **options}
        super().__init__(ObedientLM(), tokenizer=TOKENIZER, **options)
        self.permits = threading.Semaphore(0)
        self.num_begun = 0
        """Passes that run or wait for their permit, those that are over included."""

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        self.num_begun += 1
        assert self.permits.acquire(timeout=30)
        return super().forward(parts)


class OpenStream:
    """A stream read by hand from a socket, so that it can be left at any moment."""

    def __init__(self, server: Running, body: dict[str, Any]) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        data = json.dumps({"stream": True, **body}).encode()
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\n"
            b"Host: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
        )
        self.seen = b""

    def read_until(self, text: bytes, count: int = 1) -> bytes:
        while self.seen.count(text) < count:
            data = self.socket.recv(65536)
            assert data, f"the stream ended before {text!r}: {self.seen!r}"
            self.seen += data
        return self.seen

    def leave(self) -> None:
        self.socket.close()

    def __enter__(self) -> OpenStream:
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()


def test_comments_keep_a_silent_stream_alive_before_and_between_tokens() -> None:
    backend = Gated()
    with running(backend, options(keepalive_seconds=0.05)) as server:
        stream = OpenStream(server, say("xy"))
        seen = stream.read_until(b": keep-alive\n\n", 3)
        assert b"200 OK" in seen
        assert b"data:" not in seen
        backend.permits.release(1)
        stream.read_until(b'"content":"x"')
        before = stream.seen.count(b": keep-alive\n\n")
        stream.read_until(b": keep-alive\n\n", before + 2)
        backend.permits.release(1000)
        seen = stream.read_until(b"[DONE]")
        stream.leave()
    # A comment is a chunk of its own, never inside a frame.
    body = b"".join(seen.split(b"\r\n\r\n", 1)[1].split(b"\r\n")[1::2])
    for block in body.split(b"\n\n"):
        assert block in (b": keep-alive", b"") or block.startswith(b"data: ")


def test_comments_can_be_turned_off() -> None:
    backend = Gated()
    with running(backend, options(keepalive_seconds=0)) as server:
        stream = OpenStream(server, say("xy"))
        # Where there are comments the first one comes with the head, before any token.
        stream.read_until(b"\r\n\r\n")
        assert backend.num_passes == 0
        backend.permits.release(1000)
        assert b"keep-alive" not in stream.read_until(b"[DONE]").split(b"\r\n\r\n", 1)[1]
        stream.leave()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot_within_a_step(stream: bool) -> None:
    backend = Gated(num_slots=1)
    with running(backend) as server:
        leaving = OpenStream(server, babble(max_tokens=400, stream=stream))
        backend.permits.release(3)
        wait_for(lambda: backend.num_begun >= 4)
        leaving.leave()
        wait_for(lambda: server.service.queue.num_requests == 0)
        # The next pass of the answer, which is far from its end, waits for its permit.
        assert server.service.engine.num_active == 1
        passes = backend.num_passes
        backend.permits.release(1)
        wait_for(lambda: server.service.engine.num_active == 0)
        assert backend.num_passes <= passes + 1
        backend.permits.release(1000)
        assert server.is_idle()


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.005)


def test_a_queued_client_that_leaves_does_not_touch_the_running_one() -> None:
    backend = Gated(num_slots=1)
    with running(backend, options(keepalive_seconds=0.05)) as server:
        first = OpenStream(server, say("hello"))
        backend.permits.release(1)
        first.read_until(b'"content":"h"')
        queued = OpenStream(server, say("other"))
        queued.read_until(b": keep-alive")
        queued.leave()
        wait_for(lambda: server.service.queue.num_requests == 1)
        backend.permits.release(1000)
        assert b'"finish_reason":"stop"' in first.read_until(b"[DONE]")
        first.leave()


def test_a_fault_after_the_stream_began_is_an_error_frame_and_no_stop() -> None:
    def fail(number: int, parts: Sequence[Part]) -> bool:
        return number > 4

    with running(toy_backend(fail_on=fail)) as server:
        answer = httpx.post(f"{server.api}/chat/completions", json=babble(stream=True))
        assert answer.status_code == 200
        frames = [f.removeprefix("data: ") for f in answer.text.split("\n\n") if "data: " in f]
        error = json.loads(frames[-1])["error"]
        assert error["code"] == "generation_failed"
        assert error["type"] == "server_error"
        assert "[DONE]" not in answer.text
        assert '"finish_reason":"' not in answer.text
        assert httpx.get(f"{server.url}/health").status_code == 200
        with (
            openai.OpenAI(base_url=server.api, api_key="x", max_retries=0) as client,
            pytest.raises(openai.APIError, match="pass"),
        ):
            for _ in client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "tell"}], stream=True
            ):
                pass


def test_a_fault_of_a_whole_answer_is_a_500_and_the_server_goes_on() -> None:
    class Sick(SlowBackend):
        well = False

        def forward(self, parts: Sequence[Part]) -> list[Logits]:
            if not self.well:
                raise BackendError("no")
            return super().forward(parts)

    backend = Sick(ObedientLM(), tokenizer=TOKENIZER, context_size=512, num_slots=2)
    with running(backend) as server:
        url = f"{server.api}/chat/completions"
        answer = httpx.post(url, json=say("x"))
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        backend.well = True
        assert httpx.post(url, json=say("x")).json()["choices"][0]["message"]["content"] == "x"


class GatedTokenizer(ByteTokenizer):
    """Waits for a permit before a long text."""

    def __init__(self) -> None:
        super().__init__()
        self.permits = threading.Semaphore(0)
        self.waits = threading.Event()

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        if len(text) > 1000:
            self.waits.set()
            assert self.permits.acquire(timeout=30)
        return super().encode(text, special=special)


def test_health_answers_while_a_prompt_is_read_and_a_pass_runs() -> None:
    backend, tokenizer = Gated(), GatedTokenizer()
    backend.tokenizer = tokenizer
    with running(backend) as server:
        stream = OpenStream(server, babble(max_tokens=5))
        long = OpenStream(server, say("x" * 3000))
        assert tokenizer.waits.wait(timeout=10)
        # Neither the pass nor the tokenizer can end before they are let go.
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        tokenizer.permits.release(10)
        backend.permits.release(1000)
        stream.read_until(b"[DONE]")
        assert b"400 Bad Request" in long.read_until(b"context_length_exceeded")
        stream.leave()
        long.leave()


def test_two_streams_interleave() -> None:
    with running(toy_backend(seconds=0.005)) as server:
        one, two = (OpenStream(server, babble(max_tokens=100)) for _ in range(2))
        one.read_until(b'"content":', 20)
        two.read_until(b'"content":', 20)
        assert b"[DONE]" not in one.seen
        assert b"[DONE]" not in two.seen
        one.read_until(b"[DONE]")
        two.read_until(b"[DONE]")
        one.leave()
        two.leave()


def test_stopping_lets_a_running_stream_end() -> None:
    backend = Gated()
    with running(backend, options(shutdown_seconds=20)) as server:
        stream = OpenStream(server, say("hello"))
        backend.permits.release(2)
        stream.read_until(b'"content":"e"')
        server.stop()
        wait_for(lambda: not is_up(server.url))
        assert b"[DONE]" not in stream.seen
        backend.permits.release(1000)
        assert b'"finish_reason":"stop"' in stream.read_until(b"[DONE]")
        stream.leave()


def test_a_stream_that_outlives_the_limit_is_told_so() -> None:
    with running(toy_backend(seconds=0.01), options(shutdown_seconds=0.2)) as server:
        stream = OpenStream(server, babble(max_tokens=1500))
        stream.read_until(b'"content"', 3)
        server.stop()
        seen = stream.read_until(b"shutting_down")
        assert b"[DONE]" not in seen
        stream.leave()
