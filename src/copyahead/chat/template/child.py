"""The processes in which a model's chat template runs: see `render`."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from copyahead.children.asker import has_left, while_asked
from copyahead.children.process import ChildProcess
from copyahead.errors import EngineStopped, TemplateError, TemplateLimitError

PROGRAM = ("-m", "copyahead.chat.template.render")
MAX_SECONDS = 10.0
"""Longest rendering; that of a long conversation takes a fraction of a second."""
START_SECONDS = 30.0
"""Longest start; it takes a fraction of a second."""
MAX_BYTES = 1 << 30
"""Most memory of a process. A prompt of a megabyte takes a fraction of it."""
MAX_PROCESSES = 4
"""A conversation that takes long keeps one of them busy, and the others serve."""
IDLE_SECONDS = 10.0
"""After it, all but one are ended."""


class RenderingChildren:
    """Renders one template, in as many processes as there is work for. Safe to call from threads.

    They are started when needed, and ended by `close`, or when nobody holds this any more.
    """

    def __init__(self, source: str, *, max_seconds: float = MAX_SECONDS) -> None:
        """Starts nothing yet."""
        self.max_seconds = max_seconds
        self._source = source
        self._places = threading.Semaphore(MAX_PROCESSES)
        self._lock = threading.Lock()
        self._idle: list[tuple[ChildProcess, float]] = []
        """With the time since when."""
        self._running: set[ChildProcess] = set()
        """All of them, the idle ones too."""
        self._closed = False
        weakref.finalize(self, _end_all, self._running)

    def start(self) -> None:
        """Start one, and have it read the template. TemplateError for one with a fault."""
        with self._places:
            self._give_back(self._take())

    def render(self, names: Mapping[str, Any]) -> str:
        """What the template makes of `names`.

        Raises TemplateError with the template's own reason, TemplateLimitError where it takes too
        long or too much memory, and EngineStopped after `close`, and where whoever waits for it
        leaves: the process is ended then.
        """
        try:
            line = _json(names)
        except (TypeError, ValueError, RecursionError) as error:
            raise TemplateError(f"it is given what JSON cannot say: {error}") from None
        with self._places:
            _check_asked()
            child = self._take()
            with while_asked(child.kill):
                answer = self._ask(child, line)
            if has_left():
                # It may have been ended after it answered.
                self._drop(child)
                _check_asked()
            self._give_back(child)
        return _text(answer)

    def rest(self) -> None:
        """End one that has long been idle, where it is not the last. To be called often."""
        with self._lock:
            if len(self._running) < 2 or not self._idle:
                return
            child, since = self._idle[0]
            if time.monotonic() - since < IDLE_SECONDS:
                return
            del self._idle[0]
            self._running.discard(child)
        child.end()

    def close(self) -> None:
        """End all processes, also while they render. Idempotent."""
        with self._lock:
            self._closed = True
            self._idle.clear()
            children = list(self._running)
            self._running.clear()
        for child in children:
            child.end()

    def _take(self) -> ChildProcess:
        """A process of one's own for a while."""
        with self._lock:
            self._check_open()
            if self._idle:
                return self._idle.pop()[0]
            try:
                child = ChildProcess(PROGRAM, max_bytes=MAX_BYTES)
            except OSError as error:
                raise _no_process(error) from None
            self._running.add(child)
        try:
            child.ask(b"", START_SECONDS)
        except OSError as error:
            self._forget(child)
            raise _no_process(error) from None
        answer = self._ask(child, json.dumps(self._source).encode() + b"\n")
        if "error" in answer:
            self._drop(child)
        _text(answer)
        return child

    def _give_back(self, child: ChildProcess) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append((child, time.monotonic()))

    def _ask(self, child: ChildProcess, line: bytes) -> dict[str, str]:
        """What a process answers; where it passes a limit, it is ended and TemplateLimitError
        raised."""
        try:
            answer: dict[str, str] = json.loads(child.ask(line, self.max_seconds))
        except TimeoutError:
            excess = f"more than {self.max_seconds:g} seconds"
        except ChildProcessError:
            excess = "too much memory or too deep a stack"
        else:
            if "limit" not in answer:
                return answer
            excess = "too much memory"
        self._drop(child)
        _check_asked()
        raise TemplateLimitError(
            f"the model's chat template takes {excess} over the conversation: make it shorter",
            field="messages",
        )

    def _drop(self, child: ChildProcess) -> None:
        try:
            self._forget(child)
        finally:
            child.end()

    def _forget(self, child: ChildProcess) -> None:
        with self._lock:
            self._running.discard(child)
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStopped("the server is shutting down: ask again when it runs")


def _check_asked() -> None:
    if has_left():
        raise EngineStopped("nobody waits for the rendering any more")


def _json(names: Mapping[str, Any]) -> bytes:
    """A line of JSON, made message by message: nothing else runs in the process during a call."""
    parts: list[str] = []
    for name, value in names.items():
        parts += (", " if parts else "{", json.dumps(name), ": ")
        if not isinstance(value, list):
            parts.append(json.dumps(value))
            continue
        parts.append("[")
        for place, item in enumerate(value):
            parts += (", " if place else "", json.dumps(item))
        parts.append("]")
    return "".join([*parts, "}\n"] if parts else ["{}\n"]).encode()


def _text(answer: Mapping[str, str]) -> str:
    if "error" in answer:
        raise TemplateError(answer["error"])
    return answer["text"]


def _no_process(error: Exception) -> TemplateError:
    return TemplateError(f"no process starts to run the model's chat template in ({error})")


def _end_all(children: set[ChildProcess]) -> None:
    for child in children:
        child.end()
