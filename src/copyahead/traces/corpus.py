"""Recorded text as token ids: the corpus that a replay runs over."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from copyahead.config import usable_cpus
from copyahead.contracts import TextTokenizer
from copyahead.errors import ConfigError
from copyahead.traces.formats.conversations import Conversation, Message, TokenRequest
from copyahead.traces.formats.importers import Trace, sessions_of
from copyahead.traces.large.spool import TokenStore
from copyahead.types import Token

Tokens = npt.NDArray[np.int32]
Table = npt.NDArray[np.int64]

NUM_COLUMNS = 7
BASE, START, END, SESSION, CATEGORY, COLD, REPEATED = range(NUM_COLUMNS)
"""Columns of `Corpus.requests`: the stream's place in `tokens`, where in it the written part
starts and ends, the session and the category by number, and two flags."""

_MAX_PIECE = 16_384
_BATCH, _BATCH_ITEMS = 4_000_000, 4096
"""Characters, and conversations, that are tokenised at a time."""
_SAMPLE = (
    "def area(width: float, height=2.5):\n    return width * height  "
    "# \N{GREEK SMALL LETTER ALPHA}\n"
    "Twelve gr\u00fcne herons, 1234567890 \u00d7 3; \u4f60\u597d \u0434\u0430 \U0001f426 "
    '{"name": ["read_file", null]}\r\n\t<b>the weather was unremarkable</b>'
)


@dataclass(frozen=True)
class Corpus:
    """Requests over token streams. A session's requests are neighbours and share streams."""

    tokens: Tokens
    requests: Table
    """int64 `(requests, 7)`, columns as named in this module."""
    categories: tuple[str, ...]
    vocab_size: int
    end_tokens: tuple[Token, ...]
    vocabulary: str = ""
    """Fingerprint of the tokenizer, see `vocabulary_of`; empty where there was none."""

    def only(self, requests: Sequence[int]) -> Corpus:
        """The same texts with some of the requests, given by their rows in order."""
        return replace(self, requests=self.requests[list(requests)])

    @property
    def num_written(self) -> int:
        """Tokens that the requests wrote."""
        return int((self.requests[:, END] - self.requests[:, START]).sum())

    def sessions(self, category: int) -> list[tuple[int, int]]:
        """First and last request (exclusive) of each session of a category."""
        rows = np.flatnonzero(self.requests[:, CATEGORY] == category)
        spans = []
        for _, group in groupby(rows.tolist(), key=lambda row: int(self.requests[row, SESSION])):
            members = list(group)
            spans.append((members[0], members[-1] + 1))
        return spans


def vocabulary_of(tokenizer: TextTokenizer) -> str:
    """Identifies a tokenizer by what it makes of a sample, in whatever file it came."""
    tokens = _array(tokenizer.encode(_SAMPLE, special=False))
    return hashlib.blake2b(tokens.astype("<i4").tobytes(), digest_size=16).hexdigest()


def build_corpus(
    traces: Sequence[Trace],
    tokenizer: TextTokenizer | None,
    on_progress: Callable[[int], None] | None = None,
) -> Corpus:
    """Tokenise `traces`. `tokenizer` may be None where all of them hold token ids already.

    `on_progress` gets the number of characters done since its last call. Raises ConfigError
    where text needs a tokenizer, or records belong to another vocabulary than its own.
    """
    builder = _Builder(tokenizer, on_progress or (lambda _: None))
    for trace in traces:
        builder.add(trace)
    return builder.finish()


