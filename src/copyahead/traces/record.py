"""copyahead's own traces: one JSON object a line, a line a request, appended when it ends.

Token ids only, never text unless it was asked for. A prompt that goes on from an earlier record
of the same session is stored as its tail. A line names its version; a reader takes no other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from copyahead.traces.large.spool import Spool
from copyahead.traces.record_file import RecordFile

VERSION = 1
"""Of the record; raised whenever a field changes its meaning."""

_MAX_SESSIONS = 64
_MAX_TOKENS_KEPT = 1 << 22

Tokens = npt.NDArray[np.int32]

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31 - 1)]
"""A token id: below the size of a vocabulary, which fits an int32."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request, as it ended."""

    copyahead_trace: int = msgspec.field()
    """The version of the record."""
    session: str
    """Requests of one conversation share it."""
    turn: Count
    """Counts the session's records from 0, so that a lost one is noticed."""
    shared: Count
    """How many tokens of the session's last record (prompt and output) this prompt begins with."""
    prompt: list[Id]
    """The rest of the prompt."""
    output: list[Id]
    """The emitted tokens, end token included where one was emitted."""
    vocab_size: Count = 0
    """Size of the vocabulary; 0: not known."""
    rounds: list[tuple[int, int]] = []
    """`(num_draft_tokens, num_accepted_tokens)` of each round, in order."""
    options: dict[str, Any] = {}
    """The request's sampling options and policy."""
    finish_reason: str = ""
    model: str = ""
    time: float = 0.0
    """When it ended, in seconds since 1970."""
    seconds: float = 0.0
    """How long it took from when it came to its end; 0: not known."""
    text: str | None = None
    """The answer as text; only where it was asked for."""


class TraceWriter:
    """Appends records to a file. Safe to call from several threads."""

    def __init__(
        self, path: str | os.PathLike[str], *, model: str = "", vocab_size: int = 0
    ) -> None:
        """Only its owner may read the file, also one that exists: token ids are as good as text.

        Raises ConfigError where the file cannot be opened for appending, and where it, or a link
        to it, is another user's.
        """
        self._file = RecordFile(Path(path).expanduser())
        self._model = model
        self._vocab_size = vocab_size
        self._run = os.urandom(6).hex()
        self._count = 0
        self._lock = threading.Lock()
        self._last: OrderedDict[str, tuple[int, Tokens]] = OrderedDict()

    def write(
        self,
        prompt: Sequence[int],
        output: Sequence[int],
        *,
        rounds: Iterable[tuple[int, int]] = (),
        options: Mapping[str, Any] | None = None,
        finish_reason: str = "",
        text: str | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Append one request, whole or not at all. OSError where the file cannot be written."""
        read = np.asarray(prompt, dtype=np.int32)
        with self._lock:
            session, turn, shared = self._session_of(read)
            record = Record(
                copyahead_trace=VERSION,
                session=session,
                turn=turn,
                shared=shared,
                prompt=read[shared:].tolist(),
                output=[int(token) for token in output],
                vocab_size=self._vocab_size,
                rounds=list(rounds),
                options=dict(options or {}),
                finish_reason=finish_reason,
                model=self._model,
                time=round(time.time(), 3),
                seconds=round(seconds, 3),
                text=text,
            )
            self._file.append(msgspec.json.encode(record) + b"\n")
            self._remember(session, turn, [*record.output], read)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _session_of(self, prompt: Tokens) -> tuple[str, int, int]:
        """The session that `prompt` goes on from, its next turn, and how much of it is shared.

        It goes on from one of which it repeats at least half.
        """
        best, next_turn, shared = "", 0, 0
        for session, (turn, held) in self._last.items():
            common = _common_prefix(held, prompt)
            if common > shared and 2 * common >= len(held):
                best, next_turn, shared = session, turn + 1, common
        if best:
            return best, next_turn, shared
        self._count += 1
        return f"{self._run}-{self._count}", 0, 0

    def _remember(self, session: str, turn: int, output: list[int], prompt: Tokens) -> None:
        self._last[session] = turn, np.concatenate([prompt, np.array(output, dtype=np.int32)])
        self._last.move_to_end(session)
        while len(self._last) > 1 and (
            len(self._last) > _MAX_SESSIONS
            or sum(len(held) for _, held in self._last.values()) > _MAX_TOKENS_KEPT
        ):
            self._last.popitem(last=False)


class RecordReader:
    """Puts the prompts of a file's records together again."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        """For each session the turn of its last record, and where its tokens are put away."""
        self._spool = Spool()

    def read(self, line: Mapping[str, Any]) -> tuple[Record, list[int]]:
        """The record, and its whole prompt. Raises ValueError where it cannot be had."""
        version = line.get("copyahead_trace")
        if version != VERSION:
            raise ValueError(f"a record of version {version!r}: this program reads {VERSION}")
        record = msgspec.convert(line, Record)
        turn, place = self._last.get(record.session, (-1, -1))
        held = self._tokens(place) if record.shared and place >= 0 else []
        if record.shared and (record.turn != turn + 1 or record.shared > len(held)):
            raise ValueError(f"the record that session {record.session} goes on from is missing")
        prompt = held[: record.shared] + record.prompt
        whole = np.array(prompt + record.output, dtype=np.int32)
        self._last[record.session] = record.turn, self._spool.put(whole.tobytes())
        return record, prompt

    def _tokens(self, place: int) -> list[int]:
        tokens: list[int] = np.frombuffer(self._spool.get(place), dtype=np.int32).tolist()
        return tokens


def _common_prefix(one: Tokens, other: Tokens) -> int:
    count = min(len(one), len(other))
    differ = np.flatnonzero(one[:count] != other[:count])
    return int(differ[0]) if len(differ) else count
