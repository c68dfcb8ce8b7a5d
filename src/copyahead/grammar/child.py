"""The process that compiles every grammar of a server's client first: see `check`."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

from copyahead.children.process import ChildProcess

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("check.py")
MAX_BYTES = 1 << 30
"""Most memory. A schema of a megabyte takes a fraction of it."""
START_SECONDS = 30.0
"""Longest start; it takes a fraction of a second."""


class GrammarChild:
    """Started at the first check, or by `start`; again when it died; ended by `close`.

    One thread checks; any thread may start and close.
    """

    def __init__(self, vocab_size: int) -> None:
        self._program = [str(PROGRAM), str(vocab_size)]
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._ready = False
        self._proven = False
        """Whether a child has ever been ready here."""
        self._over = False

    def start(self) -> None:
        """Start it, unless it runs; it becomes ready beside the caller."""
        with self._lock:
            if self._process is not None and self._process.status is not None:
                self._process.end()
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
        return str(json.loads(process.ask(json.dumps(grammar).encode() + b"\n", seconds)))

    def close(self) -> None:
        """End it, also while it checks. Idempotent."""
        with self._lock:
            self._over = True
            if self._process is not None:
                self._process.end()
            self._process = None

    def _spawn(self) -> ChildProcess | None:
        try:
            return ChildProcess(self._program, max_bytes=MAX_BYTES)
        except (OSError, ValueError) as error:
            self._do_without(error)
            return None

    def _await_ready(self, process: ChildProcess) -> bool:
        try:
            process.ask(b"", START_SECONDS)
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
