"""A template is a program of strangers: what it may cost, and what becomes of it."""

from __future__ import annotations

import contextvars
import gc
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from copyahead.backends.llama_cpp.gguf import find_model
from copyahead.chat.template import child as children
from copyahead.chat.template.child import RenderingChildren
from copyahead.chat.template.template import CHATML, ChatTemplate
from copyahead.children.asker import Asker
from copyahead.errors import EngineStopped, ModelError, TemplateError, TemplateLimitError
from copyahead.testing import FakeBackend
from tests.server.toys import running

POWER = "{{ 7 ** (9 ** 9) }}"
# What is constant is computed when a template is compiled; this is not.
LATE = "{{ 7 ** (9 ** (8 + messages | length)) }}"
LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
)
WIDE = "{{ 'x' * (10 ** 12) }}"
LONG = "{{ 'x' * (messages | length * 2 ** 26) }}"
DEEP = "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second is enough, also for those that were made with the default."""
    defaults = {"max_seconds": 1.0}
    monkeypatch.setattr(RenderingChildren.__init__, "__kwdefaults__", defaults)


def spoilt(source: str) -> str:
    """A template that does this only when it is asked."""
    return "{% if messages[0].content == 'spoil' %}" + source + "{% endif %}"


def backend_with(source: str) -> FakeBackend:
    backend = FakeBackend()
    backend.chat_template = source
    return backend


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize("source", [POWER, LOOPS, DOUBLED, WIDE, LATE])
@pytest.mark.usefixtures("quick")
def test_a_template_that_takes_too_much_is_left_for_chatml(
    source: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        template = ChatTemplate.from_backend(backend_with(source))
    assert template.source == CHATML
    (record,) = caplog.records
    assert "written as ChatML" in record.getMessage()


@pytest.mark.parametrize("source", [LATE, LOOPS])
def test_one_that_takes_too_long_for_a_request_is_ended(source: str) -> None:
    rendering = RenderingChildren(spoilt(source) + "{{ messages[0].content }}")
    try:
        assert rendering.render(said("a")) == "a"
        rendering.max_seconds = 0.5
        with pytest.raises(TemplateLimitError, match=r"more than 0.5 seconds.*shorter"):
            rendering.render(said("spoil"))
        rendering.max_seconds = 30
        assert rendering.render(said("b")) == "b"
    finally:
        rendering.close()


@pytest.mark.parametrize("source", [DOUBLED, "{{ 'x' * (messages | length * 10 ** 12) }}", LONG])
def test_one_that_takes_too_much_memory_for_a_request_is_ended(source: str) -> None:
    rendering = RenderingChildren(spoilt(source) + "{{ messages[0].content }}")
    try:
        with pytest.raises(TemplateLimitError, match="too much memory"):
            rendering.render(said("spoil"))
        assert rendering.render(said("b")) == "b"
    finally:
        rendering.close()


def test_the_reasons_of_a_template_come_through() -> None:
    for source, names, words in (
        ("{% if %}", {}, "has a fault"),
        ("{{ raise_exception('no ' + a) }}", {"a": "way"}, "^no way$"),
        (DEEP, {}, "recursion"),
        ("{{ a }}", {"a": threading.Lock()}, "JSON"),
    ):
        rendering = RenderingChildren(source)
        try:
            with pytest.raises(TemplateError, match=words):
                rendering.render(names)
        finally:
            rendering.close()


def test_texts_come_through_whatever_they_hold() -> None:
    text = "é € 😀 \ud800 \u2028 \n\r \x00 \\n \ue000" + "x" * 100_000
    rendering = RenderingChildren("{{ a }}")
    try:
        assert rendering.render({"a": text}) == text
    finally:
        rendering.close()


def test_a_slow_rendering_keeps_nobody_else_waiting() -> None:
    rendering = RenderingChildren(spoilt(LATE) + "{{ messages[0].content }}")
    faults: list[Exception] = []

    def ask() -> None:
        try:
            rendering.render(said("spoil"))
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=ask) for _ in range(children.MAX_PROCESSES - 1)]
    rendering.max_seconds = 600
    for thread in threads:
        thread.start()
    try:
        # The slow ones never end by themselves.
        assert [rendering.render(said(str(n))) for n in range(5)] == list("01234")
        assert not faults
    finally:
        rendering.close()
        for thread in threads:
            thread.join(30)
    assert all(isinstance(fault, EngineStopped) for fault in faults)
    assert len(faults) == len(threads)
    with pytest.raises(EngineStopped):
        rendering.render(said("x"))


