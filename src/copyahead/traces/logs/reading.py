"""Reading logs: which server wrote them, every request in them, and how much was not understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import msgspec

from copyahead.errors import ConfigError
from copyahead.traces.logs.bands import ALL, By, Groups, Key, Take
from copyahead.traces.logs.lines import read_lines
from copyahead.traces.logs.llama_server import LlamaServerReader, is_llama_server
from copyahead.traces.logs.own import OwnReader, is_own
from copyahead.traces.logs.rows import Row, make_row
from copyahead.traces.logs.vllm import VllmReader, is_vllm

Format = Literal["copyahead", "llama-server", "vllm"]

_LOOKED_AT = 10_000
"""Lines at the start of a file by which its kind is told."""
_SHOWN = 120
"""Characters of a line that a report shows."""


class Reader(Protocol):
    """Reads the lines of one kind of log."""

    def line(self, line: bytes) -> None:
        """Learn what a line says."""
        ...

    def new_file(self) -> None:
        """What comes next is another file."""
        ...

    def finish(self) -> None:
        """There is no more."""
        ...

    @property
    def note(self) -> str:
        """What somebody who reads the figures has to know of them."""
        ...


class _Kind(NamedTuple):
    recognises: Callable[[bytes], bool]
    open: Callable[[Take, Callable[[bytes], None]], Reader]
    title: str


KINDS: dict[Format, _Kind] = {
    "copyahead": _Kind(is_own, OwnReader, "the log of copyahead serve"),
    "llama-server": _Kind(is_llama_server, LlamaServerReader, "the log of llama.cpp's server"),
    "vllm": _Kind(is_vllm, VllmReader, "snapshots of vLLM's /metrics"),
}
_KNOWN = "readable are " + ", ".join(f"{kind.title} ({name})" for name, kind in KINDS.items())


class File(msgspec.Struct):
    """What became of one file."""

    path: str
    lines: int = 0
    not_understood: int = 0
    """Lines that should tell of a request, or are none of this server's, and cannot be read."""
    first_not_understood: str | None = None

    def __str__(self) -> str:
        text = f"{self.not_understood:,} of {self.lines:,} lines of {self.path} were not understood"
        return f"{text}; the first: {self.first_not_understood}"


class Log(msgspec.Struct):
    """What the logs of one server say."""

    format: Format
    note: str
    files: list[File]
    rows: list[Row]


def read_log(names: Sequence[str], *, by: Sequence[By] = (), kind: Format | None = None) -> Log:
    """Read the files called `names`, `-` for standard input, as one log.

    `kind` is told by content where it is None. Raises ConfigError for a file that cannot be
    read, is of no known kind, or of another kind than the first.
    """
    groups = Groups(by)
    files: list[File] = []
    reader: Reader | None = None
    is_told = kind is not None

    def wrong(line: bytes) -> None:
        file = files[-1]
        file.not_understood += 1
        if file.first_not_understood is None:
            file.first_not_understood = _shown(line)

    for name in names:
        lines = read_lines(name)
        if not is_told:
            found, lines = _recognised(name, lines)
            kind = _same(kind, found, name)
        if reader is None:
            reader = KINDS[kind].open(groups.add, wrong) if kind is not None else None
        else:
            reader.new_file()
        files.append(File(_title(name)))
        if reader is not None:
            files[-1].lines = _read(reader, lines)
    if reader is None or kind is None:
        raise ConfigError("there is no log to read: name files, or - for standard input")
    reader.finish()
    return Log(kind, reader.note, files, list(_rows(reader, groups)))


def _read(reader: Reader, lines: Iterable[bytes]) -> int:
    """Read all lines; how many there were."""
    count, read = 0, reader.line
    for line in lines:
        count += 1
        read(line)
    return count


def _rows(reader: Reader, groups: Groups) -> Iterator[Row]:
    if isinstance(reader, VllmReader):
        yield make_row(Key(), ALL, reader.total())
        return
    for key, band, group in groups:
        yield make_row(key, band, group)


def _recognised(name: str, lines: Iterator[bytes]) -> tuple[Format, Iterator[bytes]]:
    """The kind of a file, and its lines from the first on."""
    beginning: list[bytes] = []
    for line in lines:
        beginning.append(line)
        for kind, (recognises, *_) in KINDS.items():
            if recognises(line):
                return kind, chain(beginning, lines)
        if len(beginning) >= _LOOKED_AT:
            break
    if not any(line.strip() for line in beginning):
        raise ConfigError(f"{_title(name)} is empty")
    start = _shown(next(line for line in beginning if line.strip()))
    raise ConfigError(
        f"{_title(name)} is no log that is known (it begins with {start}): {_KNOWN}; name one with "
        "--format to read it all the same"
    )


def _same(before: Format | None, found: Format, name: str) -> Format:
    if before is not None and found != before:
        raise ConfigError(
            f"{_title(name)} is {KINDS[found].title} and the files before it are "
            f"{KINDS[before].title}: give logs of one kind, and others after --vs"
        )
    return found


def _title(name: str) -> str:
    return "standard input" if name == "-" else name


def _shown(line: bytes) -> str:
    """The beginning of a line as text that can be printed."""
    text = repr(line[: 4 * _SHOWN].decode("utf-8", "replace").strip())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
