"""How every kernel is compiled: ahead of the first call, cached on disk, without the GIL.

A kernel names its types, so that it is compiled (or read from the cache) when its module is
imported, and can never be compiled inside a request: a call with other types is a TypeError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(signature: str) -> Callable[[_F], _F]:
    """Compile a function for `signature` now; keep the machine code on disk where that is allowed.

    Where no cache directory can be written, it is compiled again in every process. Set
    NUMBA_CACHE_DIR to a directory that can be.
    """

    def decorate(function: _F) -> _F:
        try:
            kernel: _F = njit(signature, cache=True, **_OPTIONS)(function)
        except (RuntimeError, OSError):
            kernel = njit(signature, **_OPTIONS)(function)
        return kernel

    return decorate
