"""No grammar of a client ends the server or stands in the way of another's."""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from copyahead.engine import Engine, Request
from copyahead.engine.async_engine import AsyncEngine
from copyahead.errors import RequestError
from copyahead.grammar.child import GrammarChild
from copyahead.grammar.compiler import Grammar
from copyahead.grammar.queue import MAX_SECONDS
from copyahead.grammar.state import GrammarState
from copyahead.testing import FakeBackend, ToyLM, ToyTokenizer
from tests.server.toys import Running, running, toy_backend

pytest.importorskip("llguidance")

TEXT = ToyTokenizer([b"", *(bytes([byte]) for byte in range(32, 127))])


def refs(count: int) -> dict[str, Any]:
    """Each refers to the next."""
    defs: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {"$defs": {**defs, f"d{count}": {}}, "$ref": "#/$defs/d0"}


def rules(count: int, name: str) -> str:
    """Each rule, or terminal, begins with the next."""
    chain = "".join(f'{name}{i}: {name}{i + 1} "a"\n' for i in range(count))
    return f'start: {name}0\n{chain}{name}{count}: "b"'


EXPONENTIAL = {"type": "string", "allOf": [{"pattern": f"a{{{i}}}.*b"} for i in range(2, 30)]}
SIMPLE = '{"enum": [1]}'
DEEP, SLOW = "cannot be compiled: it is nested too deep", "takes more than 1 seconds to compile"


def backend() -> FakeBackend:
    return FakeBackend(ToyLM(seed=1, vocab_size=TEXT.vocab_size), tokenizer=TEXT)


def constrained(**constraint: str) -> Request:
    return Request(prompt=[1], max_tokens=9, **constraint)  # type: ignore[arg-type]


def pid_of(engine: Engine) -> int:
    process = engine.grammar_child._process
    assert process is not None
    return process.pid


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        ("json_schema", json.dumps(refs(5000)), DEEP),
        ("grammar", rules(3500, "r"), DEEP),
        ("grammar", rules(5000, "T"), DEEP),
        ("json_schema", json.dumps(EXPONENTIAL), SLOW),
    ],
    ids=["refs", "rules", "terminals", "patterns"],
)
async def test_what_the_compiler_cannot_do_is_refused_and_the_next_one_compiles(
    field: str, text: str, why: str
) -> None:
    num_threads = threading.active_count()
    inner = Engine(backend())
    async with AsyncEngine(inner) as engine:
        engine.compiling.max_seconds = 1.0
        with pytest.raises(RequestError, match=f"{field} {why}") as caught:
            await engine.complete(constrained(**{field: text}))
        assert caught.value.field == field
        assert (await engine.complete(constrained(json_schema=SIMPLE))).text == "1"
        pid = pid_of(inner)
    assert has_ended(pid)
    # The pool of the event loop may have got the thread that closed the engine.
    names = {thread.name for thread in threading.enumerate()}
    assert "copyahead-grammar" not in names
    assert threading.active_count() <= num_threads + 1


def ask(server: Running, schema: Any) -> httpx.Response:
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = {"messages": [{"role": "user", "content": "say:no"}], "response_format": named}
    return httpx.post(f"{server.api}/chat/completions", json=body, timeout=30)


def ask_for_call(server: Running, schema: Any) -> httpx.Response:
    body = {
        "messages": [{"role": "user", "content": "say:no"}],
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": schema}}}],
        "tool_choice": {"type": "any"},
        "max_tokens": 50,
    }
    return httpx.post(f"{server.api}/messages", json=body, timeout=30)


@pytest.mark.parametrize(
    ("schema", "why"), [(refs(5000), DEEP), (EXPONENTIAL, SLOW)], ids=["deep", "slow"]
)
def test_over_http_it_is_a_400_with_the_route_s_own_name(schema: Any, why: str) -> None:
    with running(toy_backend()) as server:
        server.service.engine.compiling.max_seconds = 1.0
        refused = ask(server, schema)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "response_format"
        assert refused.json()["error"]["message"].startswith(f"response_format {why}")
        assert ask(server, {"enum": [1]}).json()["choices"][0]["message"]["content"] == "1"


def test_over_http_a_grammar_that_fails_while_it_is_followed_is_the_client_s_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(state: GrammarState, token: int) -> None:
        raise RequestError("the grammar failed: planted", field="grammar")

    with running(toy_backend()) as server:
        monkeypatch.setattr(GrammarState, "accept", fails)
        failed = ask(server, {"enum": [1]})
        error = failed.json()["error"]
        assert (failed.status_code, error["code"]) == (400, "invalid_value")
        assert "planted" in error["message"]


