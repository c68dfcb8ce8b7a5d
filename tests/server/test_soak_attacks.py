"""The attacks of benchmarks/soak_server.py in short, on the toy; and in full, on the real model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from copyahead.chat.template.literal_text import ControlTexts, RenderedPrompt
from copyahead.config import Limits
from copyahead.server import metrics
from copyahead.server.http import bodies
from copyahead.server.http.auth import HostCheck
from copyahead.server.http.limits import Queue, too_busy
from copyahead.server.run import bind
from copyahead.server.service import ServerOptions
from tests.server.conftest import BENCHMARKS
from tests.server.toys import Running, SlowBackend, running, toy_backend

NAMES = ("nulls", "systems", "stops", "pieces", "unread", "headers", "control", "numbers",
         "schemas", "aborts")  # fmt: skip
SECONDS = os.environ.get("COPYAHEAD_SOAK_SECONDS", "60")
"""Of each attack on the real model."""
OPTIONS = ServerOptions(limits=Limits(max_connections=40), cors_origins=("https://page.example",))


@pytest.fixture
def server() -> Iterator[Running]:
    backend = toy_backend(context_size=8192, num_cells=40_000)
    with running(backend, OPTIONS, policy="fixed") as server:
        yield server


def besieged(soak_server: Any, server: Running, name: str, seconds: float = 1.0) -> Any:
    attack = soak_server.ATTACKS[name](max_body=30_000)
    besieger = soak_server.Besieger(
        server.url, attack, seconds=seconds, quiet_seconds=0.5, patience=20
    )
    return asyncio.run(besieger.run())


def failures(soak_server: Any, siege: Any, **limits: float) -> list[str]:
    """Times and memory have no limit here but those that are given."""
    given = {"health_ms": 1e9, "neighbour_times": 1e9, "memory_percent": 1e9, **limits}
    found: list[str] = siege.failures(soak_server.SiegeLimits(**given))
    return found


def test_every_attack_is_tried(soak_server: Any) -> None:
    assert set(NAMES) == set(soak_server.ATTACKS)


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_gets_what_it_deserves(soak_server: Any, server: Running, name: str) -> None:
    siege = besieged(soak_server, server, name)
    assert failures(soak_server, siege) == []
    assert siege.outcomes
    assert siege.memory_before_mb > 0
    limits = soak_server.SiegeLimits()
    document = json.loads(json.dumps(siege.document(limits)))
    assert document["attack"] == name
    assert siege.row(limits).count("|") == soak_server.HEAD.splitlines()[-1].count("|")


# Faults


class Fault:
    """Something that goes wrong in the server from the first body of an attack on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_under_attack = False
        self.change: Callable[[bytes], bytes] = lambda data: data
        read = bodies.read_body

        def reads(data: bytes, model: Any, limit: Any) -> Any:
            self.is_under_attack |= b"null" in data
            return read(self.change(data) if self.is_under_attack else data, model, limit)

        monkeypatch.setattr(bodies, "read_body", reads)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    return Fault(monkeypatch)


