"""The folder of a model of transformers: what it holds, read without torch or transformers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from copyahead.errors import ModelError

_SAMPLE_BYTES = 1 << 16


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder of transformers."""
    return (path / "config.json").is_file()


def fingerprint(folder: Path) -> str:
    """Identifies the folder's content: names, sizes, times of change, and the start of each."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
            with path.open("rb") as file:
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of a model's folder; empty where there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}): fetch the folder again") from None


def read_text(path: Path) -> str:
    """A text of the folder. Raises ModelError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read ({error}): fetch the folder again") from None
