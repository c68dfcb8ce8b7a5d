"""Threads for what a request needs before its answer, so that nothing long is on the event loop.

Such work holds the interpreter most of the time, so the loop and the engine's thread share it with
every thread that runs. Requests with a large body therefore go one at a time, in a thread of their
own, and those with a small one never wait for them. What has not begun when its client leaves
never begins, and what has begun can ask (`check_wanted`); a rendering is ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from copyahead.children.asker import Asker, has_left
from copyahead.server.errors import ClientGone
from copyahead.server.http.reader import BodyReader

LARGE_BYTES = 1_000_000
"""A body that weighs more than this is a large one; see `bodies.weight`."""
NUM_THREADS = 4
"""For small ones. They wait for one another only where all of these are at work."""

_TRIM_SECONDS = 2.0
_NUM_TRIMS = 10
"""After the last large body: for twenty seconds."""
_NUM_TRIMS_BEFORE_REST = 3
"""The process that reads them starts in half a second, and holds 80 MB."""

Given = ParamSpec("Given")
Result = TypeVar("Result")

_num_bytes = contextvars.ContextVar("num_bytes", default=0)


class Work:
    """The threads of one server."""

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(NUM_THREADS, "copyahead-small")
        self._large = ThreadPoolExecutor(1, "copyahead-large")
        self.reader = BodyReader()
        self._closed = False
        self._num_to_trim = 0
        self._trimmed_at = 0.0

    async def run(
        self,
        function: Callable[Given, Result],
        /,
        *arguments: Given.args,
        **named: Given.kwargs,
    ) -> Result:
        """What `function` returns, from a thread for requests of this size; see `set_size`."""
        pool = self._large if _num_bytes.get() > LARGE_BYTES else self._small
        asker = Asker()
        context = contextvars.copy_context()
        context.run(asker.set_here)
        call = partial(context.run, function, *arguments, **named)
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, call)
        finally:
            asker.leave()
            if pool is self._large:
                self._num_to_trim, self._trimmed_at = _NUM_TRIMS, time.monotonic()

    def give_back(self) -> None:
        """Return to the system what large bodies have left unused. To be called often.

        The C library keeps freed memory, for each thread that it was taken in, until it is told.
        What a body was made into is freed when its answer has been read, so this is done several
        times after the last of them, in the thread for large bodies. Others may have to wait for
        the C library meanwhile, so not while large bodies still come: what is kept serves these.
        """
        now = time.monotonic()
        if not self._closed and self._num_to_trim and now - self._trimmed_at >= _TRIM_SECONDS:
            self._trimmed_at, self._num_to_trim = now, self._num_to_trim - 1
            self._large.submit(_trim)
            if self._num_to_trim == _NUM_TRIMS - _NUM_TRIMS_BEFORE_REST:
                self._large.submit(self.reader.rest)

    def close(self) -> None:
        """Begin nothing more. Idempotent."""
        self._closed = True
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)
        self.reader.close()


def _trim() -> None:
    """glibc has this; others give memory back by themselves. A refusal and its traceback hold each
    other, and with them all that was made before it, until they are collected."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def set_size(num_bytes: int) -> None:
    """Say what the body of the request weighs that the running task serves."""
    _num_bytes.set(num_bytes)


def check_wanted() -> None:
    """Raise ClientGone in a thread of `Work` where nobody waits for its result any more."""
    if has_left():
        raise ClientGone
