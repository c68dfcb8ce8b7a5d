"""The lines of a log of any size: plain, gzip or zstd, a file or standard input."""

from __future__ import annotations

import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, cast

from copyahead.errors import ConfigError, MissingExtraError

MAX_LINE = 1 << 20
"""Bytes of the longest line; one that is longer comes cut off there."""

_BLOCK = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def read_lines(name: str) -> Iterator[bytes]:
    """Each line of the file called `name`, or of standard input for `-`, without its break.

    Raises ConfigError where it cannot be read, and MissingExtraError for zstd without its package.
    """
    shown = "standard input" if name == "-" else f"log {name}"
    try:
        with ExitStack() as stack:
            yield from _lines(_opened(name, stack))
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{shown} cannot be read ({reason})") from None


def _opened(name: str, stack: ExitStack) -> BinaryIO:
    """What the file holds once it is unpacked; `stack` closes it."""
    if name == "-":
        raw: Any = sys.stdin.buffer
    else:
        raw = stack.enter_context(Path(name).expanduser().open("rb"))
    file = raw if hasattr(raw, "peek") else io.BufferedReader(raw)
    beginning = file.peek(4)[:4]
    if beginning[:2] == _GZIP:
        return cast(BinaryIO, stack.enter_context(gzip.open(file)))
    if beginning == _ZSTD:
        return cast(BinaryIO, stack.enter_context(_Zstd(file)))
    return cast(BinaryIO, file)


class _Zstd(io.RawIOBase):
    """What a zstd file holds; says what is wrong as other files do."""

    def __init__(self, file: BinaryIO) -> None:
        module = _zstd()
        self._file = module.ZstdFile(file)
        self._error = module.ZstdError

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes. Raises OSError where they are damaged."""
        try:
            return bytes(self._file.read(size))
        except self._error as error:
            raise OSError(str(error)) from None


def _zstd() -> Any:
    """Python's own module, which before 3.14 is a package."""
    try:
        if sys.version_info >= (3, 14):
            return importlib.import_module("compression.zstd")
        return importlib.import_module("backports.zstd")
    except ImportError:
        raise MissingExtraError("backports.zstd", "zstd") from None


def _lines(file: BinaryIO) -> Iterator[bytes]:
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
