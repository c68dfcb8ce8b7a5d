"""The file of recorded drafts: what a draft model says at every written place of a trace.

JSON lines. The first is a `DraftHeader`; each further one a `RequestDrafts`, whose arrays are
base64 of little-endian numbers packed by zlib. Requests are numbered as `Corpus.requests` has
them. A file whose writing was interrupted holds whole lines, and may be gone on with.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from copyahead.errors import ConfigError
from copyahead.traces.corpus import END, START, Corpus
from copyahead.traces.record_file import RecordFile

VERSION = 1
"""Of the file; raised whenever a field changes its meaning."""

Tokens = npt.NDArray[np.int32]
Probabilities = npt.NDArray[np.float32]

_TOKEN, _PROBABILITY = np.dtype("<i4"), np.dtype("<f4")
_BROKEN = (msgspec.DecodeError, ValueError, zlib.error)


class DraftHeader(msgspec.Struct, frozen=True, kw_only=True):
    """Whose drafts a file holds, of which text, and how they were asked for."""

    copyahead_drafts: int
    """The version of the file."""
    model: str
    """The draft model's file name."""
    model_fingerprint: str
    vocab_size: int
    vocabulary: str
    """Fingerprint of the draft model's tokenizer; see `corpus.vocabulary_of`."""
    trace: str
    """Fingerprint of the text and of what of it was written; see `fingerprint_of`."""
    depth: Annotated[int, msgspec.Meta(ge=1, le=64)]
    """Longest chain that may be replayed."""
    branch_depth: Annotated[int, msgspec.Meta(ge=0, le=64)]
    """Tokens of a chain that are recorded after the first that is not the text's. What is beyond
    them was not asked for; see `recorded.RecordedDrafter` for what stands in its place."""
    window: int
    """Context that the draft model had; a longer text was cut to its end, see `windows.Window`."""


class RequestDrafts(msgspec.Struct, frozen=True):
    """The drafts of one request, for each place from its first written token to one past the last.

    Rows are places. The first column is the likeliest token there, after the recorded text. Where
    that is not the text's token, the next columns are how the draft model goes on after its own.
    -1 stands where it was not asked, or an end token came before.
    """

    request: int
    tokens: bytes
    """int32, shape `[places, 1 + branch_depth]`."""
    probabilities: bytes
    """float32, the same shape: what the draft model gives each of them."""

    @classmethod
    def of(cls, request: int, tokens: Tokens, probabilities: Probabilities) -> RequestDrafts:
        """The record of these arrays."""
        return cls(
            request,
            zlib.compress(tokens.astype(_TOKEN).tobytes()),
            zlib.compress(probabilities.astype(_PROBABILITY).tobytes()),
        )

    def arrays(self, places: int, columns: int) -> tuple[Tokens, Probabilities]:
        """The arrays again. Raises ValueError or zlib.error where they are none of that shape."""
        tokens = np.frombuffer(zlib.decompress(self.tokens), dtype=_TOKEN)
        probabilities = np.frombuffer(zlib.decompress(self.probabilities), dtype=_PROBABILITY)
        shape = (places, columns)
        return (
            tokens.reshape(shape).astype(np.int32),
            probabilities.reshape(shape).astype(np.float32),
        )


