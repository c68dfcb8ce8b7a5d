"""A template is a program of strangers: what it may cost, and what becomes of it."""

from __future__ import annotations

import gc
import logging
import os
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from copyahead.backends.llama_cpp.gguf import find_model
from copyahead.chat.template import child as children
from copyahead.chat.template.child import RenderingChildren
from copyahead.chat.template.template import CHATML, ChatTemplate
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
