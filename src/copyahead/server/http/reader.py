"""Large bodies are read in a process of their own.

To read megabytes of JSON takes a few calls of seconds, in which nothing else runs in a process.
There, most of what is large is found to be wrong or too long. What is right comes back as shorter
JSON: without what no field takes, and so with no more text than the context can hold.
"""

from __future__ import annotations

import json
import threading
from typing import TypeVar

from copyahead.children.process import ChildProcess
from copyahead.errors import EngineStopped
from copyahead.server.errors import ApiError
from copyahead.server.http.bodies import read_body, too_deep
from copyahead.server.http.text_limit import TextLimit
from copyahead.server.wire import Wire

PROGRAM = ("-m", "copyahead.server.http.reading")
MAX_SECONDS = 60.0
"""Longest reading; that of 16 MB takes a second where nobody else needs the processor."""

Body = TypeVar("Body", bound=Wire)


class BodyReader:
    """Reads bodies in one process, which is started when there is work. One thread reads, any may
    end."""

    def __init__(self) -> None:
        """Starts nothing yet."""
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._closed = False

    def read(self, data: bytes, model: type[Body], limit: TextLimit) -> Body:
        """As `bodies.read_body`. ApiError too where it takes too long or too much memory."""
        try:
            child = self._started()
        except OSError:  # There is no process to be had.
            return read_body(data, model, limit)
        head = [model.__module__, model.__qualname__, limit.context_size, limit.token_bytes]
        # A line break in JSON is white space or wrong, as a carriage return is.
        line = json.dumps(head).encode() + b"\t" + data.replace(b"\n", b"\r") + b"\n"
        try:
            answer = child.ask(line, MAX_SECONDS)
        except (TimeoutError, ChildProcessError):
            self.rest()
            self._check_open()
            raise _too_much() from None
        try:
            given = json.loads(answer)
            if "error" not in given:
                return model.model_validate(given["body"])
        except RecursionError:
            raise too_deep() from None
        raise ApiError(**given["error"])

    def _started(self) -> ChildProcess:
        with self._lock:
            self._check_open()
            if self._child is not None:
                return self._child
            self._child = ChildProcess(PROGRAM)
            return self._child

    def rest(self) -> None:
        """End the process until it is needed. Idempotent."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def close(self) -> None:
        """End the process, also while it reads, and start no other. Idempotent."""
        self._closed = True
        self.rest()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineStopped("the server is shutting down: ask again when it runs")


def _too_much() -> ApiError:
    return ApiError(
        "the body takes too much time or memory to read: send less",
        status=413,
        code="body_too_large",
    )
