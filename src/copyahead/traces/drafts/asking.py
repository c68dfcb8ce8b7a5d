"""A draft model's likeliest token at every written place, and how it goes on where that is wrong.

The tokens after the recorded text come from passes over many of its rows at once. Where the
likeliest token is the text's own, the chain goes on as the next place's does, so nothing more is
asked there. Where it is not, the chain leaves the text: it is followed in a fork of the text's
sequence, several such branches in a pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from copyahead.contracts import Backend, Logits, Part
from copyahead.errors import BackendError, ConfigError, ModelError
from copyahead.traces.drafts.draft_file import Probabilities, Tokens
from copyahead.traces.drafts.windows import Window
from copyahead.types import Token

ROWS_WITH_LOGITS = 64
"""Places that one pass answers."""
_TRUNK = 0


class Asker:
    """A draft model that is asked about recorded streams. Uses all slots of its backend."""

    def __init__(self, backend: Backend, window: Window, branch_depth: int) -> None:
        """Raises ModelError or ConfigError where the model cannot be asked like that."""
        limits = backend.capabilities
        if branch_depth and (limits.num_slots < 2 or not limits.can_fork):
            raise ModelError(
                f"branch_depth must be 0 with {backend.name}: it keeps a recurrent state, which "
                "cannot be forked"
            )
        if window.size > limits.context_size:
            raise ConfigError(
                f"draft_ctx must be at most {limits.context_size}, which {backend.name} was "
                f"trained on, not {window.size}"
            )
        self._backend = backend
        self._window = window
        self._branch_depth = branch_depth
        self._end_tokens = backend.tokenizer.end_tokens
        self._vocab_size = backend.tokenizer.vocab_size
        self._branches = range(1, limits.num_slots)
        # The stream that the trunk holds, and where in it it starts.
        self._held: tuple[int, int] = (-1, 0)

    def ask(self, stream: int, text: Tokens, start: int, end: int) -> tuple[Tokens, Probabilities]:
        """The columns of `draft_file.RequestDrafts` for the places `start` to `end` of `text`.

        `stream` names the text: what was read of the same one is not read again.
        """
        shape = (end - start + 1, 1 + self._branch_depth)
        tokens, probabilities = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
        place = max(start, 1)
        while place <= end:
            base = self._window.start(place)
            last = min(end, self._window.last(base), place + ROWS_WITH_LOGITS - 1)
            rows = self._read(stream, text, base, place, last)
            for at, row in enumerate(rows, start=place - start):
                tokens[at, 0], probabilities[at, 0] = self._likeliest(row)
            wrong = [
                at
                for at in range(place, min(last, end - 1) + 1)
                if tokens[at - start, 0] != text[at]
                and int(tokens[at - start, 0]) not in self._end_tokens
            ]
            self._branch(wrong, start, base, tokens, probabilities)
            place = last + 1
        return tokens, probabilities

    def _read(self, stream: int, text: Tokens, base: int, place: int, last: int) -> Logits:
        """The logits for the places `place` to `last` of a text that is shown from `base` on."""
        backend = self._backend
        first = place - 1 - base
        if self._held != (stream, base):
            backend.truncate(_TRUNK, 0)
            self._held = stream, base
        try:
            backend.truncate(_TRUNK, first)
        except BackendError:  # A recurrent state; what is taken back is read again.
            backend.truncate(_TRUNK, 0)
        most = backend.capabilities.max_rows
        while (held := backend.length(_TRUNK)) < first:
            rows = text[base + held : base + min(first, held + most)].tolist()
            backend.forward([Part(_TRUNK, held, rows, 0)])
        rows = text[place - 1 : last].tolist()
        return backend.forward([Part(_TRUNK, first, rows, len(rows))])[0]

    def _branch(
        self,
        places: Sequence[int],
        start: int,
        base: int,
        tokens: Tokens,
        probabilities: Probabilities,
    ) -> None:
        """Follow the chains that leave the text at `places`, as far as they are recorded."""
        if not self._branch_depth:
            return
        for first in range(0, len(places), len(self._branches)):
            group = places[first : first + len(self._branches)]
            slots = dict(zip(group, self._branches, strict=False))
            for place, slot in slots.items():
                self._backend.fork(_TRUNK, slot, place - base)
            going = list(group)
            for column in range(1, 1 + self._branch_depth):
                going = [p for p in going if self._goes_on(int(tokens[p - start, column - 1]))]
                if not going:
                    break
                parts = [
                    Part(slots[p], p - base + column - 1, [int(tokens[p - start, column - 1])], 1)
                    for p in going
                ]
                for place, rows in zip(going, self._backend.forward(parts), strict=True):
                    said = self._likeliest(rows[0])
                    tokens[place - start, column], probabilities[place - start, column] = said
            for slot in slots.values():
                self._backend.truncate(slot, 0)

    def _goes_on(self, token: Token) -> bool:
        return token not in self._end_tokens

    def _likeliest(self, row: Logits) -> tuple[Token, float]:
        """The likeliest token and what the draft model gives it."""
        row = row[: self._vocab_size]
        best = int(row.argmax())
        return best, 1.0 / float(np.exp(row - row[best]).sum())
