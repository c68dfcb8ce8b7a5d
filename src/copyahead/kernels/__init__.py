"""Compiled functions over arrays. Beside `training`, the only modules that import numba.

Importing a kernel module compiles it, or loads it from the cache on disk.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules


def warm_up() -> int:
    """Have every kernel of this package compiled or loaded; returns how many there are.

    After it no request waits for one, whatever its policy, and no replay does.
    """
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    from copyahead.kernels.compiled import READY

    return sum(name.startswith(f"{__name__}.") for name in READY)
