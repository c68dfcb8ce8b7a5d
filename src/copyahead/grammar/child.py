"""The process that compiles every grammar of a server's client first: see `check`."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("check.py")
START_SECONDS = 30.0
"""Longest start; it takes a fraction of a second."""
ORPHAN_SECONDS = 60
"""When a check ends by itself, where the engine's process is gone."""


class GrammarChild:
    """Started at the first check, or by `start`; again when it died; ended by `close`.

    One thread checks; any thread may start and close.
    """

    def __init__(self, vocab_size: int) -> None:
        self._command = [sys.executable, "-P", str(PROGRAM), str(vocab_size), str(ORPHAN_SECONDS)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._proven = False
        """Whether a child has ever been ready here."""
        self._over = False

    def start(self) -> None:
        """Start it, unless it runs; it becomes ready beside the caller."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                _end(self._process)
                self._process = None
            if self._process is None and not self._over:
                self._ready = False
                self._process = self._spawn()

    def check(self, grammar: str, seconds: float) -> str:
        """Why `grammar` does not compile; empty where it does, or where no child can be had.

        TimeoutError when it takes longer than `seconds`, ChildProcessError when it crashes.
        """
        self.start()
        process = self._process
        if process is None:
            if self._proven:
                raise RuntimeError("no process can be started to check the grammar")
            return ""
        if not self._ready and not self._await_ready(process):
            return ""
        return _ask(process, json.dumps(grammar).encode() + b"\n", seconds)

    def close(self) -> None:
        """End it, also while it checks. Idempotent."""
        with self._lock:
            self._over = True
            if self._process is not None:
                _end(self._process)
            self._process = None

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        try:
            return subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=nothing)
        except (OSError, ValueError) as error:
            self._do_without(error)
            return None

    def _await_ready(self, process: subprocess.Popen[bytes]) -> bool:
        try:
            _ask(process, b"", START_SECONDS)
        except OSError as error:
            if self._proven or self._over:
                raise RuntimeError("no process can be started to check the grammar") from error
            self._do_without(error)
            return False
        self._ready = self._proven = True
        return True

    def _do_without(self, error: Exception) -> None:
        """Where no child was ever ready, none is tried again."""
        if not self._proven:
            self._over = True
            logger.warning("grammars are compiled unchecked: no process for it starts (%s)", error)


def _ask(process: subprocess.Popen[bytes], line: bytes, seconds: float) -> str:
    """The answer to `line`. Whatever goes wrong ends the process."""
    assert process.stdin is not None
    assert process.stdout is not None
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    limit = threading.Timer(seconds, stop)
    limit.daemon = True
    limit.start()
    answer = b""
    # A pipe that broke, or that `close` has closed.
    with contextlib.suppress(OSError, ValueError):
        process.stdin.write(line)
        process.stdin.flush()
        answer = process.stdout.readline()
    limit.cancel()
    limit.join()
    if late.is_set():
        _end(process)
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    if not answer.endswith(b"\n"):
        _end(process)
        raise ChildProcessError(f"the process ended with status {process.returncode}")
    return str(json.loads(answer))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        # What was not written yet has nowhere to go.
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
