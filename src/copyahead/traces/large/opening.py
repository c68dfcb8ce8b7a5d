"""The bytes of a trace file, compressed or not, in constant memory."""

from __future__ import annotations

import codecs
import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from copyahead.errors import ConfigError, MissingExtraError

_GZIP, _ZSTD, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"


def is_parquet(path: Path) -> bool:
    """Whether `path` is a Parquet file. Raises ConfigError where it cannot be read."""
    with readable(path), path.open("rb") as file:
        return file.read(len(_PARQUET)) == _PARQUET


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """What `path` holds, uncompressed, and without the mark at its beginning that some editors
    leave. Raises ConfigError where it cannot be read to its end."""
    with readable(path), path.open("rb") as file:
        content = unpacked(file)
        if content.peek(len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8):
            content.read(len(codecs.BOM_UTF8))
        yield content


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise ConfigError for what is wrong with the bytes of `path`."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, faults()):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"trace {path} cannot be read ({reason})") from None


def unpacked(file: io.BufferedReader) -> io.BufferedReader:
    """What `file` holds: itself, or what it has packed with gzip or zstd.

    Reading it raises one of `faults()`; MissingExtraError for zstd without its package.
    """
    start = file.peek(len(_ZSTD))
    packed: Any
    if start.startswith(_GZIP):
        packed = gzip.GzipFile(fileobj=file)
    elif start.startswith(_ZSTD):
        packed = _zstd().ZstdFile(file)
    else:
        return file
    return io.BufferedReader(packed)


def _zstd() -> Any:
    """Python's own module, which before 3.14 is a package."""
    try:
        if sys.version_info >= (3, 14):
            return importlib.import_module("compression.zstd")
        return importlib.import_module("backports.zstd")
    except ImportError:
        raise MissingExtraError("backports.zstd", "zstd") from None


def faults() -> tuple[type[Exception], ...]:
    """What is raised for files, and packed ones, that are not as they should be."""
    names = ("compression.zstd", "backports.zstd")
    loaded = (sys.modules[name] for name in names if sys.modules.get(name) is not None)
    return OSError, EOFError, zlib.error, *(module.ZstdError for module in loaded)
