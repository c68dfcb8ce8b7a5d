"""Clients that let the server wait: for headers, for bodies, for what they do not read."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from copyahead.config import Limits
from copyahead.server.http.connections import max_connections
from tests.server.http.test_streaming import options, say, wait_for
from tests.server.toys import Running, running, toy_backend

HALF = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def connected(url: str, data: bytes, receive_buffer: int = 0) -> Iterator[socket.socket]:
    """A socket on which `data` has been sent, and that reads nothing of its own accord."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as client:
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(30)
        client.connect((host, int(port)))
        client.sendall(data)
        yield client


def post_bytes(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


def is_closed(client: socket.socket) -> bool:
    """Whether the server closes the connection, after whatever it says."""
    try:
        while client.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def unread(server: Running, stack: ExitStack) -> None:
    """A client asks for more than its connection holds, and reads nothing."""
    body = {
        "prompt": "<tool_call>" * 20_000,
        "echo": True,
        "n": 17,
        "max_tokens": 2,
        "stream": True,
    }
    stack.enter_context(connected(server.url, post_bytes("/v1/completions", body), 4096))


def long_context() -> Any:
    return toy_backend(context_size=32_000, num_cells=99_000, num_slots=1)


def test_answers_that_nobody_reads_leave_the_queue_when_they_end() -> None:
    with running(long_context(), options(max_queue=16)) as server, ExitStack() as stack:
        unread(server, stack)
        wait_for(lambda: server.service.queue.num_answers == 17, 30)
        for n, status in ((2, 429), (1, 200)):
            answer = httpx.post(f"{server.api}/chat/completions", json=say("x", n=n), timeout=60)
            assert answer.status_code == status
        wait_for(lambda: server.service.queue.num_answers == 0, 60)
        # They have ended, and are still being sent.
        assert 'finished_reason="length"' not in metrics(server)
        assert httpx.post(f"{server.api}/chat/completions", json=say("x", n=2)).status_code == 200


def metrics(server: Running) -> str:
    return httpx.get(f"{server.url}/metrics").text


def test_a_client_that_reads_nothing_is_cut_off() -> None:
    with (
        running(long_context(), options(unread_seconds=0.5, keepalive_seconds=0.1)) as server,
        ExitStack() as stack,
    ):
        unread(server, stack)
        wait_for(lambda: 'finished_reason="length"' in metrics(server), 60)


def test_a_client_that_reads_slowly_is_not_cut_off() -> None:
    with running(long_context(), options(unread_seconds=2.0)) as server:
        body = {
            "prompt": "<tool_call>" * 20_000,
            "echo": True,
            "n": 7,
            "max_tokens": 2,
            "stream": True,
        }
        with connected(server.url, post_bytes("/v1/completions", body), 4096) as client:
            seen = b""
            while b"[DONE]" not in seen:
                data = client.recv(16_000)
                assert data, "it was cut off"
                seen += data
                time.sleep(0.005)


def test_half_sent_requests_do_not_keep_others_out() -> None:
    with running(options=options(max_connections=8)) as server, ExitStack() as stack:
        for data in (HALF, b"", post_bytes("/v1/completions", {"prompt": "x" * 999})[:-1]) * 8:
            stack.enter_context(connected(server.url, data))
            assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_running_answer_is_not_closed_to_make_room() -> None:
    limits = options(max_connections=4)
    with running(toy_backend(seconds=0.005), limits) as server, ExitStack() as stack:
        body = {"prompt": "x", "ignore_eos": True, "max_tokens": 200}
        data = post_bytes("/v1/completions", body)
        answer = stack.enter_context(connected(server.url, data))
        wait_for(lambda: server.service.queue.num_answers == 1)
        for _ in range(20):
            stack.enter_context(connected(server.url, HALF))
        assert b"200 OK" in answer.recv(65536)


def test_headers_that_do_not_come_end_the_connection() -> None:
    with running(options=options(header_seconds=0.3)) as server:
        for data in (b"", HALF, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF):
            with connected(server.url, data) as client:
                time.sleep(0.05)
                client.sendall(HALF[-5:])
                assert is_closed(client)


def test_a_body_that_does_not_come_is_a_408() -> None:
    with running(options=options(body_seconds=0.3)) as server:
        data = post_bytes("/v1/completions", {"prompt": "x"})
        with connected(server.url, data[:-3]) as client:
            seen = b""
            while more := client.recv(65536):
                seen += more
        assert b"408 Request Timeout" in seen
        assert b'"code":"body_too_slow"' in seen
        # One that is whole may take as long as its answer takes.
        with connected(server.url, data) as client:
            assert b"200 OK" in client.recv(65536)


def test_no_more_connections_than_files_allow() -> None:
    resource = pytest.importorskip("resource")
    num_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert max_connections(Limits(max_connections=3)) == 3
    assert max_connections(Limits(max_connections=2**62)) <= num_files


_CHILD = """
import logging, os, resource, sys
from copyahead.config import Limits
from copyahead.server.service import ServerOptions
from tests.server.toys import running
logging.basicConfig(format="LOG %(message)s")
with running(options=ServerOptions(limits=Limits(header_seconds=60))) as server:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    files = []
    try:
        while True:
            files.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for file in files[:12]:
            os.close(file)
    print(server.url, flush=True)
    sys.stdin.read()
"""


def test_without_files_for_connections_the_server_is_reached_and_does_not_flood_its_log() -> None:
    pytest.importorskip("resource")
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    url = child.stdout.readline().strip()
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connected(url, HALF))
        began = time.monotonic()
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        seconds = time.monotonic() - began
    _, log = child.communicate("", timeout=60)
    lines = log.splitlines()
    assert any("no connection can be taken" in line for line in lines)
    assert len(lines) <= 3 * (seconds + 5), log[:2000]


CHUNKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def test_a_body_in_crumbs_is_refused() -> None:
    with running() as server, connected(server.url, CHUNKED + b"1\r\na\r\n" * 30_000) as client:
        assert b"400" in client.recv(100)
        assert is_closed(client)
    with running() as server, connected(server.url, CHUNKED) as client:
        # One that has its answer, and sends on.
        client.sendall(b"%x\r\n%s\r\n" % (5_000_000, b"a" * 5_000_000))
        with contextlib.suppress(OSError):
            client.sendall(b"1\r\na\r\n" * 30_000)
        assert is_closed(client)


def test_a_body_in_small_packets_is_a_body() -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1, "ignored": "x" * 2_000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body[:1_500]) + b"%x\r\n%s\r\n0\r\n\r\n" % (
        len(body) - 1_500, body[1_500:]
    )  # fmt: skip
    with running() as server, connected(server.url, CHUNKED + chunks) as client:
        assert b"200 OK" in client.recv(100)
