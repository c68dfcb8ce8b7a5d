"""What probes have found, kept on disk so that it is not paid at every start.

One small JSON file a result, named by a hash of everything it depends on. A file that is missing,
damaged, or from another version is no result; nothing here raises for it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import tempfile
from importlib import util
from pathlib import Path
from typing import TypeVar

import msgspec

from copyahead.backends.llama_cpp.library import library_version
from copyahead.errors import MissingExtraError

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "COPYAHEAD_CACHE_DIR"

_FORMAT = 4
"""Of the results, and of what is measured: a new number leaves the old ones behind."""
_Result = TypeVar("_Result", bound=msgspec.Struct)


def cache_dir() -> Path:
    """Where results are kept: `COPYAHEAD_CACHE_DIR`, or `copyahead` in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "copyahead"


def library_build() -> str:
    """The installed llama.cpp: its version, and the size and time of its files.

    A build with other options has other kernels under the same version.
    """
    spec = util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError("llama-cpp-python", "llama")
    files = Path(spec.submodule_search_locations[0], "lib").glob("*ggml*")
    stats = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files)
    digest = hashlib.sha256(repr(stats).encode()).hexdigest()[:8]
    return f"{library_version()}+{digest}"


def key(*parts: object) -> str:
    """A name for what is found from `parts` on this processor."""
    machine = (_FORMAT, platform.machine(), _processor())
    return hashlib.sha256(repr((machine, parts)).encode()).hexdigest()[:32]


def read(name: str, kind: type[_Result]) -> _Result | None:
    """The result kept under `name`, if there is a whole one."""
    try:
        return msgspec.json.decode(_path(name).read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def read_all(kind: type[_Result]) -> list[_Result]:
    """Every whole result that is kept, as `kind`, which may have fewer fields."""
    try:
        names = sorted(path.stem for path in (cache_dir() / "probes").glob("*.json"))
    except OSError:
        return []
    return [result for name in names if (result := read(name, kind)) is not None]


def write(name: str, result: msgspec.Struct) -> None:
    """Keep `result` under `name`, whole or not at all. A cache that cannot be written is none,
    which is said once."""
    path = _path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(result))
        os.replace(temporary, path)
    except OSError as error:
        _say_once(path.parent, error.strerror or str(error))


@functools.cache
def _say_once(folder: Path, reason: str) -> None:
    logger.warning(
        "what was measured cannot be kept in %s (%s), and is measured again at every start: set %s "
        "to a directory that can be written",
        folder,
        reason,
        CACHE_VARIABLE,
    )


def _path(name: str) -> Path:
    return cache_dir() / "probes" / f"{name}.json"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()
