"""A text that cannot fit the context is refused before anything is done with it.

A token stands for so many bytes at most, so a text has at least so many tokens. To know that takes
no time; to render, cut and count what has no chance takes seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from copyahead.contracts import Tokenizer
from copyahead.server.errors import context_overflow

_MAX_BODY_BYTES = 16_000_000
_BESIDES_BYTES = 4_000_000
"""What tools, schemas, and all else that is no text of the prompt may take of a body."""
_ESCAPED_BYTES = 6
"""The most that JSON takes for a byte of text: `\\u0000`."""
_TEXT_KEYS = ("text", "content", "output")


@dataclass(frozen=True, slots=True)
class TextLimit:
    """How much text the context can hold."""

    context_size: int
    token_bytes: int
    """Of the longest token."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, pieces: Sequence[bytes], context_size: int) -> TextLimit:
        """`pieces`: what each token stands for; control tokens stand for how they are spelled."""
        spelled = (len(text.encode()) for text in tokenizer.control_texts)
        longest = max((*map(len, pieces), *spelled), default=0)
        return cls(context_size, max(1, longest))

    def check(self, field: str, texts: Iterable[str]) -> None:
        """Raise ApiError where `texts`, which stand in one prompt, cannot fit the context.

        White space at their ends does not count: templates take it off.
        """
        num_bytes = sum(len(text.strip().encode("utf-8", "replace")) for text in texts)
        num_tokens = -(-num_bytes // self.token_bytes)
        if num_tokens >= self.context_size:
            raise context_overflow(num_tokens, self.context_size, field, at_least=True)

    @property
    def max_body_bytes(self) -> int:
        """A body of more bytes holds more text than the context can, or hardly any text; 16 MB at
        most."""
        text = self.context_size * self.token_bytes * _ESCAPED_BYTES
        return min(_MAX_BODY_BYTES, text + _BESIDES_BYTES)


def texts_in(content: Any) -> Iterator[str]:
    """The texts of a message's content, or of items: texts, parts, and parts of parts. What is
    wrong is passed over, and so is thinking, which templates may leave out."""
    pending = [content]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, dict) and one.get("type") != "reasoning":
            pending += (one[key] for key in _TEXT_KEYS if key in one)
