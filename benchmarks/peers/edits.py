"""A trace for when there is none: files of the standard library, edited and written out whole."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

MODULES = ("textwrap", "shlex", "heapq", "bisect", "fnmatch", "sched", "queue", "csv", "glob")
_NAME = re.compile(r"\b[a-z_]{4,}\b")


def write_edits(folder: Path) -> Path:
    """A file of sessions: each reads a module and writes it with one name changed, twice."""
    path = folder / "edits.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for module in MODULES:
            messages = session(module)
            if messages:
                file.write(json.dumps({"id": module, "messages": messages}) + "\n")
    return path


def session(module: str) -> list[dict[str, str]]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return []
    source = Path(spec.origin).read_text(encoding="utf-8")
    names = sorted(set(_NAME.findall(source)), key=lambda name: (-source.count(name), name))
    messages = []
    for name in [name for name in names if name not in ("self", "return", "None")][:2]:
        edited = re.sub(rf"\b{name}\b", f"new_{name}", source)
        asked = f"Rename {name} to new_{name} and write out the whole file.\n\n{source}"
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": edited}]
        source = edited
    return messages
