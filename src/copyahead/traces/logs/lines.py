"""The lines of a log of any size: plain, gzip or zstd, a file or standard input."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from copyahead.errors import ConfigError
from copyahead.traces.large.opening import faults, unpacked

MAX_LINE = 1 << 20
"""Bytes of the longest line; one that is longer comes cut off there."""

_BLOCK = 1 << 18


def read_lines(name: str) -> Iterator[bytes]:
    """Each line of the file called `name`, or of standard input for `-`, without its break.

    Raises ConfigError where it cannot be read, and MissingExtraError for zstd without its package.
    """
    shown = "standard input" if name == "-" else f"log {name}"
    try:
        with ExitStack() as stack:
            file: Any = sys.stdin.buffer
            if name != "-":
                file = stack.enter_context(Path(name).expanduser().open("rb"))
            yield from _lines(unpacked(file if hasattr(file, "peek") else io.BufferedReader(file)))
    except Exception as error:
        if not isinstance(error, faults()):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{shown} cannot be read ({reason})") from None


def _lines(file: io.BufferedReader) -> Iterator[bytes]:
    """The lines, of which no more is held than a block and the longest line."""
    rest, is_cut = b"", False
    while block := file.read(_BLOCK):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        if lines and is_cut:
            # The end of a line of which the beginning has been given.
            del lines[0]
            is_cut = False
        yield from lines
        if is_cut:
            rest = b""
        elif len(rest) > MAX_LINE:
            yield rest[:MAX_LINE]
            rest, is_cut = b"", True
    if rest:
        yield rest
