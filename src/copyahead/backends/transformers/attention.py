"""Attention over ragged rows of several sequences: each sequence by itself, in one pass.

transformers hands the attention of every layer to a function that is registered under a name. Ours
takes the rows of one sequence after the other against that sequence's own keys, so all other
layers see the rows of all sequences as one matrix, and nobody sees a neighbour or padding.

The window of a layer is applied here: keys are kept whole, and only those in it are looked at.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

Kernel = Literal["rows", "sdpa", "eager"]
"""`sdpa`: all rows of a sequence in one call of torch's kernel. `rows`: one call a row, so that a
row's attention is computed as in a pass of its own. `eager`: the model's own plain code."""

NAME = "copyahead_ragged"
"""Under which the function is registered with transformers."""
_UNCOMMON = ("softcap", "s_aux", "position_bias")
"""What torch's kernel does not know: with any of these, the model's own plain code runs."""


class Rows(NamedTuple):
    """Rows of one sequence in a pass."""

    slot: int
    begin: int
    """Place of the first of them in the pass."""
    size: int
    start: int
    """Position of the first of them in its sequence."""


class Window(NamedTuple):
    """What the attention function is told about the pass that runs."""

    rows: Sequence[Rows]
    kernel: Kernel
    windows: Sequence[int | None]
    """By layer: how many tokens it looks back at, itself included; None: at all."""
    held: Any
    """From a layer and a slot to its keys and values, shapes `[kv_heads, capacity, dim]`."""


running: ContextVar[Window] = ContextVar("running")
"""The pass that runs in this thread."""


def register() -> None:
    """Make the function known to transformers, which then makes no masks for it."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, ragged_attention)


def ragged_attention(
    module: Any,
    query: Any,
    _key: Any,
    value: Any,
    _mask: Any,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Any, None]:
    """Attention of the pass that runs. `query`: `[1, heads, rows, dim]`; the keys are held."""
    run = running.get()
    window = run.windows[module.layer_idx]
    options.pop("dropout", None)
    common = all(options.get(name) is None for name in _UNCOMMON)
    found = query.new_zeros((1, query.shape[2], query.shape[1], value.shape[-1]))
    for rows in run.rows:
        keys, values = run.held(module.layer_idx, rows.slot)
        for first, count in _steps(rows.size, run.kernel):
            begin, start = rows.begin + first, rows.start + first
            low = 0 if window is None else max(0, start - window + 1)
            seen = slice(low, start + count)
            some = query[:, :, begin : begin + count]
            mask = _unseen(some, start - low, count, window)
            held = keys[None, :, seen], values[None, :, seen]
            if common and run.kernel != "eager":
                part = _fast(some, *held, mask, scaling)
            else:
                part = _plain(module, some, *held, mask, scaling, options)
            found[:, begin : begin + count] = part
    return found, None


def _steps(count: int, kernel: Kernel) -> list[tuple[int, int]]:
    """How the rows of a sequence are taken: first and number of each call's."""
    return [(n, 1) for n in range(count)] if kernel == "rows" else [(0, count)]


def _unseen(query: Any, start: int, count: int, window: int | None) -> Any:
    """What rows from `start` on may not see, as a sum; None where one row sees all."""
    if count == 1:
        return None
    import torch

    keys = torch.arange(start + count, device=query.device)
    rows = keys[start:, None]
    seen = keys <= rows
    if window is not None:
        seen &= keys > rows - window
    least = torch.finfo(query.dtype).min
    return torch.zeros((), dtype=query.dtype, device=query.device).where(seen, least)


def _fast(query: Any, keys: Any, values: Any, mask: Any, scaling: float | None) -> Any:
    """torch's kernel. Heads that share keys stand below each other as rows: nothing is copied."""
    from torch.nn.functional import scaled_dot_product_attention

    _, heads, count, dim = query.shape
    kv_heads = keys.shape[1]
    shared = heads // kv_heads
    packed = query.reshape(1, kv_heads, shared * count, dim)
    mask = None if mask is None else mask.repeat(shared, 1)
    found = scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scaling)
    return found.reshape(1, heads, count, values.shape[-1]).transpose(1, 2)


def _plain(
    module: Any, query: Any, keys: Any, values: Any, mask: Any, scaling: Any, options: Any
) -> Any:
    """The plain code that stands beside the model's own layer."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    mask = None if mask is None else mask[None, None]
    found, _ = eager(module, query, keys, values, mask, scaling=scaling, dropout=0.0, **options)
    return found
