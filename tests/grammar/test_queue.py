"""Grammars are compiled beside the engine: nobody else waits, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import msgspec
import pytest

from copyahead.engine import Engine, Request
from copyahead.engine.async_engine import AsyncEngine
from copyahead.errors import EngineStopped, RequestError
from copyahead.grammar.compiler import MAX_CHARACTERS, Grammar, GrammarCompiler
from copyahead.grammar.queue import MAX_WAITING
from copyahead.grammar.state import GrammarState
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ToyLM, ToyTokenizer
from tests.server.toys import TOKENIZER, VOCAB, Running, running, toy_backend, toy_template
from tests.toys import plain, same

pytest.importorskip("llguidance")

TEXT = ToyTokenizer([b"", *(bytes([byte]) for byte in range(32, 127))])
FREE = Request(prompt=[1, 2], max_tokens=20, ignore_eos=True)
HELD = Request(
    prompt=[1], json_schema='{"enum": ["a", "b"]}', sampling=SamplingOptions(temperature=1, seed=3)
)


class HeldCompiler(GrammarCompiler):
    """Begins to compile, and goes on when it is let go."""

    def __init__(self, tokenizer: Any = TEXT, vocab_size: int = TEXT.vocab_size) -> None:
        super().__init__(tokenizer, vocab_size)
        self.begun, self.go = threading.Semaphore(0), threading.Event()
        self.num_calls = 0
        self.fault: BaseException | None = None

    def compile(self, grammar: Grammar) -> GrammarState:
        self.num_calls += 1
        self.begun.release()
        assert self.go.wait(timeout=30)
        if self.fault is not None:
            raise self.fault
        return super().compile(grammar)

    async def has_begun(self) -> None:
        """Return when it compiles."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=10)


def backend() -> FakeBackend:
    return FakeBackend(ToyLM(seed=1, vocab_size=TEXT.vocab_size), tokenizer=TEXT)


def held_engine() -> tuple[AsyncEngine, HeldCompiler]:
    engine, compiler = Engine(backend()), HeldCompiler()
    engine.grammar_compiler = compiler
    return AsyncEngine(engine), compiler


async def test_others_start_and_end_while_a_grammar_is_compiled() -> None:
    engine, compiler = held_engine()
    async with engine:
        waiting = engine.generate(HELD)
        answer = asyncio.create_task(_text(waiting))
        await compiler.has_begun()
        # The compiler cannot end before it is let go.
        assert same(await engine.complete(FREE), plain(backend(), FREE))
        assert waiting.handle is None
        assert not answer.done()
        compiler.go.set()
        assert await answer == plain(backend(), HELD).text


async def _text(stream: Any) -> str:
    return "".join([chunk.text async for chunk in stream])


async def test_a_request_that_leaves_while_its_grammar_is_compiled_is_never_submitted() -> None:
    engine, compiler = held_engine()
    async with engine:
        leaving = engine.generate(HELD)
        await compiler.has_begun()
        leaving.close()
        await leaving.accepted()
        compiler.go.set()
        assert same(await engine.complete(HELD), plain(backend(), HELD))
        assert leaving.handle is None
        assert engine.num_active == 0
    assert compiler.num_calls == 2


async def test_one_compiles_at_once_and_none_for_a_client_that_has_left() -> None:
    engine, compiler = held_engine()
    async with engine:
        first = engine.generate(HELD)
        await compiler.has_begun()
        gone, last = engine.generate(HELD), engine.generate(HELD)
        # A request without a grammar comes after them in the engine's queue, and passes them.
        await engine.complete(FREE)
        assert compiler.num_calls == 1
        gone.close()
        compiler.go.set()
        for stream in (first, last):
            await _text(stream)
        assert compiler.num_calls == 2


async def test_a_bounded_number_wait_and_no_thread_comes_for_any_of_them() -> None:
    engine, compiler = held_engine()
    async with engine:
        first = engine.generate(HELD)
        await compiler.has_begun()
        num_threads = threading.active_count()
        waiting = [engine.generate(HELD) for _ in range(MAX_WAITING)]
        with pytest.raises(RequestError, match="json_schema cannot be compiled now") as caught:
            await engine.complete(HELD)
        assert caught.value.field == "json_schema"
        assert threading.active_count() == num_threads
        # Who has left makes room.
        waiting[0].close()
        await engine.complete(FREE)
        late = engine.generate(HELD)
        compiler.go.set()
        for stream in (first, *waiting[1:], late):
            await _text(stream)
        assert compiler.num_calls == MAX_WAITING + 1


async def test_a_thread_that_does_not_start_fails_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(run: Any) -> threading.Thread:
        raise RuntimeError("can't start new thread")

    async with AsyncEngine(Engine(backend())) as engine:
        with monkeypatch.context() as patch:
            patch.setattr("copyahead.grammar.queue._start_thread", start)
            with pytest.raises(RuntimeError, match="can't start"):
                await engine.complete(HELD)
        assert same(await engine.complete(FREE), plain(backend(), FREE))
        assert same(await engine.complete(HELD), plain(backend(), HELD))