def test_over_http_a_tool_s_schema_is_refused_too() -> None:
    with running(toy_backend()) as server:
        server.service.engine.compiling.max_seconds = 1.0
        refused = ask_for_call(server, EXPONENTIAL)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(f"tools {SLOW}")
        assert ask(server, {"enum": [1]}).status_code == 200


# The child

CHECKED = Grammar("json_schema", SIMPLE).in_llguidance_form()


def test_a_special_token_of_the_model_may_be_named() -> None:
    text = Grammar("grammar", f"start: <[{TEXT.vocab_size - 1}]>").in_llguidance_form()
    unknown = Grammar("grammar", "start: NoSuch").in_llguidance_form()
    child = GrammarChild(TEXT.vocab_size)
    try:
        assert child.check(text, MAX_SECONDS) == ""
        assert "NoSuch" in child.check(unknown, MAX_SECONDS)
    finally:
        child.close()


def test_a_child_that_died_between_two_checks_is_started_again() -> None:
    child = GrammarChild(TEXT.vocab_size)
    try:
        assert child.check(CHECKED, MAX_SECONDS) == ""
        process = child._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        while process.status is None:
            time.sleep(0.01)
        assert child.check(CHECKED, MAX_SECONDS) == ""
    finally:
        child.close()


class _Watched:
    """What a process says, and whether somebody waits for it."""

    def __init__(self, said: Any) -> None:
        self.asked = threading.Event()
        self.close = said.close
        self._said = said

    def readline(self) -> bytes:
        """The next line."""
        self.asked.set()
        line: bytes = self._said.readline()
        return line


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep nothing")
def test_what_a_large_grammar_took_is_given_back() -> None:
    wide: Any = {"type": "integer"}
    for level in range(12):
        wide = {"anyOf": [wide, {"type": "array", "items": wide, "maxItems": 9 + level}]}
    large, small = (
        Grammar("json_schema", json.dumps(schema)).in_llguidance_form()
        for schema in (wide, {"enum": [1]})
    )
    child = GrammarChild(100)
    try:
        held = []
        for grammar in (small, large):
            # It answers first, and gives back then: so the next answer comes after that.
            assert child.check(grammar, 30.0) == child.check(small, 30.0) == ""
            assert child._process is not None
            held.append(resident_mb(child._process.pid))
    finally:
        child.close()
    assert held[1] < held[0] + 20


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def test_closing_ends_a_check() -> None:
    child = GrammarChild(TEXT.vocab_size)
    assert child.check(CHECKED, MAX_SECONDS) == ""
    slow = Grammar("json_schema", json.dumps(EXPONENTIAL)).in_llguidance_form()
    faults: list[Exception] = []

    def check() -> None:
        try:
            child.check(slow, 60.0)
        except Exception as error:
            faults.append(error)

    process = child._process
    assert process is not None
    waits = _Watched(process._process.stdout)
    process._process.stdout = waits  # type: ignore[assignment]
    thread = threading.Thread(target=check)
    thread.start()
    assert waits.asked.wait(timeout=30)
    assert thread.is_alive()
    child.close()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert isinstance(faults[0], ChildProcessError)


def test_an_engine_that_warms_up_has_a_child_and_ends_it() -> None:
    with Engine(backend()) as engine:
        engine.warm_up()
        pid = pid_of(engine)
        assert not has_ended(pid)
    assert has_ended(pid)


def _no_such_program(child: GrammarChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))


def _no_llguidance(child: GrammarChild, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text("raise ImportError")
    child._program[0] = str(tmp_path / "program.py")


@pytest.mark.parametrize("spoil", [_no_such_program, _no_llguidance])
async def test_where_no_child_starts_grammars_are_compiled_all_the_same(
    spoil: Callable[[GrammarChild, Path, pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = Engine(backend())
    spoil(inner.grammar_child, tmp_path, monkeypatch)
    async with AsyncEngine(inner) as engine:
        with caplog.at_level(logging.WARNING, logger="copyahead.grammar.child"):
            for _ in range(2):
                assert (await engine.complete(constrained(json_schema=SIMPLE))).text == "1"
    assert [record.getMessage()[:30] for record in caplog.records] == [
        "grammars are compiled unchecked"[:30]
    ]
