"""Token ids to text, one token at a time.

Nothing here knows how tokens were grouped into rounds: `push` takes one token, so every
cutting of a sequence into steps gives the same text, the same deltas joined, and the same stop.
Text is held back only while it is part of a character or could still become a stop string.
A character that is incomplete when the request ends is dropped: no broken one is ever shown.

The work is linear in the text, whatever the stop strings are: every one is looked for with the
automaton of Knuth, Morris and Pratt, which looks at no character twice.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from copyahead.contracts import Tokenizer
from copyahead.engine.origin import Origin
from copyahead.types import Token

Run = tuple[str, bool]
"""A stretch of text, and whether the tokens that completed it were copied."""

_Piece = tuple[str, bool, Origin | None]

MAX_STOP_LENGTH = 1000
"""Characters that a stop string may have."""


class TextStream:
    """The text of one answer, with its stop strings."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._stops = [_Stop(text) for text in stop]
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: deque[_Piece] = deque()
        self._num_held = 0
        """Characters of `_held`."""
        self._ready: list[tuple[list[str], bool, Origin | None]] = []

    def push(
        self,
        token: Token,
        *,
        copied: bool = False,
        origin: Origin | None = None,
        may_stop: bool = True,
    ) -> bool:
        """Add a token's text; True when a stop string is complete.

        The text then ends before the stop string, which is never shown, and nothing more may be
        pushed. With `may_stop` false (`min_tokens` not reached) a complete stop string is
        ordinary text.
        """
        piece = self._decoder.decode(self._token_bytes(token))
        if not piece:
            return False
        if not self._stops:
            self._show(piece, copied, origin)
            return False
        self._held.append((piece, copied, origin))
        self._num_held += len(piece)
        found = [(end, -stop.length) for stop in self._stops if (end := stop.find(piece))]
        if found and may_stop:
            # The one that is complete first; of several that end there, the longest.
            end, minus_length = min(found)
            self._release(self._num_held - len(piece) + end + minus_length)
            self._held.clear()
            self._num_held = 0
            return True
        self._release(self._num_held - max(stop.num_matched for stop in self._stops))
        return False

    def take(self) -> tuple[Run, ...]:
        """What may be shown and has not been taken yet."""
        return self.take_with_origins()[0]

    def take_with_origins(self) -> tuple[tuple[Run, ...], list[tuple[str, Origin | None]]]:
        """The same, and once more in runs of one origin."""
        ready, self._ready = self._ready, []
        by_origin = [("".join(pieces), origin) for pieces, _, origin in ready]
        runs: list[Run] = []
        for (text, _), (_, copied, _) in zip(by_origin, ready, strict=True):
            if runs and runs[-1][1] == copied:
                runs[-1] = runs[-1][0] + text, copied
            else:
                runs.append((text, copied))
        return tuple(runs), by_origin

    def finish(self) -> None:
        """The request has ended without a stop string: release what was held for one."""
        self._release(self._num_held)

    def _release(self, count: int) -> None:
        """Move the first `count` held characters to what may be shown."""
        self._num_held -= count
        while count > 0:
            piece, copied, origin = self._held.popleft()
            if len(piece) > count:
                self._held.appendleft((piece[count:], copied, origin))
                piece = piece[:count]
            count -= len(piece)
            self._show(piece, copied, origin)

    def _show(self, piece: str, copied: bool, origin: Origin | None) -> None:
        if self._ready and self._ready[-1][1:] == (copied, origin):
            self._ready[-1][0].append(piece)
        else:
            self._ready.append(([piece], copied, origin))


class _Stop:
    """How much of one stop string the text ends with."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.length = len(text)
        self._borders = _borders(text)
        self.num_matched = 0
        """Length of the longest beginning of the stop string, short of all, that the text ends
        with."""

    def find(self, piece: str) -> int:
        """Add `piece` to the text: how much of it completes the stop string first, or 0.

        All of it is added, whatever is found.
        """
        text, matched, end = self._text, self.num_matched, 0
        if not matched and text[0] not in piece:
            return 0
        for place, char in enumerate(piece, start=1):
            while matched and text[matched] != char:
                matched = self._borders[matched]
            if text[matched] == char:
                matched += 1
                if matched == self.length:
                    end = end or place
                    matched = self._borders[matched]
        self.num_matched = matched
        return end


@lru_cache(maxsize=1024)
def _borders(text: str) -> tuple[int, ...]:
    """For each length of a beginning of `text`: the longest shorter one that it ends with."""
    borders = [0, 0]
    for char in text[1:]:
        length = borders[-1]
        while length and text[length] != char:
            length = borders[length]
        borders.append(length + 1 if text[length] == char else 0)
    return tuple(borders)