def fingerprint_of(corpus: Corpus) -> str:
    """Identifies the text of a corpus, and what of it was written."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.ascontiguousarray(corpus.tokens, dtype=_TOKEN).tobytes())
    digest.update(np.ascontiguousarray(corpus.requests[:, : END + 1], dtype="<i8").tobytes())
    return digest.hexdigest()


def num_places(corpus: Corpus, request: int) -> int:
    """Places of a request at which a draft is recorded."""
    row = corpus.requests[request]
    return int(row[END] - row[START]) + 1


class DraftWriter:
    """Appends the drafts of requests to a file; goes on with one that was begun."""

    def __init__(self, path: Path, header: DraftHeader) -> None:
        """Raises ConfigError where the file cannot be written, or holds anything else than drafts
        that were asked for in the same way. A last line that is not whole is taken off."""
        self.done: set[int] = set()
        """Requests that the file holds."""
        held = _read_bytes("output", path) if path.exists() else b""
        whole = held.rfind(b"\n") + 1
        if held:
            self._take_over(path, held[:whole], header)
        if whole < len(held):
            with path.open("r+b") as file:
                file.truncate(whole)
        self._file = RecordFile(path)
        if not whole:
            self._append(header)

    def write(self, drafts: RequestDrafts) -> None:
        """Append the drafts of a request, whole or not at all. Raises OSError."""
        self._append(drafts)
        self.done.add(drafts.request)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()

    def __enter__(self) -> DraftWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, line: msgspec.Struct) -> None:
        self._file.append(msgspec.json.encode(line) + b"\n")

    def _take_over(self, path: Path, lines: bytes, header: DraftHeader) -> None:
        try:
            found, requests = _parse(lines)
        except _BROKEN:
            raise ConfigError(
                f"output {path} is there and holds no drafts: name another file"
            ) from None
        if found != header:
            raise ConfigError(
                f"output {path} holds drafts of another trace or model, or asked for with other "
                "options: name another file"
            )
        self.done = {drafts.request for drafts in requests}


def read_drafts(path: Path) -> tuple[DraftHeader, list[RequestDrafts]]:
    """What a file holds. Raises ConfigError where it is none, damaged, or ends within a line."""
    data = _read_bytes("drafts", path)
    if data and not data.endswith(b"\n"):
        raise ConfigError(
            f"drafts {path} is cut short: record-drafts takes the rest off and goes on"
        )
    try:
        return _parse(data)
    except _BROKEN as error:
        reason = (
            str(error) if isinstance(error, _OtherVersionError) else "it is damaged or another file"
        )
        raise ConfigError(
            f"drafts {path} cannot be used ({reason}): make it with copyahead record-drafts"
        ) from None


class _OtherVersionError(ValueError):
    """A file of another version of the format."""


def _parse(lines: bytes) -> tuple[DraftHeader, list[RequestDrafts]]:
    first, *rest = lines.splitlines() or [b""]
    document = msgspec.json.decode(first)
    version = document.get("copyahead_drafts") if isinstance(document, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise _OtherVersionError(f"it is of version {version}, and this program reads {VERSION}")
    header = msgspec.convert(document, DraftHeader)
    return header, [msgspec.json.decode(line, type=RequestDrafts) for line in rest]


def _read_bytes(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{field} {path} cannot be read ({error.strerror})") from None


class RecordedDrafts:
    """The drafts of some of a corpus' requests, one after another in two arrays."""

    def __init__(
        self,
        tokens: Tokens,
        probabilities: Probabilities,
        begins: npt.NDArray[np.int64],
        depth: int,
    ) -> None:
        """`begins[i]`: where the places of request i begin; one more says where the last end."""
        self.tokens = tokens
        self.probabilities = probabilities
        self.begins = begins
        self.depth = depth

    def of(self, request: int) -> tuple[Tokens, Probabilities]:
        """The rows of a request, as `RequestDrafts` has them."""
        rows = slice(int(self.begins[request]), int(self.begins[request + 1]))
        return self.tokens[rows], self.probabilities[rows]


def join(
    corpus: Corpus, path: Path, header: DraftHeader, requests: Sequence[RequestDrafts]
) -> tuple[Corpus, RecordedDrafts]:
    """The corpus cut to the requests that have drafts, and these drafts.

    Raises ConfigError where they are those of another text or tokenizer.
    """
    if corpus.vocabulary and corpus.vocabulary != header.vocabulary:
        raise ConfigError(
            f"drafts {path} are of {header.model}, whose tokenizer is another: tokenise with it, "
            "--tokenizer MODEL"
        )
    if fingerprint_of(corpus) != header.trace:
        raise ConfigError(
            f"drafts {path} were recorded for another trace: name the same files, sessions and "
            "options"
        )
    if not requests:
        raise ConfigError(f"drafts {path} hold no request: run record-drafts again")
    ordered = sorted(requests, key=lambda drafts: drafts.request)
    numbers = [drafts.request for drafts in ordered]
    columns = 1 + header.branch_depth
    try:
        places = [num_places(corpus, number) for number in numbers]
        arrays = [d.arrays(n, columns) for d, n in zip(ordered, places, strict=True)]
    except (IndexError, *_BROKEN):
        raise ConfigError(f"drafts {path} are damaged: record them again") from None
    found = RecordedDrafts(
        np.concatenate([tokens for tokens, _ in arrays]),
        np.concatenate([probabilities for _, probabilities in arrays]),
        np.concatenate([[0], np.cumsum(places)]).astype(np.int64),
        header.depth,
    )
    return corpus.only(numbers), found
