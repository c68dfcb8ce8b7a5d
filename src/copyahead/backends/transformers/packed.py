"""Ragged rows of several sequences in one pass: for models whose layers all attend.

The rows of all sequences stand in one row of tokens, each with its own position; `attention` keeps
them apart. Every slot has keys and values of its own, in arrays that grow as they fill, so that
taking tokens back is forgetting a length.

With a `width` every call of the model has exactly so many rows: further rows make further calls,
missing ones are padded. The same kernels then run whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from copyahead.backends.transformers import attention
from copyahead.backends.transformers.attention import Kernel, Rows, Window
from copyahead.contracts import Part

_FIRST_CAPACITY = 64


class PackedMemory:
    """Keys and values of all slots, and the passes over them."""

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int,
        windows: Sequence[int | None],
        kernel: Kernel,
        width: int,
    ) -> None:
        """`windows`: by layer; see `attention.Window`. `width` 0: as many rows as there are."""
        self._model = model
        self._windows = windows
        self._kernel = kernel
        self._width = width
        self._held: list[dict[int, tuple[Any, Any]]] = [{} for _ in range(num_slots)]
        """By slot and layer."""
        self._rows: Sequence[Rows] = ()

    def run(self, parts: Sequence[Part]) -> Any:
        """One pass; the logits of all wanted rows, in the order of `parts`, as a tensor."""
        import torch

        tokens = [token for part in parts for token in part.tokens]
        positions = [part.start + n for part in parts for n in range(len(part.tokens))]
        wanted = _wanted(parts)
        width = self._width or len(tokens)
        found = []
        for begin in range(0, len(tokens), width):
            end = min(begin + width, len(tokens))
            keep = [row - begin for row in wanted if begin <= row < end]
            self._rows = list(_cut(parts, begin, end))
            padding = [0] * (width - (end - begin))
            chunk = tokens[begin:end] + padding, positions[begin:end] + padding
            # A pass of a fixed width has all of its shapes fixed, that of the last layer too.
            rows = list(range(width)) if keep and self._width else keep or [0]
            logits = self._call(*chunk, rows)
            if keep:
                found.append(logits[keep] if self._width else logits)
        return torch.cat(found) if found else None

    def truncate(self, slot: int, length: int) -> None:
        """What lies beyond a slot's length is written over; an empty slot holds nothing."""
        if length == 0:
            self._held[slot].clear()

    def undo(self, slot: int, length: int) -> int:
        """After a pass that failed: how many of the first `length` tokens are still held."""
        return length

    def fork(self, source: int, target: int, length: int) -> None:
        """Give `target` a copy of the first `length` tokens of `source`."""
        self._held[target] = {
            layer: (keys[:, :length].clone(), values[:, :length].clone())
            for layer, (keys, values) in self._held[source].items()
        }

    def check(self, slot: int, length: int) -> None:
        """Raise AssertionError unless all layers of `slot` have room for `length`. For tests."""
        for layer, (keys, values) in self._held[slot].items():
            room = min(keys.shape[1], values.shape[1])
            assert room >= length, f"layer {layer} of slot {slot} holds {room} of {length} tokens"
        assert self._held[slot] or length == 0, f"slot {slot} has no keys for {length} tokens"

    # What a model of transformers asks of a cache.

    is_compileable = False
    is_sliding: Sequence[bool] = ()

    def update(self, keys: Any, values: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Keep what a layer has computed; `attention` looks it up."""
        for rows in self._rows:
            part = slice(rows.begin, rows.begin + rows.size)
            end = rows.start + rows.size
            held = self._held[rows.slot].get(layer_idx)
            kept = [
                _with_room(None if held is None else held[n], new[0], rows.start, end)
                for n, new in enumerate((keys, values))
            ]
            for one, new in zip(kept, (keys, values), strict=True):
                one[:, rows.start : end] = new[0, :, part]
            self._held[rows.slot][layer_idx] = kept[0], kept[1]
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """No one number: positions are given with every pass."""
        return 0

    def _call(self, tokens: list[int], positions: list[int], keep: list[int]) -> Any:
        import torch

        device = self._model.device
        run = Window(self._rows, self._kernel, self._windows, lambda n, s: self._held[s][n])
        before = attention.running.set(run)
        try:
            return self._model(
                input_ids=torch.tensor([tokens], device=device),
                position_ids=torch.tensor([positions], device=device),
                cache=self,
                use_cache=True,
                logits_to_keep=torch.tensor(keep, device=device),
            ).logits[0]
        finally:
            attention.running.reset(before)


def _wanted(parts: Sequence[Part]) -> list[int]:
    """Places in the pass of the rows whose logits are wanted."""
    wanted: list[int] = []
    end = 0
    for part in parts:
        end += len(part.tokens)
        wanted += range(end - part.num_logits, end)
    return wanted


def _cut(parts: Sequence[Part], begin: int, end: int) -> list[Rows]:
    """The rows of `parts` that stand at `begin` to `end` of the pass."""
    found, at = [], 0
    for part in parts:
        first, last = max(begin, at), min(end, at + len(part.tokens))
        if first < last:
            found.append(Rows(part.slot, first - begin, last - first, part.start + first - at))
        at += len(part.tokens)
    return found


def _with_room(held: Any, new: Any, start: int, end: int) -> Any:
    """`held`, or a larger copy of its first `start` tokens, with room for `end`."""
    if held is not None and held.shape[1] >= end:
        return held
    capacity = max(_FIRST_CAPACITY, end, 2 * start)
    grown = new.new_zeros((new.shape[0], capacity, new.shape[2]))
    if held is not None:
        grown[:, :start] = held[:, :start]
    return grown
