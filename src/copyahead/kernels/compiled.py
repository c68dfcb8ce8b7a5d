"""How every kernel is compiled: ahead of the first call, cached on disk, without the GIL.

A kernel names its types, so that it is compiled (or read from the cache) when its module is
imported, and can never be compiled inside a request: a call with other types is a TypeError.

Arrays that belong together travel as one named tuple, in kernels and from Python alike.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from numba import njit, types

logger = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])

INT, FLOAT, BOOL, VOID = types.int64, types.float64, types.boolean, types.void
PAIR, TRIPLE = types.UniTuple(INT, 2), types.UniTuple(INT, 3)
INTS, INTS2, INTS3 = types.int32[::1], types.int32[:, ::1], types.int32[:, :, ::1]
LONGS, LONGS2 = types.int64[::1], types.int64[:, ::1]
FLOATS, FLOATS2, FLOATS3 = types.float64[::1], types.float64[:, ::1], types.float64[:, :, ::1]
SINGLES3, SINGLES4 = types.float32[:, :, ::1], types.float32[:, :, :, ::1]
"""Types of a signature. The digit is the number of dimensions; arrays are C-contiguous."""

READY: list[str] = []
"""Every kernel of this process that can be called: `module.function`, as they were made."""

_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    # Without its reference counts numba can inline kernels, and refuses at compile time any that
    # would allocate. Inlined they must be: a call copies every array's shape and strides, and a
    # draft of 48 tokens, which takes 9 µs, took 16.
    "_nrt": False,
    "forceinline": True,
}


def named(cls: type[tuple[Any, ...]], *fields: Any) -> Any:
    """The type of a named tuple `cls` whose fields have these types."""
    return types.BaseTuple.from_types(fields, cls)


def compiled(signature: Any) -> Callable[[_F], _F]:
    """Compile a function for `signature` now; keep the machine code on disk where that is allowed.

    A signature is numba's: text, or `RESULT(ARGUMENT, ...)` of types as above. Where no cache
    directory can be written, the function is compiled again in every process. Set
    NUMBA_CACHE_DIR to a directory that can be.
    """

    def decorate(function: _F) -> _F:
        try:
            kernel: Any = _compile(function, signature, cache=True)
        except (RuntimeError, OSError) as error:
            _say_once(
                logging.WARNING,
                f"the compiled kernels cannot be kept on disk ({error}), and are compiled at every "
                "start: set NUMBA_CACHE_DIR to a directory that can be written",
            )
            kernel = _compile(function, signature, cache=False)
        kernel.disable_compile()
        READY.append(f"{function.__module__}.{function.__name__}")
        result: _F = kernel
        return result

    return decorate


def entry_point(kernel: Any) -> Callable[..., Any]:
    """The machine code behind a kernel, called without looking at the types of its arguments.

    Looking costs as much as a short search. The caller answers for the types: wrong ones are not
    noticed.
    """
    (compiled_once,) = kernel.overloads.values()
    found: Callable[..., Any] = compiled_once.entry_point
    return found


def _compile(function: Callable[..., Any], signature: Any, *, cache: bool) -> Any:
    kernel = njit(**_OPTIONS)(function)
    if cache:
        kernel.enable_caching()
        # numba takes a cached function for current while its own file is unchanged, but a kernel
        # has the kernels that it calls inlined: so any changed kernel file makes all anew.
        kernel._cache._cache_file._source_stamp = _stamp(Path(function.__code__.co_filename))
    kernel.compile(signature)
    if kernel.stats.cache_misses:
        _say_once(logging.INFO, "compiling the kernels: a minute or two, the first time only")
    return kernel


@cache
def _say_once(level: int, text: str) -> None:
    logger.log(level, text)


@cache
def _stamp(own: Path) -> str:
    """A digest of the kernels' sources, and of `own`, which may be of another folder."""
    sources = sorted({*Path(__file__).parent.glob("*.py"), own})
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
