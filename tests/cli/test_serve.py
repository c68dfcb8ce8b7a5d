"""`copyahead serve`: what it refuses, what it says, and how it ends."""

from __future__ import annotations

import platform
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

import copyahead.server
from copyahead.cli import run
from copyahead.cli.serve import HttpOptions, ServedModelOptions, _banner
from copyahead.config import Limits, LookupOptions, SharedOptions
from copyahead.engine.async_engine import AsyncEngine
from copyahead.loading import make_engine
from copyahead.server.service import ServerOptions, Service
from copyahead.testing import FakeBackend
from copyahead.types import Exactness
from tests.server.http.test_streaming import wait_for
from tests.server.toys import is_up, serving, toy_backend, toy_template

NO_MODEL = ("/no/such/model.gguf", "--port", "0")
NO_ORIGINS = ("foo", "", "https://a.org/", "https://a.org/x", "https://A.org", "https://*.a.org")

NO_HOSTS = ("", "*", "http://a.org", "a.org:80", "A.org", "::1", "a.org/x", "a..org")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--port", "x"], "port"),
        (["--api-key", " "], "--api-key"),
        (["--metrics-key", " m"], "--metrics-key must be printable"),
        (["--metrics-key", "k", "--api-key", "k"], "--metrics-key is an --api-key, too"),
        (["--max-queue", "-1"], "--max-queue"),
        (["--queue-seconds", "0"], "--queue-seconds"),
        (["--no-such-option"], "no-such-option"),
        *((["--cors-origin", text], f"--cors-origin '{text}' is no origin") for text in NO_ORIGINS),
        *((["--allowed-host", text], f"--allowed-host '{text}' is no name") for text in NO_HOSTS),
        # Before the model is looked for.
        (["/no/such/model.gguf", "--port", "0", "--policy", "best"], "policy 'best' is unknown"),
        (
            ["/no/such/model.gguf", "--port", "0", "--record", "/no/such/x"],
            "record file /no/such/x",
        ),
        (["/no/such/model.gguf", "--port", "0"], "does not exist"),
        # Options that are inherited from those of every model.
        (["/no/such/model.gguf", "--port", "0", "--threads", "1"], "does not exist"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_the_help_names_every_api(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name in ("chat completions", "text completions", "responses", "messages"):
        assert name in shown


def test_the_page_lists_every_code_of_an_error() -> None:
    source = Path(copyahead.server.__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    page = Path(__file__).parents[2].joinpath("docs", "server.md").read_text(encoding="utf-8")
    errors = page.partition("## Errors")[2].partition("\n## ")[0]
    codes = set(re.findall(r'code="(\w+)"', text))
    assert len(codes) > 10
    assert {code for code in codes if f"`{code}`" not in errors} == set()


def test_options_come_from_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COPYAHEAD_HOST", "0.0.0.0")
    assert run(["serve"]) == 2
    assert "host 0.0.0.0" in capsys.readouterr().err


def test_origins_as_browsers_send_them_are_taken() -> None:
    good = ("*", "null", "https://a.org", "http://localhost:3000", "http://[::1]:80", "app://x")
    assert HttpOptions(cors_origin=good).cors_origin == good


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
    assert "page: http://127.0.0.1:1/\n" in text
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
        if platform.libc_ver()[0] == "glibc":
            # It is the same process all the same: signals reach it.
            environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            assert {b"PYTHONMALLOC=malloc", b"MALLOC_ARENA_MAX=1"} <= set(environment)
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


OVER_A_TOY = """
import sys
from copyahead.cli import main, serve
from copyahead.config import LookupOptions
from copyahead.engine.async_engine import AsyncEngine
from copyahead.loading import make_engine
from copyahead.server.service import Service
from tests.server.toys import toy_backend, toy_template

def hold(number, parts):
    if number == 5:
        sys.stdin.readline()
    return False

def service(model, http, options, *_):
    backend = toy_backend(seconds=0.01, fail_on=hold)
    engine = make_engine(backend, lookup=LookupOptions(lookup=False))
    return Service(AsyncEngine(engine), options, toy_template())

serve._service = service
main()
"""


@pytest.mark.parametrize(
    ("signals", "last"),
    [
        ([signal.SIGINT], "[DONE]"),
        ([signal.SIGTERM], "[DONE]"),
        ([signal.SIGINT, signal.SIGINT], "shutting_down"),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGTERM], "shutting_down"),
    ],
)
def test_signals_end_the_server_in_good_order(
    tmp_path: Path, signals: list[signal.Signals], last: str
) -> None:
    words, trace = tmp_path / "words", tmp_path / "trace.jsonl"
    command = [sys.executable, "-c", OVER_A_TOY, "serve", "--port", "0", "--record", str(trace)]
    pipe = subprocess.PIPE
    with words.open("w") as error, subprocess.Popen(command, stdin=pipe, stderr=error) as process:
        try:
            url = address_in(words)
            body = {"prompt": "tell", "max_tokens": 150, "stream": True, "ignore_eos": True}
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as stream:
                lines = filter(None, stream.iter_lines())
                seen = [next(lines)]
                process.send_signal(signals[0])
                wait_for(lambda: not is_up(url))
                # The answer's fifth pass does not end before it is let go.
                for number in signals[1:]:
                    process.send_signal(number)
                assert process.stdin is not None
                process.stdin.write(b"\n")
                process.stdin.flush()
                seen += lines
            assert last in seen[-1]
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
    assert "Traceback" not in words.read_text()
    assert trace.read_bytes().count(b"\n") == 1


def test_a_client_that_never_ends_its_request_is_left_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("copyahead.server.run._LAST_WORDS_SECONDS", 1)
    engine = AsyncEngine(make_engine(toy_backend(), lookup=LookupOptions(lookup=False)))
    options = ServerOptions(limits=Limits(shutdown_seconds=0.2))
    with serving(Service(engine, options, toy_template())) as (url, _):
        client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\nexpect: 100-continue\r\n\r\n"
        )
        # So the server waits for the body.
        assert b"100 Continue" in client.recv(1000)
        client.sendall(b"{")
    client.close()
    assert not [record for record in caplog.records if record.exc_info]


def address_in(words: Path) -> str:
    """The address that a server writes to a file when it is up."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = re.search(r"^address: (\S+)", words.read_text(), re.MULTILINE)
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"the server did not come up: {words.read_text()}")


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
