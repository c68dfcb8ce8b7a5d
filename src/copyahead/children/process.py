"""Starting a child, asking it, and ending it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import copyahead

LIFELINE = Path(__file__).with_name("lifeline.py")


class ChildProcess:
    """A Python program that answers lines with lines. It ends with this process at the latest.

    One thread asks; any may end it.
    """

    def __init__(
        self, program: Sequence[str], *, max_bytes: int = 0, stderr: int = subprocess.DEVNULL
    ) -> None:
        """Start `program`: a file or `-m` and a module, and its arguments. It finds this copy of
        the package first. `max_bytes`: most memory that it may have, where the system can limit
        it; 0: any. Raises OSError where no process can be had."""
        pipe = subprocess.PIPE
        reading, self._lifeline = os.pipe() if os.name == "posix" else (-1, -1)
        command = [sys.executable, "-P", str(LIFELINE), str(reading), str(max_bytes), *program]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=stderr,
                env=_environment(),
                pass_fds=(reading,) if reading >= 0 else (),
            )
        except BaseException:
            _close(self._lifeline)
            raise
        finally:
            _close(reading)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def ask(self, line: bytes, seconds: float) -> bytes:
        """Its answer to `line`, which ends with a line break or is empty.

        TimeoutError when there is none within `seconds`, ChildProcessError when the program
        ends. Both end the process.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        limit = threading.Timer(seconds, stop)
        limit.daemon = True
        limit.start()
        answer = b""
        # A pipe that broke, or that `end` has closed.
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        limit.cancel()
        limit.join()
        if late.is_set():
            self.end()
            raise TimeoutError(f"no answer within {seconds:g} seconds")
        if not answer.endswith(b"\n"):
            self.end()
            raise ChildProcessError(f"the process ended with status {self.status}")
        return answer

    def read(self, on_line: Callable[[bytes], None] = lambda _: None) -> tuple[bytes, bytes]:
        """All that it still writes to its output, and to its error where that is a pipe.

        `on_line` gets each line of the output as it comes.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        stderr, errors = self._process.stderr, [b""]
        draining = threading.Thread(
            target=lambda: errors.append(stderr.read() if stderr is not None else b"")
        )
        lines = []
        try:
            self._process.stdin.close()
            draining.start()
            for line in self._process.stdout:
                lines.append(line)
                on_line(line)
            self._process.wait()
        finally:
            self._process.kill()
            if draining.ident is not None:
                draining.join()
            self.end()
        return b"".join(lines), errors[-1]

    def kill(self) -> None:
        """Kill it, and wait for nothing: whoever asks it gets a ChildProcessError."""
        self._process.kill()

    def end(self) -> None:
        """Kill it, and give back all that it takes here. Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            # What was not written yet has nowhere to go.
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        lifeline, self._lifeline = self._lifeline, -1
        _close(lifeline)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _environment() -> dict[str, str]:
    """This process's environment, with this copy of the package first on the path, and with
    Python's own allocator: a child ends when it has rested, and is faster with that."""
    home = str(Path(copyahead.__file__).parents[1])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONMALLOC"}
    return {**inherited, "PYTHONPATH": os.pathsep.join(paths)}
