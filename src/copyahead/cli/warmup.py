"""`copyahead warmup`: compile now what the first run would compile."""

from __future__ import annotations

import time
from importlib import import_module

from copyahead.cli import output
from copyahead.cli.options import Json


def warmup(*, json: Json = False) -> int:
    """Compile the kernels and keep them on disk, so that no later start waits for it."""
    began = time.perf_counter()
    import_module("copyahead.drafters.lookup")
    seconds = time.perf_counter() - began
    if json:
        output.print_json({"seconds": round(seconds, 3)})
    else:
        output.stdout().print(f"kernels are ready ({seconds:.1f} s)")
    return 0
