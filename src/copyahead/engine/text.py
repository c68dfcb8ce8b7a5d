"""Token ids to text, one token at a time.

Nothing here knows how tokens were grouped into rounds: `push` takes one token, so every
cutting of a sequence into steps gives the same text, the same deltas joined, and the same stop.
Text is held back only while it is part of a character or could still become a stop string.
A character that is incomplete when the request ends is dropped: no broken one is ever shown.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from copyahead.contracts import Tokenizer
from copyahead.types import Token

Run = tuple[str, bool]
"""A stretch of text, and whether the tokens that completed it were copied."""


class TextStream:
    """The text of one answer, with its stop strings."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._stops = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[Run] = []
        self._held_text = ""
        self._ready: list[Run] = []

    def push(self, token: Token, *, copied: bool = False, may_stop: bool = True) -> bool:
        """Add a token's text; True when a stop string is complete.

        The text then ends before the stop string, which is never shown, and nothing more may be
        pushed. With `may_stop` false (`min_tokens` not reached) a complete stop string is
        ordinary text.
        """
        piece = self._decoder.decode(self._token_bytes(token))
        if not piece:
            return False
        if not self._stops:
            self._show(piece, copied)
            return False
        self._held.append((piece, copied))
        self._held_text += piece
        if may_stop:
            end = self._stop_start(len(piece))
            if end is not None:
                self._release(end)
                self._held, self._held_text = [], ""
                return True
        self._release(len(self._held_text) - self._live_prefix())
        return False

    def take(self) -> tuple[Run, ...]:
        """What may be shown and has not been taken yet."""
        runs, self._ready = tuple(self._ready), []
        return runs

    def finish(self) -> None:
        """The request has ended without a stop string: release what was held for one."""
        self._release(len(self._held_text))

    def _stop_start(self, num_new: int) -> int | None:
        """Where the stop string that is complete first begins in the held text."""
        first: tuple[int, int] | None = None
        for stop in self._stops:
            old = len(self._held_text) - num_new
            start = self._held_text.find(stop, max(0, old - len(stop) + 1))
            if start >= 0:
                found = (start + len(stop), start)
                first = found if first is None else min(first, found)
        return None if first is None else first[1]

    def _live_prefix(self) -> int:
        """Length of the longest end of the held text that begins some stop string."""
        longest = 0
        for stop in self._stops:
            for length in range(min(len(stop) - 1, len(self._held_text)), longest, -1):
                if self._held_text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _release(self, count: int) -> None:
        """Move the first `count` held characters to what may be shown."""
        self._held_text = self._held_text[count:]
        while count > 0:
            piece, copied = self._held[0]
            if len(piece) <= count:
                self._held.pop(0)
            else:
                self._held[0] = (piece[count:], copied)
                piece = piece[:count]
            count -= len(piece)
            self._show(piece, copied)

    def _show(self, piece: str, copied: bool) -> None:
        if self._ready and self._ready[-1][1] == copied:
            self._ready[-1] = (self._ready[-1][0] + piece, copied)
        else:
            self._ready.append((piece, copied))
