"""Which allocator a long-lived program has its small objects from."""

from __future__ import annotations

import contextlib
import os
import platform
import sys

_VARIABLE = "PYTHONMALLOC"
_ARENAS = "MALLOC_ARENA_MAX"


def use_that_of_the_system() -> None:
    """Start this program over with the C library's allocator, unless one was chosen already.

    Python's own keeps whole blocks for a few objects that are left in each: after large requests
    from many clients a server held a sixth more than before, for good. glibc's gives it back when
    `server.http.work` tells it to. All threads share one arena, unless the user chose otherwise:
    with one for each thread a few objects were left in the pages of every arena, a tenth of what
    the server held before. Only a new interpreter can take another allocator.
    """
    if _VARIABLE in os.environ or platform.libc_ver()[0] != "glibc" or not sys.executable:
        return
    given = sys.argv[1:]
    if sys.orig_argv[len(sys.orig_argv) - len(given) :] != given:
        # A program of its own that calls this one.
        return
    with contextlib.suppress(OSError):
        arguments = [sys.executable, *sys.orig_argv[1:]]
        chosen = {_ARENAS: "1", **os.environ, _VARIABLE: "malloc"}
        os.execve(sys.executable, arguments, chosen)
