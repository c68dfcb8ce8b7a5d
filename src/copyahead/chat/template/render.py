"""A program that renders one chat template; `child` sets its limits of memory and time.

    python -m copyahead.chat.template.render

The first line out is empty: it is ready. The first line in is the template, each after it the names
that the template sees, all as JSON. A line out for each: `{"text": ...}`, `{"error": ...}` with the
template's own reason, or `{"limit": ...}`, after which the program ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from copyahead.chat.template.jinja import compile_template

MAX_CHARACTERS = 1 << 25
"""Longest prompt that is handed over."""


def _serve() -> None:
    render: Callable[..., str] | None = None
    for line in sys.stdin:
        try:
            given = json.loads(line)
            if render is None:
                render, answer = compile_template(given).render, {"text": ""}
            else:
                answer = {"text": render(given)}
        except MemoryError:
            answer = {"limit": "memory"}
        except Exception as error:
            answer = {"error": str(error)}
        if len(answer.get("text", "")) > MAX_CHARACTERS:
            answer = {"limit": "characters"}
        _answer(answer)
        if "limit" in answer:
            return


def _answer(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until the input ends."""
    sys.stdout.write("\n")
    sys.stdout.flush()
    _serve()


if __name__ == "__main__":
    main()
