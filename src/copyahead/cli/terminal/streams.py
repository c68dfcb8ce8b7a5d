"""Standard streams that are closed, full, or take ASCII only: no command ends in a traceback there.

`prepare` is for a process of its own: it changes the streams of the interpreter.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from typing import TextIO, cast

from copyahead.cli.terminal import output

_ESCAPE = "copyahead.escape"


def prepare() -> None:
    """Make standard input, output and error such that what goes wrong with them is an OSError.

    Standard error that is closed takes everything and keeps nothing. Characters that the encoding
    of an output does not have are escaped, which is said once.
    """
    _take_numbers()
    if sys.stdin is None:
        sys.stdin = cast(TextIO, _Closed())
    if sys.stdout is None:
        sys.stdout = cast(TextIO, _Closed())
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error(_ESCAPE, _escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPE)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def abandon() -> None:
    """Let the interpreter's last flush of standard output, which failed before, go nowhere."""
    try:
        number = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def problem(error: OSError) -> str:
    """One sentence about an error of the operating system; without a file it is the output's."""
    reason = error.strerror or str(error) or type(error).__name__
    if error.filename is not None:
        return f"{error.filename} cannot be used ({reason})"
    return f"standard output cannot be written ({reason})"


def _take_numbers() -> None:
    """Fill the numbers 0 to 2 where they are closed, or the next files opened would get them."""
    number = os.open(os.devnull, os.O_RDWR)
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


class _Closed(io.TextIOBase):
    """A stream that was closed before the program began."""

    @property
    def buffer(self) -> _Closed:
        return self

    def read(self, size: int | None = -1, /) -> str:
        raise OSError(errno.EBADF, "it is closed")

    def write(self, text: object, /) -> int:
        raise OSError(errno.EBADF, "it is closed")

    def flush(self) -> None:
        """Nothing is held back."""


def _escape(error: UnicodeError) -> tuple[str | bytes, int]:
    global _escaped
    if not _escaped and isinstance(error, UnicodeEncodeError):
        _escaped = True
        output.remark(
            f"standard output takes {error.encoding} only: other characters are written as "
            "escapes; for the text as it is, set PYTHONIOENCODING=utf-8"
        )
    return codecs.backslashreplace_errors(error)


_escaped = False
