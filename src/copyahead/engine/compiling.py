"""Compiles grammars in threads of its own, so that no stream and no event loop waits for one.

A compiler cannot be interrupted. What takes longer than the limit is given up on: its requester is
told at once, and its thread ends when it ends. There are few threads, and requests for more wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from copyahead.engine.grammar import GrammarState

Compile = Callable[[], GrammarState]
Take = Callable[[GrammarState | Exception], None]
"""Takes what was compiled, or why there is nothing."""

MAX_SECONDS = 5.0
"""Longest compilation. A schema of a megabyte takes about one second."""
MAX_THREADS = 2


class CompileThreads:
    """Runs compilers, each of which is answered at most once."""

    def __init__(self, max_seconds: float = MAX_SECONDS) -> None:
        self.max_seconds = max_seconds
        self._places = threading.Semaphore(MAX_THREADS)

    def start(
        self, compile_: Compile, take: Take, *, too_slow: Exception, wanted: Callable[[], bool]
    ) -> None:
        """Call `compile_` in a thread, and there `take` with its result or its error.

        After `max_seconds` of compiling, `take` gets `too_slow` instead. Where it is no longer
        `wanted` when its turn comes, nothing is called.
        """
        # Daemons: a compilation that goes on does not keep the program from ending.
        arguments = (compile_, _Once(take), too_slow, wanted)
        threading.Thread(
            target=self._run, args=arguments, name="copyahead-grammar", daemon=True
        ).start()

    def _run(
        self, compile_: Compile, take: _Once, too_slow: Exception, wanted: Callable[[], bool]
    ) -> None:
        with self._places:
            if not wanted():
                return
            limit = threading.Timer(self.max_seconds, take, (too_slow,))
            limit.daemon = True
            limit.start()
            try:
                take(compile_())
            except Exception as error:
                take(error)
            except BaseException as error:
                # A panic of the library is no Exception.
                take(RuntimeError(f"the grammar's compiler failed: {error!r}"))
            finally:
                limit.cancel()


class _Once:
    """Passes the first call on, and no other."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._lock = threading.Lock()
        self._taken = False

    def __call__(self, result: GrammarState | Exception) -> None:
        with self._lock:
            first, self._taken = not self._taken, True
        if first:
            self._take(result)
