"""Traces in a conversation of tools that ran elsewhere: hosted searches, sandboxes, shells.

The model has none of these tools, and reads what it says of them as text. What has no text is left
out, with a note in the log.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from copyahead.chat.untrusted_json import is_shallow
from copyahead.errors import RequestError

logger = logging.getLogger(__name__)

_PLAIN = (
    "name", "tool_name", "title", "url", "query", "queries", "code", "text", "stdout", "stderr",
    "logs", "error_code", "output", "outputs", "results", "content", "tool_references",
)  # fmt: skip
"""Fields that hold text, or parts that do."""
_OBJECTS = ("input", "arguments", "action", "operation")
"""Fields that hold what a tool was given."""
_KIND = re.compile(r"[a-z0-9_]{1,48}")


def text_elsewhere(part: Mapping[str, Any]) -> str:
    """What a part of a conversation says of a tool elsewhere, after its type; empty where that is
    nothing."""
    texts = "\n".join(_texts(part)) if is_shallow(part) else ""
    return f"[{part.get('type')}]\n{texts}" if texts else ""


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        if part.strip():
            yield part
    elif isinstance(part, list):
        for inner in part:
            yield from _texts(inner)
    elif isinstance(part, Mapping):
        for name in _PLAIN:
            yield from _texts(part.get(name))
        for name in _OBJECTS:
            if part.get(name):
                yield arguments_text(part[name])
        source = part.get("source")
        if isinstance(source, Mapping) and source.get("type") == "text":
            yield from _texts(source.get("data"))


def arguments_text(given: Any) -> str:
    """What a tool was given, as text: JSON, unless it is a text already."""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)


class LeftOut:
    """What a request holds and the model does not get to see."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()

    def add(self, kind: object) -> None:
        """Note a type; one that is no name is a client's text, and not for the log."""
        is_name = isinstance(kind, str) and _KIND.fullmatch(kind)
        self._kinds.add(str(kind) if is_name else "other")

    def log(self) -> None:
        """One line for the request, where there is something."""
        if self._kinds:
            logger.info("left out of a request: %s", ", ".join(sorted(self._kinds)))


def functions_only(tools: Sequence[Mapping[str, Any]] | None, kinds: Collection[Any]) -> list[Any]:
    """The place of each tool whose type is one of `kinds`, and the tool; a note for the others.

    Those run elsewhere, or are known by their type alone to a model that was trained on them.
    RequestError for a type that is no name.
    """
    left_out = LeftOut()
    taken = []
    for place, tool in enumerate(tools or ()):
        kind = tool.get("type")
        if not isinstance(kind, str | None):
            raise RequestError(f"tools[{place}].type must be a text", f"tools[{place}].type")
        if kind in kinds:
            taken.append((place, tool))
        else:
            left_out.add(kind)
    left_out.log()
    return taken
