"""The slow oracle of the history index: a plain scan, without hashing, for every search."""

from __future__ import annotations

from dataclasses import dataclass, field

from copyahead.contracts import Query
from copyahead.history.pool import HistoryPool
from copyahead.kernels.index import View
from copyahead.types import NO_DRAFT, Draft, Source

MAX_MATCH = 64
MAX_COPY = 64
BARRIER = -1


def view_of(pool: HistoryPool, row: int = 0) -> View:
    """The row, and the scope of the store it may copy from, as kernels take them."""
    scope, shared = pool.scope(row), pool.shared
    own = (pool.cells[row], pool.heads[row], pool.length(row))
    return View(*own, shared.cells[scope], shared.heads[scope], int(shared.ends[scope]))


def chain_width(key: int) -> int:
    """The longest indexed key that is not longer than `key`."""
    return 4 if key >= 4 else 2 if key >= 2 else 1


@dataclass
class NaiveHistory:
    """One request's tokens, searched from end to start."""

    vocab_size: int
    tokens: list[int] = field(default_factory=list)
    prompt_length: int = 0

    def attach(self, prompt: list[int]) -> int:
        new = [self._held(token) for token in prompt]
        kept = 0
        while kept < min(len(new), len(self.tokens)) and new[kept] == self.tokens[kept]:
            kept += 1
        self.tokens = new
        self.prompt_length = len(new)
        return kept

    def extend(self, tokens: list[int]) -> None:
        self.tokens += [self._held(token) for token in tokens]

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self.prompt_length = min(self.prompt_length, length)

    def _held(self, token: int) -> int:
        return token if 0 <= token < self.vocab_size else BARRIER

    def match_length(self, end: int) -> int:
        """Equal tokens going back from `end` and from the history's last token."""
        last = len(self.tokens) - 1
        length = 0
        while length < MAX_MATCH and end - length >= 0:
            token = self.tokens[last - length]
            if token == BARRIER or self.tokens[end - length] != token:
                break
            length += 1
        return length

    def search(self, query: Query) -> Draft:
        for key in query.keys:
            found = self._winner(key, query)
            if found is None:
                continue
            origin, match = found
            if match < query.min_match:
                return NO_DRAFT
            source = Source.PROMPT if origin < self.prompt_length else Source.OUTPUT
            tokens = self._copy(origin, min(query.max_tokens, MAX_COPY))
            return Draft(tokens, source, match, (), origin)
        return NO_DRAFT

    def _winner(self, key: int, query: Query) -> tuple[int, int] | None:
        width = chain_width(key)
        last = len(self.tokens) - 1
        ends = [end for end in range(last - 1, -1, -1) if self.match_length(end) >= width][
            : query.max_candidates
        ]
        hits = [
            (end + 1, self.match_length(end))
            for end in ends
            if self.tokens[end + 1] != BARRIER and self.match_length(end) >= key
        ]
        if not hits:
            return None
        if query.winner == "newest":
            return hits[0]
        if query.winner == "furthest":
            return hits[-1]
        return max(hits, key=lambda hit: (hit[1], hit[0]))

    def _copy(self, origin: int, max_tokens: int) -> tuple[int, ...]:
        text = list(self.tokens)
        copied: list[int] = []
        for k in range(max_tokens):
            if text[origin + k] == BARRIER:
                break
            copied.append(text[origin + k])
            text.append(text[origin + k])
        return tuple(copied)
