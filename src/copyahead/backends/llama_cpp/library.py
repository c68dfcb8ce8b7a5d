"""The llama.cpp library in this process: importing it, its log, its process-wide switches.

The only module that imports `llama_cpp`, so that everything else works without it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Any

from copyahead.errors import MissingExtraError, ModelError

TILED_VARIABLE = "GGML_CPU_TILED_MM"
"""Environment variable that the library reads at its first matrix product, and never again."""

_ERROR_LEVEL = 4

_lock = threading.Lock()
_library: Any = None
_log_callback: Any = None
_verbose = False
_errors: deque[str] = deque(maxlen=20)
_tiled: bool | None = None


def library() -> Any:
    """The low-level `llama_cpp.llama_cpp` module, its log in our hands."""
    global _library, _log_callback
    with _lock:
        if _library is None:
            try:
                import llama_cpp.llama_cpp as module
            except ImportError:
                raise MissingExtraError("llama-cpp-python", "llama") from None
            _log_callback = module.llama_log_callback(_receive_log)
            module.llama_log_set(_log_callback, None)
            module.llama_backend_init()
            _library = module
    return _library


def library_version() -> str:
    """The version of llama-cpp-python, which fixes that of llama.cpp."""
    from importlib import metadata

    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        raise MissingExtraError("llama-cpp-python", "llama") from None


def show_log(shown: bool) -> None:
    """Whether llama.cpp's own log goes to standard error."""
    global _verbose
    _verbose = shown


def take_errors() -> list[str]:
    """The error lines that the library has logged since the last call."""
    lines = [line.strip() for line in _errors if line.strip()]
    _errors.clear()
    return lines


def _receive_log(level: int, text: bytes, _data: Any) -> None:
    if level == _ERROR_LEVEL:
        _errors.append(text.decode("utf-8", "replace"))
    if _verbose:
        sys.stderr.write(text.decode("utf-8", "replace"))


def set_tiled(tiled: bool) -> None:
    """Turn the tiled kernels on or off for this process, before its first product.

    Raises ModelError when a model was already loaded the other way: the library keeps the
    first value for good.
    """
    global _tiled
    if _tiled is not None and _tiled != tiled:
        was, wanted = ("on", "off") if _tiled else ("off", "on")
        raise ModelError(
            f"a model was loaded in this process with tiled kernels {was}, and llama.cpp keeps "
            f"that: load one that needs them {wanted} in a process of its own"
        )
    if tiled:
        os.environ.pop(TILED_VARIABLE, None)
    else:
        os.environ[TILED_VARIABLE] = "0"
    _tiled = tiled
