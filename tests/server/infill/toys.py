"""A toy that fills gaps: it writes what stands behind the gap once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from copyahead.contracts import FimTokens, Logits
from copyahead.types import Token
from tests.server.toys import END, PIECES, ByteTokenizer, ObedientLM, SlowBackend

SPELLED = ("<|pre|>", "<|suf|>", "<|mid|>", "<|repo|>", "<|file|>", "<|pad|>")
FIRST = len(PIECES)
FIM = FimTokens(
    prefix=FIRST,
    suffix=FIRST + 1,
    middle=FIRST + 2,
    repository=FIRST + 3,
    separator=FIRST + 4,
    padding=FIRST + 5,
)
PLAIN_FIM = FimTokens(prefix=FIRST, suffix=FIRST + 1, middle=FIRST + 2)
"""Of a model that knows nothing of files."""


class GapTokenizer(ByteTokenizer):
    """With the tokens for gaps. `finds_them`: in any text, as the tokenizers of some folders do."""

    control_texts = ByteTokenizer.control_texts | frozenset(SPELLED)

    def __init__(self, fim: FimTokens = FIM, *, finds_them: bool = False) -> None:
        super().__init__()
        ordinary = tuple(text.encode() for text in SPELLED) if finds_them else (b"",) * 6
        self._pieces = (*self._pieces, *ordinary)
        self.fim = fim
        self._finds_them = finds_them

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """As the bytes are cut; the tokens for gaps where they are looked for."""
        for n, name in enumerate(SPELLED if special or self._finds_them else ()):
            head, found, tail = text.partition(name)
            if found:
                left, right = (self.encode(part, special=special) for part in (head, tail))
                return [*left, FIRST + n, *right]
        return super().encode(text, special=special)


class GapLM(ObedientLM):
    """Writes what stands behind the gap, and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Token]] = []
        """Prompts, each time that a first token was asked for."""

    def logits(self, prefix: Sequence[Token]) -> Logits:
        """The row for what follows `prefix`."""
        tokens = list(prefix)
        row = np.zeros(FIRST + 6, dtype=np.float32)
        if FIM.middle not in tokens:
            row[: len(PIECES)] = super().logits(prefix)
            row[len(PIECES) :] = -60.0
            return row
        start, at = tokens.index(FIM.suffix) + 1, tokens.index(FIM.middle)
        if len(tokens) == at + 1 and tokens not in self.seen:
            self.seen.append(tokens)
        behind, place = tokens[start:at], len(tokens) - at - 1
        row[behind[place] if place < len(behind) else END] = 60.0
        return row


def gap_backend(tokenizer: GapTokenizer | None = None, **options: Any) -> SlowBackend:
    """A backend over the toy; its model is a `GapLM`."""
    options = {"context_size": 1024, "num_slots": 2, **options}
    return SlowBackend(GapLM(), tokenizer=tokenizer or GapTokenizer(), **options)
