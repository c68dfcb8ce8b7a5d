"""How every kernel is compiled: ahead of the first call, cached on disk, without the GIL.

A kernel names its types, so that it is compiled (or read from the cache) when its module is
imported, and can never be compiled inside a request: a call with other types is a TypeError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

_F = TypeVar("_F", bound=Callable[..., Any])

# Without its reference counts numba inlines kernels into each other, and refuses at compile time
# any that would allocate.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}


def compiled(signature: str) -> Callable[[_F], _F]:
    """Compile a function for `signature` now; keep the machine code on disk where that is allowed.

    Where no cache directory can be written, it is compiled again in every process. Set
    NUMBA_CACHE_DIR to a directory that can be.
    """

    def decorate(function: _F) -> _F:
        try:
            kernel: Any = _compile(function, signature, cache=True)
        except (RuntimeError, OSError):
            kernel = _compile(function, signature, cache=False)
        kernel.disable_compile()
        result: _F = kernel
        return result

    return decorate


def entry_point(kernel: Any) -> Callable[..., Any]:
    """The machine code behind a kernel, called without looking at the types of its arguments.

    It saves 15 ns an argument. The caller answers for the types: wrong ones are not noticed.
    """
    (compiled_once,) = kernel.overloads.values()
    found: Callable[..., Any] = compiled_once.entry_point
    return found


def _compile(function: Callable[..., Any], signature: str, *, cache: bool) -> Any:
    kernel = njit(**_OPTIONS)(function)
    if cache:
        kernel.enable_caching()
        # numba takes a cached function for current while its own file is unchanged, but a kernel
        # has the kernels that it calls inlined: so any changed kernel file makes all anew.
        kernel._cache._cache_file._source_stamp = _STAMP
    kernel.compile(signature)
    return kernel


def _stamp() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


_STAMP = _stamp()