def test_processes_end_with_the_template_that_nobody_holds() -> None:
    template: ChatTemplate | None = ChatTemplate.from_backend(
        backend_with("{{ messages[0].content }}")
    )
    assert template is not None
    assert template._children is not None
    (process,) = template._children._running
    template = None
    gc.collect()
    assert process.status is not None


def test_over_http_it_is_a_400_and_the_next_request_is_served() -> None:
    source = spoilt(LATE) + "<|user|>{{ messages[0].content }}<|end|><|answer|>"
    rendering = RenderingChildren(source)
    template = ChatTemplate(source, children=rendering)
    rendering.max_seconds = 0.5
    with running(template=template) as server:
        url = f"{server.api}/chat/completions"
        refused = httpx.post(url, json=said("spoil"), timeout=60)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "messages"
        assert "takes more than 0.5 seconds" in refused.json()["error"]["message"]
        rendering.max_seconds = 30
        answer = httpx.post(url, json=said("say:hi"), timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "hi"
    with pytest.raises(EngineStopped):
        template.render(said("x")["messages"])


def test_a_model_that_is_no_file_is_refused_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for path in (tmp_path / "pipe.gguf", Path("/dev/zero")):
        with pytest.raises(ModelError, match="is a pipe or a device"):
            find_model(path)
    with pytest.raises(ModelError, match="directory"):
        find_model(tmp_path)


def test_a_rendering_ends_when_whoever_asks_for_it_leaves() -> None:
    rendering = RenderingChildren(spoilt(LATE) + "{{ messages[0].content }}", max_seconds=600)
    template = ChatTemplate(CHATML, children=rendering)
    asker, faults = Asker(), list[Exception]()

    def ask() -> None:
        asker.set_here()
        try:
            template.render(said("spoil")["messages"])
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        while not asker._endings:
            thread.join(0.01)
            assert thread.is_alive()
        (busy,) = rendering._running - {child for child, _ in rendering._idle}
        asker.leave()
        thread.join(30)
        assert isinstance(faults[0], EngineStopped)
        assert busy.status is not None
        assert rendering.render(said("b")) == "b"
    finally:
        rendering.close()


def test_nothing_is_rendered_for_somebody_who_has_left() -> None:
    rendering, asker = RenderingChildren("{{ a }}"), Asker()
    asker.leave()

    def ask() -> None:
        asker.set_here()
        with pytest.raises(EngineStopped):
            rendering.render({"a": "x"})

    contextvars.copy_context().run(ask)
    assert not rendering._running


def test_over_http_the_rendering_ends_when_the_client_leaves() -> None:
    source = spoilt(LATE) + "<|user|>{{ messages[0].content }}<|end|><|answer|>"
    rendering = RenderingChildren(source, max_seconds=600)
    with running(template=ChatTemplate(source, children=rendering)) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.api}/chat/completions", json=said("spoil"), timeout=1)
        until = time.monotonic() + 30
        while rendering._running - {child for child, _ in rendering._idle}:
            assert time.monotonic() < until, "it still renders"
            time.sleep(0.02)
        answer = httpx.post(f"{server.api}/chat/completions", json=said("say:x"), timeout=30)
        assert answer.status_code == 200


def test_processes_that_are_not_needed_any_more_are_ended_but_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "IDLE_SECONDS", 0.2)
    source = spoilt("{% for a in range(3000) %}{% for b in range(999) %}{% endfor %}{% endfor %}")
    rendering = RenderingChildren(source)
    threads = [threading.Thread(target=rendering.render, args=(said("spoil"),)) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(rendering._running) > 1
        rendering.rest()
        until = time.monotonic() + 30
        while len(rendering._running) > 1 and time.monotonic() < until:
            time.sleep(0.05)
            rendering.rest()
        assert len(rendering._running) == 1
        assert rendering.render(said("a")) == ""
    finally:
        rendering.close()


def test_one_that_was_ended_after_it_answered_serves_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendering, asker = RenderingChildren("{{ a }}"), Asker()
    ask = RenderingChildren._ask

    def answered_too_late(self: RenderingChildren, child: Any, line: bytes) -> Any:
        answer = ask(self, child, line)
        if b"late" in line:
            asker.leave()
        return answer

    monkeypatch.setattr(RenderingChildren, "_ask", answered_too_late)

    def ask_late() -> None:
        asker.set_here()
        with pytest.raises(EngineStopped):
            rendering.render({"a": "late"})

    try:
        contextvars.copy_context().run(ask_late)
        assert rendering.render({"a": "x"}) == "x"
    finally:
        rendering.close()
