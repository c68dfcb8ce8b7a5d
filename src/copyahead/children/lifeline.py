"""Runs a Python program that ends when the process that started it does.

    python -P lifeline.py FD MAX_BYTES FILE ARGUMENT...
    python -P lifeline.py FD MAX_BYTES -m MODULE ARGUMENT...

FD is the reading end of a pipe to which nobody writes: its end comes when the parent is gone, by a
signal too that nobody can catch. The kernel then sends SIGIO, which ends the program also in the
middle of a computation that lets no other thread run; where it sends none, a thread does that.
(A parent-death signal of Linux would come when the *thread* that started the program ends.)

Ctrl-C reaches all processes of a terminal; here it does nothing, for the parent decides when the
program ends.

With MAX_BYTES it gets no more memory than that, and leaves no core file; 0 sets no limit.

Imports nothing of copyahead, so that programs start fast.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import threading


def _end_with_parent(fd: int) -> None:
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    threading.Thread(target=_wait, args=(fd,), daemon=True).start()


def _wait(fd: int) -> None:
    # Also where the parent was gone before the kernel was asked for a signal.
    os.read(fd, 1)
    os._exit(1)


def _limit_memory(max_bytes: int) -> None:
    with contextlib.suppress(ImportError):
        import resource

        for kind, limit in ((resource.RLIMIT_AS, max_bytes), (resource.RLIMIT_CORE, 0)):
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(kind, (limit, limit))


def main() -> None:
    """Watch, limit, and become the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fd, max_bytes = int(sys.argv[1]), int(sys.argv[2])
    if fd >= 0:
        _end_with_parent(fd)
    if max_bytes > 0:
        _limit_memory(max_bytes)
    del sys.argv[:3]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
