"""`copyahead warmup`: compile now what the first run would compile."""

from __future__ import annotations

import time

from copyahead.cli.options import Json
from copyahead.cli.terminal import output
from copyahead.kernels import warm_up


def warmup(*, json: Json = False) -> int:
    """Compile the kernels and keep them on disk, so that no later start waits for it.

    Example: `copyahead warmup`
    """
    began = time.perf_counter()
    kernels = warm_up()
    seconds = time.perf_counter() - began
    if json:
        output.print_json({"seconds": round(seconds, 3), "kernels": kernels})
    else:
        output.stdout().print(f"kernels are ready ({seconds:.1f} s)")
    return 0
