"""The rows of a call: what each has written, and when it rests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from copyahead.types import Token


class Row:
    """One row of the batch."""

    __slots__ = ("ended_at", "fed", "index", "logits", "scores", "written")

    def __init__(self, index: int) -> None:
        self.index = index
        """Its place in the batch as it was given."""
        self.written: list[Token] = []
        self.ended_at: int | None = None
        """How many tokens it had written when a criterion ended it."""
        self.fed = False
        """Whether the model has read its last token, after its end."""
        self.scores: list[Any] = []
        self.logits: list[Any] = []


class Writing:
    """All rows of a call, and their ids as transformers' processors and criteria see them."""

    def __init__(self, prompt: Any, pads: bool, pad_token: Token) -> None:
        """`prompt`: shape `[batch_size, num_tokens]`, padding included.

        `pads`: a row that has ended is padded. Without it every row writes on until the last one
        has ended, as in transformers where no criterion is an end token.
        """
        self.prompt = prompt
        self.rows = [Row(index) for index in range(prompt.shape[0])]
        self.pads = pads
        self._pad_token = pad_token
        self._num_prompt_tokens = int(prompt.shape[1])
        self._ids: Any = None
        self._copied = [0] * len(self.rows)

    def length(self, row: Row) -> int:
        """Tokens of the row, prompt and padding included."""
        return self._num_prompt_tokens + len(row.written)

    def ids(self, row: Row) -> Any:
        """The row's ids so far, shape `[1, length]`: a view, valid until the next call."""
        length = self.length(row)
        if self._ids is None or self._ids.shape[1] < length:
            self._make_room(length)
        place, done = row.index, self._copied[row.index]
        if done < len(row.written):
            start = self._num_prompt_tokens + done
            self._ids[place, start:length] = self.prompt.new_tensor(row.written[done:])
            self._copied[place] = len(row.written)
        return self._ids[place : place + 1, :length]

    def _make_room(self, length: int) -> None:
        room = self.prompt.new_zeros(len(self.rows), length + max(256, length // 4))
        if self._ids is None:
            room[:, : self._num_prompt_tokens] = self.prompt
        else:
            room[:, : self._ids.shape[1]] = self._ids
        self._ids = room

    @property
    def num_written(self) -> int:
        """Tokens that the longest row has written, or, without padding, that every row writes."""
        if self.pads:
            return max(len(row.written) for row in self.rows)
        return max(row.ended_at or len(row.written) + 1 for row in self.rows)

    def rests(self, row: Row) -> bool:
        """Whether the row has nothing to write, at least for now."""
        return row.ended_at is not None and (self.pads or len(row.written) >= self.num_written)

    @property
    def is_done(self) -> bool:
        """Whether all rows have ended."""
        return all(row.ended_at is not None and self.rests(row) for row in self.rows)

    def columns(self, start: int) -> list[list[Token]]:
        """From token `start` on, as far as every row has them: each with one token a row."""
        ready = min(
            (len(row.written) for row in self.rows if not (self.pads and row.ended_at)),
            default=max(len(row.written) for row in self.rows),
        )
        return [
            [row.written[j] if j < len(row.written) else self._pad_token for row in self.rows]
            for j in range(start, ready)
        ]

    def sequences(self) -> Any:
        """Prompts and what was written, padded; shape `[batch_size, longest]`."""
        count = max(len(row.written) for row in self.rows)
        padding = [self._pad_token] * count
        written = [row.written + padding[len(row.written) :] for row in self.rows]
        made = torch.tensor(written, dtype=self.prompt.dtype, device=self.prompt.device)
        return torch.cat([self.prompt, made.view(len(self.rows), count)], dim=-1)

    def stacked(self, recorded: Sequence[list[Any]]) -> tuple[Any, ...]:
        """One tensor a token from one list a row; zeros where a row has ended."""
        count = max(map(len, recorded))
        some = next(values[0] for values in recorded if values)
        blank = torch.zeros_like(some)
        return tuple(
            torch.cat([values[j] if j < len(values) else blank for values in recorded])
            for j in range(count)
        )
