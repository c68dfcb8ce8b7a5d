"""How much of the prompts a pass reads, so that reading holds up neither streams nor newcomers.

A pass over many rows is cheap for each row, and as long as it runs nobody else gets a token. So its
length is limited in time, by what rows of prompts took lately. And while answers are being written,
prompts take at most half of the time: after each pass that read, passes without prompts follow
until they have taken as long as the reading did.
"""

from __future__ import annotations

import statistics
from collections import deque

ALONE_SECONDS = 0.125
"""Longest pass over prompts when no answer is being written: a newcomer may have to wait for it."""
BUSY_SECONDS = 0.1
"""The same when some are."""
FEWEST_ROWS = 32
"""A pass may read this many tokens however long they take: fewer are dear, each of them."""
FIRST_ROWS = 128
"""Read before it is known how long they take."""
FREE_ROWS = 8
"""So few tokens, what a next turn adds or a prompt that is known but for its end, may be read in
every pass."""
KEPT = 9
"""Passes of which the time is kept."""
MAX_OWED_SECONDS = 10.0
"""Longest time that prompts wait for: a pass may have been long for another reason, such as a
machine that slept."""


class ReadingPace:
    """Told of every pass, and asked before each."""

    def __init__(self, chunk_tokens: int, busy_chunk_tokens: int) -> None:
        """The most prompt tokens of a pass without and with answers that are being written."""
        self._chunks = chunk_tokens, busy_chunk_tokens
        self._row_seconds: deque[float] = deque(maxlen=KEPT)
        self._owed = 0.0

    @property
    def owes(self) -> bool:
        """Whether it is the turn of those who write."""
        return self._owed > 0.0

    def num_rows(self, *, writing: bool) -> int:
        """Most prompt tokens of the next pass that reads; `writing`: beside other answers."""
        chunk = self._chunks[writing]
        if not self._row_seconds:
            return min(chunk, FIRST_ROWS)
        seconds = BUSY_SECONDS if writing else ALONE_SECONDS
        rows = int(seconds / max(statistics.median(self._row_seconds), 1e-9))
        return min(chunk, max(FEWEST_ROWS, rows))

    def observe(self, seconds: float, num_rows: int, writing_seconds: float) -> None:
        """Note a pass of `seconds` that read `num_rows` tokens of prompts.

        `writing_seconds`: what the pass would have taken without them; 0 where nobody wrote.
        """
        if not num_rows:
            self._owed = max(0.0, self._owed - seconds)
            return
        reading = max(0.0, seconds - writing_seconds)
        if num_rows >= FEWEST_ROWS // 2:
            self._row_seconds.append(reading / num_rows)
        self._owed = min(self._owed + reading, MAX_OWED_SECONDS) if writing_seconds else 0.0
