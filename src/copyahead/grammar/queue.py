"""Compiles grammars beside the engine, so that no stream and no event loop waits for one.

One thread does, one grammar after the other, and a bounded number wait. A compiler cannot be
interrupted, and a crash of it ends its process: each grammar is first compiled in a child that can
be ended, and only what passes there in time is compiled here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from copyahead.errors import RequestError
from copyahead.grammar.child import GrammarChild
from copyahead.grammar.compiler import Grammar, GrammarCompiler, does_not_compile
from copyahead.grammar.state import GrammarState

Take = Callable[[GrammarState | Exception], None]
"""Takes what was compiled, or why there is nothing."""

MAX_SECONDS = 5.0
"""Longest compilation. A schema of a megabyte takes about one second."""
MAX_WAITING = 32
"""Most grammars that wait for their turn."""
STACK_BYTES = 64 << 20
"""The compiler recurses: eight times what the child has."""
CLOSE_SECONDS = 1.0
"""Longest that closing waits for a compilation, which cannot be interrupted."""


class Job(msgspec.Struct, frozen=True):
    """One grammar to compile."""

    grammar: Grammar
    take: Take
    """Called once, in the thread, unless the queue is closed or the job no longer wanted."""
    wanted: Callable[[], bool]


class CompileQueue:
    """A thread that compiles; it starts with the first job."""

    def __init__(
        self, compiler: GrammarCompiler, child: GrammarChild, max_seconds: float = MAX_SECONDS
    ) -> None:
        """`compiler` must be loaded when a job is put; `child` is closed with the queue."""
        self.max_seconds = max_seconds
        self._compiler = compiler
        self._child = child
        self._jobs: deque[Job] = deque()
        self._change = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, job: Job) -> None:
        """Compile it after those before it. RequestError when too many wait already."""
        with self._change:
            if len(self._jobs) >= MAX_WAITING:
                self._jobs = deque(job for job in self._jobs if job.wanted())
            if len(self._jobs) >= MAX_WAITING:
                field = job.grammar.field
                raise RequestError(
                    f"{field} cannot be compiled now: {MAX_WAITING} others wait for that; try "
                    "again later",
                    field=field,
                )
            if self._thread is None:
                self._thread = _start_thread(self._run)
            self._jobs.append(job)
            self._change.notify()

    def close(self) -> None:
        """Drop what waits, and end the thread and the child. Idempotent."""
        with self._change:
            self._closed = True
            self._jobs.clear()
            self._change.notify()
        self._child.close()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Wait for a job and do it; False when the queue is closed."""
        with self._change:
            while not (self._jobs or self._closed):
                self._change.wait()
            if self._closed:
                return False
            job = self._jobs.popleft()
        if job.wanted():
            job.take(self._compile(job.grammar))
        return True

    def _compile(self, grammar: Grammar) -> GrammarState | Exception:
        try:
            self._check(grammar)
            return self._compiler.compile(grammar)
        except Exception as error:
            return error
        except BaseException as error:
            # A panic of the library is no Exception.
            return RuntimeError(f"the grammar's compiler failed: {error!r}")

    def _check(self, grammar: Grammar) -> None:
        field = grammar.field
        try:
            reason = self._child.check(grammar.in_llguidance_form(), self.max_seconds)
        except TimeoutError:
            raise RequestError(
                f"{field} takes more than {self.max_seconds:g} seconds to compile: make it smaller "
                "or simpler",
                field=field,
            ) from None
        except ChildProcessError:
            raise RequestError(
                f"{field} cannot be compiled: it is nested too deep or takes too much memory; make "
                "it smaller or simpler",
                field=field,
            ) from None
        if reason:
            raise does_not_compile(field, reason)


def _start_thread(run: Callable[[], None]) -> threading.Thread:
    # A daemon: a compilation that goes on does not keep the program from ending.
    thread = threading.Thread(target=run, name="copyahead-grammar", daemon=True)
    before = threading.stack_size()
    # Not every platform lets a thread's stack be chosen.
    with contextlib.suppress(ValueError, RuntimeError):
        threading.stack_size(STACK_BYTES)
    try:
        thread.start()
    finally:
        with contextlib.suppress(ValueError, RuntimeError):
            threading.stack_size(before)
    return thread
