"""JSON text that a model or a client wrote, and that may be anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 100
"""Deepest nesting that is read: templates and encoders give up at some depth, too."""


def parsed(text: str) -> Any:
    """What `text` stands for, without halves of surrogate pairs; None where it is no JSON, or
    nested too deeply."""
    try:
        value = json.loads(text)
        if "\\ud" in text.lower():
            value = json.loads(well_formed(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
    return value if is_shallow(value) else None


def well_formed(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which no client can read."""
    return text.encode("utf-8", "replace").decode()


def is_shallow(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Whether `value` is nested at most `limit` deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return limit > 0 and all(is_shallow(inner, limit - 1) for inner in value)