def test_a_slow_health_fails_the_siege(
    soak_server: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit = HostCheck.admit

    def slowly(self: HostCheck, scope: Any, receive: Any) -> Any:
        time.sleep(0.3 * (scope["path"] == "/health"))
        return admit(self, scope, receive)

    monkeypatch.setattr(HostCheck, "admit", slowly)
    siege = besieged(soak_server, server, "numbers")
    assert "/health took" in " ".join(failures(soak_server, siege, health_ms=250))


def test_a_neighbour_who_is_slowed_fails_the_siege(
    soak_server: Any, server: Running, fault: Fault
) -> None:
    backend = server.backend
    assert isinstance(backend, SlowBackend)

    def slowed(data: bytes) -> bytes:
        backend.seconds = 0.2
        return data

    fault.change = slowed
    siege = besieged(soak_server, server, "nulls")
    found = failures(soak_server, siege, neighbour_times=2)
    assert "times as long" in " ".join(found)


def test_a_neighbour_who_gets_another_text_fails_the_siege(
    soak_server: Any, server: Running, fault: Fault
) -> None:
    fault.change = lambda data: data.replace(b"Repeat twice:", b"say:")
    siege = besieged(soak_server, server, "nulls")
    assert "the neighbour got another text" in " ".join(failures(soak_server, siege))


def test_a_neighbour_who_is_refused_fails_the_siege(
    soak_server: Any, server: Running, fault: Fault
) -> None:
    def refused(data: bytes) -> bytes:
        if b"quick" in data:
            raise too_busy("planted")
        return data

    fault.change = refused
    siege = besieged(soak_server, server, "nulls")
    assert "attack: status 429" in " ".join(failures(soak_server, siege))


def test_memory_that_stays_fails_the_siege(
    soak_server: Any, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_memory_bytes", lambda: 1e9 * (1 + fault.is_under_attack))
    with running(options=OPTIONS) as server:
        attack = soak_server.ATTACKS["nulls"](max_body=10_000)
        besieger = soak_server.Besieger(
            server.url, attack, seconds=1, quiet_seconds=0.5, patience=0.5
        )
        siege = asyncio.run(besieger.run())
    assert "memory grew by 954 MB" in failures(soak_server, siege, memory_percent=10)


def test_a_wrong_refusal_fails_the_siege(
    soak_server: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: Exception) -> Exception:
        return RuntimeError("planted")

    monkeypatch.setattr(bodies, "_wrong_value", fails)
    siege = besieged(soak_server, server, "nulls")
    assert "an attack got 500" in " ".join(failures(soak_server, siege))


def test_an_answer_to_a_wrong_host_fails_the_siege(
    soak_server: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostCheck, "admit", lambda self, scope, receive: receive)
    siege = besieged(soak_server, server, "headers")
    assert "an attack got 200" in " ".join(failures(soak_server, siege))


def test_a_control_token_that_gets_through_fails_the_siege(
    soak_server: Any, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ControlTexts, "rendered", lambda self, render, given: RenderedPrompt(render(given))
    )
    siege = besieged(soak_server, server, "control")
    assert "got through" in " ".join(failures(soak_server, siege))


def test_a_place_that_is_not_given_back_fails_the_siege(
    soak_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = Queue.leave
    kept: list[tuple[Queue, int, bool]] = []

    def keeps(self: Queue, num_answers: int, *, ran: bool) -> None:
        if kept:
            leave(self, num_answers, ran=ran)
        else:
            kept.append((self, num_answers, ran))

    monkeypatch.setattr(Queue, "leave", keeps)
    with running(options=OPTIONS) as server:
        attack = soak_server.ATTACKS["numbers"]()
        besieger = soak_server.Besieger(
            server.url, attack, seconds=1, quiet_seconds=0.5, patience=0.5
        )
        siege = asyncio.run(besieger.run())
        queue, num_answers, ran = kept[0]
        leave(queue, num_answers, ran=ran)
    assert "vllm:num_requests_running is 1 at the end" in failures(soak_server, siege)


def test_a_reply_to_an_attack_is_right_or_wrong(soak_server: Any) -> None:
    def is_right(status: int, text: str) -> bool:
        allowed = [(200, None), (400, "invalid_value")]
        return sys.modules["soak_replies"].read_attacked(status, text, allowed).fault is None

    error = {"message": "x", "type": "invalid_request_error", "code": "invalid_value"}
    assert is_right(200, '{"choices": []}')
    assert is_right(200, 'data: {"choices": []}\n\ndata: [DONE]\n\n')
    assert is_right(400, json.dumps({"error": error}))
    assert is_right(400, json.dumps({"type": "error", "error": {"message": "x", "type": "y"}}))
    assert not is_right(500, json.dumps({"error": error}))
    assert not is_right(400, json.dumps({"error": error | {"code": "other"}}))
    assert not is_right(400, json.dumps({"error": error | {"message": "x" * 5_000}}))
    assert not is_right(400, "{}")
    assert not is_right(200, 'data: {"error": {"message": "x"}}\n\n')
    assert not is_right(200, "")


def test_a_broken_request_may_be_refused_in_a_stream_that_was_kept_alive(soak_server: Any) -> None:
    def is_right(status: int, text: str) -> bool:
        return sys.modules["soak_replies"].read_broken(status, text, 400).fault is None

    error = {"message": "x", "type": "invalid_request_error", "code": "invalid_value"}
    refusal = json.dumps({"error": error})
    assert is_right(400, refusal)
    assert is_right(400, json.dumps({"error": {"message": "x", "type": "y"}}))
    assert is_right(200, f": waiting\n\n: waiting\n\ndata: {refusal}\n\n")
    assert is_right(200, ': w\n\ndata: {"error": {"message": "x", "code": "server_busy"}}\n\n')
    assert not is_right(404, refusal)
    assert not is_right(200, refusal)
    assert not is_right(200, f"data: {refusal}\n\n")
    assert not is_right(200, f': w\n\ndata: {{"choices": []}}\n\ndata: {refusal}\n\n')
    assert not is_right(200, ': w\n\ndata: {"error": {"message": "x", "type": "api_error"}}\n\n')
    assert not is_right(200, ": waiting\n\n")
    assert not is_right(400, '"error"')


def test_a_siege_that_nobody_watched_fails(soak_server: Any) -> None:
    siege = soak_server.Besieger("http://localhost", soak_server.ATTACKS["numbers"](), seconds=1)
    assert failures(soak_server, siege._siege) == ["nobody watched", "no request was sent"]


# The real model


@pytest.mark.slow
@pytest.mark.siege
@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_the_program_finds_nothing(name: str) -> None:
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    bound.close()
    # What only a server that stands still or leaks would reach: the machine of a test has other
    # work. The program's own limits are those that are promised.
    command = [
        sys.executable, str(BENCHMARKS / "soak_server.py"), "--attack", name, "--seconds", SECONDS,
        "--port", str(port), "--health-ms", "5000", "--neighbour-times", "20",
        "--memory-percent", "25",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (siege,) = json.loads(done.stdout.splitlines()[-1])["attacks"]
    assert siege["num_sent"] > 0
