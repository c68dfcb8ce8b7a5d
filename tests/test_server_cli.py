"""`copyahead serve`: what it refuses, what it says, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading

import httpx
import pytest

from copyahead.cli import run
from copyahead.cli.serve import ServedModelOptions, _banner
from copyahead.config import LookupOptions, SharedOptions
from copyahead.engine.async_engine import AsyncEngine
from copyahead.loading import make_engine
from copyahead.server.service import ServerOptions, Service
from copyahead.testing import FakeBackend
from copyahead.types import Exactness
from tests.server_toys import toy_backend, toy_template


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--port", "x"], "port"),
        (["--api-key", " "], "api_key"),
        (["--max-queue", "-1"], "max_queue"),
        (["--queue-seconds", "0"], "queue_seconds"),
        (["--no-such-option"], "no-such-option"),
        (["/no/such/model.gguf", "--port", "0"], "does not exist"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_options_come_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COPYAHEAD_HOST", "0.0.0.0")
    assert run(["serve"]) == 2
    assert "host 0.0.0.0" in capsys.readouterr().err


def test_four_slots_unless_told_otherwise() -> None:
    assert ServedModelOptions().parallel == 4
    assert ServedModelOptions(ctx=512).parallel == 4


def banner(
    backend: FakeBackend,
    lookup: LookupOptions,
    keys: tuple[str, ...] = (),
    shared: SharedOptions | None = None,
) -> str:
    shared = shared or SharedOptions()
    engine = AsyncEngine(make_engine(backend, lookup=lookup, shared=shared))
    options = ServerOptions(model_name="toy", api_keys=keys)
    service = Service(engine, options, toy_template())
    try:
        return _banner(service, lookup, shared, "http://127.0.0.1:1")
    finally:
        service.close()


def test_the_start_says_what_is_served_and_how() -> None:
    exact = Exactness(level="exact", rows=64, max_abs_diff=0.0)
    text = banner(toy_backend(exactness=exact), LookupOptions(policy="fixed"), ("k",))
    for part in ("model: toy", "context: 2048", "slots: 4", "exact up to 64 rows",
                 "lookup: on, policy fixed", "keys: 1", "http://127.0.0.1:1/v1"):  # fmt: skip
        assert part in text
    assert "shared store: off" in text
    shared = SharedOptions(shared=True, shared_tokens=5000)
    assert "shared store: 5000 tokens a tenant" in banner(
        toy_backend(), LookupOptions(policy="fixed"), shared=shared
    )
    assert "shared store: off" in banner(toy_backend(), LookupOptions(lookup=False), shared=shared)
    assert "keys: none" in banner(toy_backend(), LookupOptions(lookup=False))


def test_where_nothing_is_drafted_the_start_says_why() -> None:
    assert "lookup: off, by --no-lookup" in banner(toy_backend(), LookupOptions(lookup=False))
    stiff = banner(toy_backend(max_rewind=0), LookupOptions(policy="fixed"))
    assert "lookup: off: the model cannot take tokens back" in stiff


@pytest.mark.model
def test_ctrl_c_lets_a_stream_end_and_exits_in_good_order() -> None:
    command = [sys.executable, "-c", "from copyahead.cli import main; main()", "serve"]
    command += ["--port", "0", "--threads", "1", "--ctx", "512", "--no-lookup"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = address_of(process)
        body = {"prompt": "The sea", "max_tokens": 40, "stream": True, "ignore_eos": True}
        lines: list[str] = []
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as stream:
            for line in filter(None, stream.iter_lines()):
                lines.append(line)
                if len(lines) == 3:
                    process.send_signal(signal.SIGINT)
        assert lines[-1] == "data: [DONE]"
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    """Read the start of a server's words up to its address; its later words are thrown away."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        found = re.search(r"^address: (\S+)", line)
        if found:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return found[1]
    raise AssertionError(f"the server did not come up: {seen}")
