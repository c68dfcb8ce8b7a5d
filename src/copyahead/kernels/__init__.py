"""Compiled functions over arrays. The only modules that import numba.

Importing a kernel module compiles it, or loads it from the cache on disk.
"""

from __future__ import annotations


def warm_up() -> None:
    """Have every kernel compiled or loaded, so that no request ever waits for it."""
    from copyahead.kernels import lz, priced, search  # noqa: F401