async def test_an_engine_that_is_closed_does_not_wait_for_a_compiler() -> None:
    engine, compiler = held_engine()
    async with engine:
        stream = engine.generate(HELD)
        await compiler.has_begun()
    with pytest.raises(EngineStopped):
        await _text(stream)
    compiler.go.set()


class Panic(BaseException):
    """As a library's panic comes through: not an Exception."""


@pytest.mark.parametrize("fault", [Panic("oh"), ValueError("oh"), RequestError("oh", field="x")])
async def test_a_compiler_that_fails_fails_one_request(fault: BaseException) -> None:
    engine, compiler = held_engine()
    compiler.fault = fault
    compiler.go.set()
    async with engine:
        with pytest.raises(Exception, match="oh"):
            await engine.complete(HELD)
        compiler.fault = None
        assert same(await engine.complete(HELD), plain(backend(), HELD))


def test_several_answers_share_one_compilation() -> None:
    engine, compiler = Engine(backend()), HeldCompiler()
    engine.grammar_compiler = compiler
    compiler.go.set()
    with engine:
        texts = [c.text for c in engine.complete(_with(HELD, n=3)).choices]
    assert compiler.num_calls == 1
    expected = plain(backend(), _with(HELD, n=3)).choices
    assert texts == [choice.text for choice in expected]
    assert set(texts) <= {'"a"', '"b"'}


def _with(request: Request, **changes: Any) -> Request:
    return msgspec.structs.replace(request, **changes)


@pytest.mark.parametrize("field", ["json_schema", "grammar"])
@pytest.mark.parametrize("over", [0, 1])
def test_a_grammar_of_the_longest_size_and_one_more(field: str, over: int) -> None:
    text = '{"enum": [1]}' if field == "json_schema" else 'start: "1"'
    options: Any = {field: text.ljust(MAX_CHARACTERS + over)}
    with Engine(backend()) as engine:
        request = Request(prompt=[1], max_tokens=1, **options)
        if not over:
            assert engine.complete(request).text == "1"
            return
        with pytest.raises(RequestError, match="1000000 are allowed") as caught:
            engine.complete(request)
        assert caught.value.field == field


def test_a_fault_of_the_compiler_is_told_without_its_inside() -> None:
    words = " | ".join(f'"{place}x"' for place in range(70_000))
    with pytest.raises(RequestError, match="grammar does not compile") as caught:
        GrammarCompiler(TEXT, TEXT.vocab_size).compile(Grammar("grammar", f"start: {words}"))
    assert "backtrace" not in str(caught.value)
    assert "\n" not in str(caught.value)


# Over HTTP

SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1]}}}


def ask(server: Running, text: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 50, **fields}
    return httpx.post(f"{server.api}/chat/completions", json=body, timeout=30)


def test_a_stream_and_the_health_check_go_on_while_a_schema_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiler = HeldCompiler(TOKENIZER, VOCAB)
    monkeypatch.setattr("copyahead.engine.engine.GrammarCompiler", lambda *_: compiler)
    with running(toy_backend()) as server:
        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(ask(server, "say:no", response_format=SCHEMA))
        )
        thread.start()
        assert compiler.begun.acquire(timeout=10)
        assert "[DONE]" in ask(server, "say:the and", stream=True).text
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        assert not answers
        compiler.go.set()
        thread.join(timeout=30)
        assert answers[0].json()["choices"][0]["message"]["content"] == "1"


WRONG = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
WIDE = {"type": "json_schema", "schema": {"enum": ["x" * MAX_CHARACTERS]}}
NAMED = {"name": "f", "parameters": WRONG}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (
            "chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": WIDE}},
            "response_format",
        ),
        (
            "chat/completions",
            {"tools": [{"type": "function", "function": NAMED}], "tool_choice": "required"},
            "tools",
        ),
        ("responses", {"text": {"format": WIDE}}, "text.format"),
        (
            "responses",
            {"tools": [{"type": "function", **NAMED}], "tool_choice": "required"},
            "tools",
        ),
        ("messages", {"output_config": {"format": WIDE}}, "output_config.format"),
        (
            "messages",
            {"tools": [{"name": "f", "input_schema": WRONG}], "tool_choice": {"type": "any"}},
            "tools",
        ),
    ],
)
@pytest.mark.parametrize("opening", ["", "<think>"])
def test_what_does_not_compile_is_refused_by_the_name_that_the_route_has_for_it(
    path: str, body: dict[str, Any], param: str, opening: str
) -> None:
    said = [{"role": "user", "content": "say:no"}]
    asked = {"input": said} if path == "responses" else {"messages": said, "max_tokens": 9}
    with running(template=toy_template(opening)) as server:
        answer = httpx.post(f"{server.api}/{path}", json={**asked, **body}, timeout=30)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(param)
    assert error.get("param", param) == param
    assert len(json.dumps(error)) < 1000
