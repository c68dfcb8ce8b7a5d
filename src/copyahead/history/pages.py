"""Large arrays of which only what is used takes memory."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys

import numpy as np
import numpy.typing as npt

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Python names it from 3.13 on. Room that is never used is then never counted: without it a system
refuses at once what is larger than its memory."""


def untouched(shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Zeros that take no memory until they are touched, then in large pages where there are any.

    A prompt into a fresh row pays for every page once: with pages of 2 MiB a good deal less.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(shape, dtype=np.int32)
    size = math.prod(shape) * np.dtype(np.int32).itemsize
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    # Refused by a system that was built without large pages.
    with contextlib.suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.int32).reshape(shape)
