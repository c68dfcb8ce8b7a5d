"""What a command says while it gets ready: a line a stage, or a bar in a terminal.

The parts that take long the first time, probes and the compilation of kernels, log what they are
about to do; here it is shown. A record's `left` is the number of seconds that may remain.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from copyahead.cli.terminal import output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SLOW_PARTS = ("copyahead.backends.probe", "copyahead.kernels")


@contextmanager
def shown() -> Iterator[None]:
    """Show what the slow parts say, until the block ends."""
    handler = _Stages()
    loggers = [logging.getLogger(name) for name in _SLOW_PARTS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        handler.stop()
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


class _Stages(logging.Handler):
    """Shows records as lines; in a terminal, those of a measurement as a bar."""

    def __init__(self) -> None:
        super().__init__()
        self._bar: tuple[Progress, TaskID] | None = None
        self._began = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        if output.quiet():
            return
        if not hasattr(record, "left") or not output.stderr().is_terminal:
            output.remark(record.getMessage())
        elif record.left == 0:
            self.stop()
        else:
            self._move(record.getMessage(), record.left)

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def _move(self, stage: str, left: float | None) -> None:
        if self._bar is None:
            self._began = time.monotonic()
            progress = output.progress_bar()
            progress.start()
            self._bar = progress, progress.add_task(stage, total=None)
        progress, task = self._bar
        progress.update(task, description=stage)
        if left is not None:
            done = time.monotonic() - self._began
            progress.update(task, completed=done, total=done + left)


__all__ = ["shown"]
