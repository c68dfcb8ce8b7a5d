"""A program that reads bodies for `reader`, in limits of memory.

    python -m copyahead.server.http.reading

A line in for each: as JSON the module and the name of the model and the two numbers of a
`TextLimit`, a tab, and the body. A line out for each: `{"body": ...}`, with what the model takes of
it, or `{"error": ...}` with the fields of an ApiError.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from typing import Any

from copyahead.server.errors import ApiError
from copyahead.server.http.bodies import read_body, too_deep
from copyahead.server.http.text_limit import TextLimit

MAX_BYTES = 1 << 31
"""Most memory. A body of 16 MB takes a tenth of it."""
_NICENESS = 5
"""The model goes first: what is read here is large, and mostly of no use."""


def _answer(line: bytes) -> str:
    try:
        return json.dumps(_read(line))
    except RecursionError:
        return json.dumps({"error": _fields(too_deep())})


def _read(line: bytes) -> dict[str, Any]:
    head, _, data = line.partition(b"\t")
    module, name, context_size, token_bytes = json.loads(head)
    model = getattr(importlib.import_module(module), name)
    try:
        body = read_body(data[:-1], model, TextLimit(context_size, token_bytes))
    except ApiError as error:
        return {"error": _fields(error)}
    return {"body": body.model_dump(exclude_unset=True, by_alias=True)}


def _fields(error: ApiError) -> dict[str, Any]:
    fields = {name: getattr(error, name) for name in ("status", "code", "param", "extra")}
    return {"message": str(error), **fields}


def _set_limits() -> None:
    if hasattr(os, "nice"):
        os.nice(_NICENESS)
    try:
        import resource
    except ImportError:
        return
    for kind, limit in ((resource.RLIMIT_AS, MAX_BYTES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (limit, limit))


def main() -> None:
    """Serve until the input ends."""
    # Ctrl-C reaches all processes of a terminal: the server decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_limits()
    for line in sys.stdin.buffer:
        sys.stdout.write(_answer(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
