"""Rows of Parquet files, some at a time, as the objects that the other readers know.

A column is a key. So a file has the columns of one of the formats: `messages`, `conversations`, a
prompt and its answer as texts or as token ids, or others of those in docs/replay.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from copyahead.errors import ConfigError, MissingExtraError
from copyahead.traces.formats.pairs import ANSWERS, QUESTIONS
from copyahead.traces.formats.reading import Item
from copyahead.traces.large.opening import readable

_ROWS = 64
"""Of a batch: each may be a conversation."""
_AS_TEXT = ("messages", "conversations", "conversation", "request", "response")
"""Columns that some data sets hold as JSON text."""


def parquet_items(path: Path) -> Iterator[tuple[str, Item]]:
    """Each row with its place. Raises ConfigError where the file cannot be read, and
    MissingExtraError where pyarrow is missing."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet") from None
    number = 0
    try:
        with readable(path), ParquetFile(path, memory_map=False, pre_buffer=False) as file:
            for batch in file.iter_batches(batch_size=_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number}", _item(row)
    except ArrowException as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"trace {path} cannot be read ({reason})") from None


def columns_of(path: Path) -> list[str]:
    """The names of its columns."""
    from pyarrow.parquet import read_schema

    return list(read_schema(path).names)


def missing_column(path: Path, names: Sequence[str]) -> ConfigError:
    """The refusal of a file whose columns make up no format."""
    asked = next((name for name in QUESTIONS if name in names), None)
    answer = next((name for name in ANSWERS if name in names), None)
    if asked is not None and answer is None:
        return ConfigError(
            f"trace {path} has the column {asked} and none for what was written: add completion "
            "(text) or output_ids (token ids)"
        )
    if answer is not None and asked is None:
        return ConfigError(
            f"trace {path} has the column {answer} and none for what was read: add prompt (text or "
            "token ids)"
        )
    return ConfigError(
        f"trace {path} has the columns {', '.join(names[:12])}, of which no format is made: name "
        "them prompt and completion, prompt_ids and output_ids, messages, or conversations"
    )


def _item(row: dict[str, Any]) -> Item:
    item: dict[str, Any] = _without_nulls(row)
    for name in _AS_TEXT:
        text = item.get(name)
        if isinstance(text, str) and text[:1] in ("[", "{"):
            try:
                item[name] = json.loads(text)
            except (ValueError, RecursionError):
                continue
    return item


def _without_nulls(value: Any) -> Any:
    """Rows have every column, and objects in them every field; what has no value is left out."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_without_nulls(each) for each in value]
    return value
