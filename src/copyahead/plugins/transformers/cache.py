"""Taking back what a pass has written into a cache of transformers, row by row.

For the time of a call the cache gets layers of its own kind here: all tokens stay, windows
included, since the model's mask applies the window anyway; new tokens are written into room that
is there, so that a pass copies nothing; and taking tokens back is to count fewer. At the end the
cache gets its own layers back, with what they would hold after plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

LEAST_ROOM = 256
"""A layer that grows gets room for as many tokens more, or for a quarter of what it holds."""


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer with room behind its tokens. `keys` and `values` show the tokens."""

    def __init__(self, keys: Any = None, values: Any = None) -> None:
        super().__init__()
        self._room: tuple[Any, Any] | None = None
        if keys is not None:
            self.update(keys, values)

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        """Add states of shape `[batch_size, num_heads, num_tokens, head_dim]`; returns all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < end:
            self._grow(key_states, value_states, start, end)
        for room, states in zip(self._room or (), (key_states, value_states), strict=True):
            room[:, :, start:end] = states
        self._show(end)
        return self.keys, self.values

    def keep(self, length: int) -> None:
        """Take back all but the first `length` tokens."""
        if self._room is not None:
            self._show(length)

    def gather(self, columns: Any) -> None:
        """Make row i hold its own tokens `columns[i]`; the shape is `[batch_size, new_length]`."""
        if self._room is not None:
            index = columns.to(self.keys.device)[:, None, :, None]
            moved = [
                states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))
                for states in (self.keys, self.values)
            ]
            for room, states in zip(self._room, moved, strict=True):
                room[:, :, : states.shape[2]] = states
            self._show(columns.shape[1])

    def select(self, places: Any) -> None:
        """Keep these rows of the batch only."""
        if self._room is not None:
            length = self.get_seq_length()
            keys, values = self._room
            places = places.to(keys.device)
            self._room = keys[places], values[places]
            self._show(length)

    def _show(self, length: int) -> None:
        assert self._room is not None
        self.keys, self.values = (room[:, :, :length] for room in self._room)

    def _grow(self, key_states: Any, value_states: Any, start: int, end: int) -> None:
        held = (self.keys, self.values) if start else (None, None)
        capacity = end + max(LEAST_ROOM, end // 4)
        rooms = []
        for old, states in zip(held, (key_states, value_states), strict=True):
            room = states.new_empty(*states.shape[:2], capacity, states.shape[3])
            if old is not None:
                room[:, :, :start] = old
            rooms.append(room)
        self._room = (rooms[0], rooms[1])


def why_not(cache: Any) -> str:
    """Why rows of `cache` cannot be taken back, naming what it is; empty where they can."""
    if type(cache) not in (Cache, DynamicCache):
        return f"a {type(cache).__name__} cannot be taken back"
    if cache.offloading:
        return "an offloaded cache cannot be taken back"
    for layer in cache.layers:
        kind = type(layer)
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            return f"the recurrent state of a {kind.__name__} cannot be taken back"
        if kind is DynamicSlidingWindowLayer:
            if layer.get_seq_length() != _num_held(layer):
                return (
                    f"the sliding window of {layer.sliding_window} tokens has dropped what came "
                    "before it"
                )
        elif kind not in (DynamicLayer, DummyLayer, RoomyLayer):
            return f"a {kind.__name__} cannot be taken back"
    return ""


def has_window(cache: Any) -> bool:
    """Whether a layer sees a window only."""
    return any(type(layer) is DynamicSlidingWindowLayer for layer in cache.layers)


class HeldCache:
    """A cache with layers that can be taken back, until `give_back`."""

    def __init__(self, cache: Any) -> None:
        """`why_not(cache)` is empty."""
        self.cache = cache
        self._own = list(cache.layers)
        self._replicates = cache.layer_class_to_replicate
        if self._replicates is not None:
            cache.layer_class_to_replicate = RoomyLayer
        for place, layer in enumerate(self._own):
            if type(layer) is not DummyLayer:
                held = _num_held(layer)
                made = RoomyLayer(layer.keys, layer.values) if held else RoomyLayer()
                cache.layers[place] = made

    @property
    def length(self) -> int:
        """Tokens that every row holds, padding included."""
        return max((layer.get_seq_length() for layer in self._layers()), default=0)

    def keep(self, length: int) -> None:
        """Take back all but the first `length` tokens of every row."""
        for layer in self._layers():
            layer.keep(length)

    def gather(self, columns: Any) -> None:
        """Make row i hold its own tokens `columns[i]`."""
        for layer in self._layers():
            layer.gather(columns)

    def select(self, places: Sequence[int]) -> None:
        """Keep these rows of the batch only."""
        chosen = torch.tensor(places)
        for layer in self._layers():
            layer.select(chosen)

    def give_back(self) -> None:
        """Give the cache its own layers again, holding what these hold. Idempotent."""
        cache = self.cache
        cache.layer_class_to_replicate = self._replicates
        for place, layer in enumerate(cache.layers):
            if type(layer) is not RoomyLayer:
                continue
            own = self._own[place] if place < len(self._own) else DynamicLayer()
            length = layer.get_seq_length()
            if length:
                own.lazy_initialization(layer.keys, layer.values)
                start = 0
                if type(own) is DynamicSlidingWindowLayer:
                    own.cumulative_length = length
                    start = max(0, length - own.sliding_window + 1)
                own.keys = layer.keys[:, :, start:].clone()
                own.values = layer.values[:, :, start:].clone()
            cache.layers[place] = own

    def _layers(self) -> list[RoomyLayer]:
        return [layer for layer in self.cache.layers if type(layer) is RoomyLayer]


def _num_held(layer: Any) -> int:
    """Tokens whose states the layer has."""
    if not layer.is_initialized or layer.keys is None or layer.keys.numel() == 0:
        return 0
    return int(layer.keys.shape[-2])