class _Builder:
    def __init__(self, tokenizer: TextTokenizer | None, on_progress: Callable[[int], None]) -> None:
        self._tokenizer = tokenizer
        self._on_progress = on_progress
        self._store = TokenStore()
        self._rows = array("q")
        self._categories: dict[str, int] = {}
        self._session = 0
        self._seen: set[bytes] = set()
        self._vocab_size = 0

    def add(self, trace: Trace) -> None:
        if trace.conversations:
            framing = _Framing(self._required())
            for conversation, parts in _encoded(trace.conversations, framing, self._on_progress):
                self._conversation(conversation, parts, trace.category)
        sessions = sessions_of(trace.requests)
        by_session = sorted(range(len(sessions)), key=sessions.__getitem__)
        for _, group in groupby(by_session, key=sessions.__getitem__):
            self._recorded([trace.requests[number] for number in group], trace.category)

    def finish(self) -> Corpus:
        if not self._rows:
            raise ConfigError("the traces hold no request to score: name more of them")
        known = self._tokenizer.vocab_size if self._tokenizer else 0
        return Corpus(
            tokens=self._store.tokens(),
            requests=np.array(self._rows, dtype=np.int64).reshape(-1, NUM_COLUMNS),
            categories=tuple(self._categories),
            vocab_size=max(known, self._vocab_size, self._store.largest + 1, 1),
            end_tokens=tuple(sorted(self._tokenizer.end_tokens)) if self._tokenizer else (),
            vocabulary=vocabulary_of(self._tokenizer) if self._tokenizer else "",
        )

    def _required(self) -> TextTokenizer:
        if self._tokenizer is None:
            raise ConfigError("the traces hold text: name a model with --tokenizer")
        return self._tokenizer

    def _conversation(
        self, conversation: Conversation, parts: list[tuple[Tokens, bool]], category: str
    ) -> None:
        spans, at = [], 0
        for tokens, written in parts:
            end = at + len(tokens)
            if written and end > conversation.only_read:
                spans.append((max(at, conversation.only_read), end))
            at = end
        stream = np.concatenate([tokens for tokens, _ in parts]) if parts else None
        if stream is not None:
            self._add_session([(stream, spans)], category)

    def _recorded(self, requests: list[TokenRequest], category: str) -> None:
        """Requests of one session: those that go on from the one before share its stream."""
        streams: list[tuple[Tokens, list[tuple[int, int]]]] = []
        for request in requests:
            self._vocab_size = max(self._vocab_size, request.vocab_size)
            whole = np.array([*request.read, *request.written], dtype=np.int32)
            span = (len(request.read), len(whole))
            held, spans = streams[-1] if streams else (whole, [])
            goes_on = len(held) <= span[0] and np.array_equal(held, whole[: len(held)])
            if streams and goes_on:
                streams[-1] = (whole, [*spans, span])
            else:
                streams.append((whole, [span]))
        self._add_session(streams, category)

    def _add_session(
        self, streams: list[tuple[Tokens, list[tuple[int, int]]]], category: str
    ) -> None:
        number = self._categories.setdefault(category, len(self._categories))
        cold = True
        for stream, spans in streams:
            digest, hashed = hashlib.blake2b(digest_size=16), 0
            for start, end in spans:
                if end <= start:
                    continue
                digest.update(stream[hashed:end].tobytes())
                hashed = end
                key = digest.digest() + start.to_bytes(8, "little")
                repeated = key in self._seen
                self._seen.add(key)
                base = len(self._store)
                self._rows.extend((base, start, end, self._session, number, cold, repeated))
                cold = False
            self._store.add(stream)
        self._session += 1


class _Framing:
    """Turn marks: the model's own where the vocabulary has ChatML's, its text elsewhere."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._begin = tokenizer.encode("<|im_start|>", special=True)
        marked = tokenizer.encode("<|im_end|>", special=True)
        ends = [token for token in marked if token in tokenizer.end_tokens]
        self._end = (ends or sorted(tokenizer.end_tokens))[:1]
        self._heads: dict[str, list[Token]] = {}
        self._line_end = self._plain("\n")

    def parts(self, message: Message, framed: bool) -> list[tuple[Tokens, bool]]:
        """The message's tokens in parts, each read or written. The end of a turn is written."""
        body = self._plain(message.text)
        if not framed:
            return [(_array(body), message.written)]
        head = self._heads.get(message.role)
        if head is None:
            head = self._heads[message.role] = self._begin + self._plain(message.role + "\n")
        return [
            (_array(head), False),
            (_array(body + self._end), message.written),
            (_array(self._line_end), False),
        ]

    def _plain(self, text: str) -> list[Token]:
        if len(text) <= _MAX_PIECE:
            return self._tokenizer.encode(text, special=False)
        return [t for piece in _pieces(text) for t in self._tokenizer.encode(piece, special=False)]


def _pieces(text: str) -> Iterator[str]:
    """Cut at line ends, as a tokenizer's time may grow faster than its text."""
    start = 0
    while start < len(text):
        end = start + _MAX_PIECE
        if end < len(text):
            line_end = text.rfind("\n", start + 1, end)
            end = line_end + 1 if line_end > start else end
        yield text[start:end]
        start = end


def _encoded(
    conversations: Sequence[Conversation], framing: _Framing, on_progress: Callable[[int], None]
) -> Iterator[tuple[Conversation, list[tuple[Tokens, bool]]]]:
    """Each conversation and its parts; tokenizers release the interpreter, so in threads."""

    def encode(conversation: Conversation) -> list[tuple[Tokens, bool]]:
        parts = []
        for message in conversation.messages:
            parts.extend(framing.parts(message, conversation.framed))
            on_progress(len(message.text))
        return parts

    with ThreadPoolExecutor(max_workers=usable_cpus()) as pool:
        for some in _batches(conversations):
            yield from zip(some, pool.map(encode, some), strict=True)


def _batches(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    """Some at a time, so that no more text is in memory than the threads need."""
    some: list[Conversation] = []
    size = 0
    for conversation in conversations:
        some.append(conversation)
        size += sum(len(message.text) for message in conversation.messages)
        if size >= _BATCH or len(some) >= _BATCH_ITEMS:
            yield some
            some, size = [], 0
    if some:
        yield some


def _array(tokens: list[Token]) -> Tokens:
    return np.array(tokens, dtype=np.int32)
