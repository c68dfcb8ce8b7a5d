"""The model's passes over rows that have advanced to different lengths.

`CachedTarget` keeps one dense cache. A pass adds as many columns to it as the longest part has
tokens. What a row did not need of them becomes a hole: a column that the attention mask leaves
out for that row, while position ids count real tokens only. Columns that no row needs are cut off
at once, and when holes are many the rows are packed, to the right, as in left padding.

Where a layer looks at columns rather than positions (a sliding window, or a model without position
ids) a hole would be counted, so rows are packed after every pass that leaves one.

`WholeTarget` reads everything again at every pass, for `use_cache=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from copyahead.plugins.transformers.cache import HeldCache, has_window
from copyahead.plugins.transformers.writing import Row, Writing
from copyahead.types import Token

PACK_AT = 1.25
"""Rows are packed when the cache is wider than its fullest row by this factor."""

Part = tuple[Token, ...]
"""What a row reads in a pass: its pending token and its draft; nothing while it rests."""

_TOKEN_TYPES = ("token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")
_FIRST_PASS_ONLY = (
    "attention_mask",
    "cache",
    "inputs_embeds",
    "logits_to_keep",
    "position_ids",
    "use_cache",
    *_TOKEN_TYPES,
)


class Target(Protocol):
    """A model that reads the rows of a call."""

    def prefill(self) -> Any:
        """Read the prompts. Logits of what follows, shape `[batch_size, 1, vocab_size]`."""
        ...

    def forward(self, rows: Sequence[Row], parts: Sequence[Part]) -> Any:
        """One pass. Logits of shape `[len(rows), longest part, vocab_size]`: those of a row's
        part come first, and what is behind them means nothing.
        """
        ...

    def settle(self, counts: Sequence[int]) -> None:
        """Keep the first `counts[i]` tokens of what row i has just read."""
        ...

    def select(self, places: Sequence[int]) -> None:
        """Go on with these rows only, of those that there are."""
        ...

    def finish(self, num_written: int) -> None:
        """Lay the cache out as plain decoding does. The longest row has written `num_written`."""
        ...

    def close(self) -> None:
        """Give the cache its own layers back. Idempotent."""
        ...


class CachedTarget:
    """A model with a cache that can be taken back. Implements `Target`."""

    def __init__(self, model: Any, writing: Writing, config: Any, model_kwargs: Any) -> None:
        """`config` is the generation config; `model_kwargs` what `generate` has prepared."""
        self._model = model
        self._config = config
        self._kwargs = model_kwargs
        self._prompt = writing.prompt
        self._rest = {k: v for k, v in model_kwargs.items() if k not in _FIRST_PASS_ONLY}
        self._token_types = [name for name in _TOKEN_TYPES if model_kwargs.get(name) is not None]
        cache = model_kwargs["cache"]
        self._counts_columns = has_window(cache) or model_kwargs.get("position_ids") is None
        self._held = HeldCache(cache)
        # What a row's columns hold: True for a token. None while every column is one.
        self._real: Any = None
        self._prompt_real: Any = None
        self._prompt_width = 0
        self._next: Any = None
        self._num_read = 0

    @property
    def can_select(self) -> bool:
        """Whether rows can be left out: nothing else that a pass gets belongs to rows."""
        return not any(isinstance(value, torch.Tensor) for value in self._rest.values())

    def prefill(self) -> Any:
        """See `Target.prefill`."""
        outputs = self._model._prefill(self._prompt, self._config, self._kwargs)
        num_rows = self._prompt.shape[0]
        self._prompt_width = self._held.length
        mask = self._kwargs.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            self._real = self._prompt_real = mask.bool()
        positions = self._kwargs.get("position_ids")
        if positions is not None:
            last = positions[..., -1] + 1
            self._next = last.expand(*last.shape[:-1], num_rows)
        return outputs.logits[:, -1:]

    def forward(self, rows: Sequence[Row], parts: Sequence[Part]) -> Any:
        """See `Target.forward`."""
        width = max(map(len, parts))
        ids = self._prompt.new_tensor([part + (0,) * (width - len(part)) for part in parts])
        kwargs = dict(self._rest)
        if "logits_to_keep" in self._kwargs:
            kwargs["logits_to_keep"] = width
        for name in self._token_types:
            last = self._kwargs[name][..., -1:] if name == "token_type_ids" else 0
            kwargs[name] = torch.zeros_like(ids) + last
        if self._next is not None:
            kwargs["position_ids"] = self._next[..., None] + _arange(width, self._next)
        self._num_read = width
        inputs = self._model.prepare_inputs_for_generation(
            ids,
            cache=self._held.cache,
            attention_mask=self._mask(len(parts), width),
            use_cache=True,
            **kwargs,
        )
        return self._model(**inputs, return_dict=True).logits[:, -width:]

    def settle(self, counts: Sequence[int]) -> None:
        """See `Target.settle`."""
        most = max(counts)
        before = self._held.length - self._num_read
        self._held.keep(before + most)
        if self._next is not None:
            kept: int | Any = most if len(counts) == 1 else self._next.new_tensor(counts)
            self._next = self._next + kept
        if self._real is None and min(counts) == most:
            return
        self._real = self._with_columns(counts, most, before)
        self._pack_if_needed(has_new_holes=min(counts) < most)

    def select(self, places: Sequence[int]) -> None:
        """See `Target.select`."""
        self._held.select(places)
        chosen = torch.tensor(places, device=self._prompt.device)
        if self._real is not None:
            self._real = self._real[chosen]
            self._pack_if_needed(has_new_holes=False)
        if self._next is not None:
            self._next = self._next[..., chosen]

    def finish(self, num_written: int) -> None:
        """See `Target.finish`."""
        if self._real is None or self._real is self._prompt_real:
            return
        num_rows = self._real.shape[0]
        first = self._prompt_real
        if first is None:
            first = self._real.new_ones(num_rows, self._prompt_width)
        written = self._real.sum(-1) - first.sum(-1)
        columns = self._real.new_zeros(num_rows, self._prompt_width + num_written, dtype=torch.long)
        for row in range(num_rows):
            filled = torch.cat([first[row], first.new_ones(int(written[row]))]).nonzero()[:, 0]
            columns[row, filled] = self._real[row].nonzero()[:, 0]
        # The last token of the longest row was not read.
        self._held.gather(columns[:, :-1])

    def close(self) -> None:
        """See `Target.close`."""
        self._held.give_back()

    def _mask(self, num_rows: int, width: int) -> Any:
        """The attention mask of a pass; None where there are no holes.

        What is behind a part is right of all its tokens, so they do not see it. It sees itself:
        a column that saw nothing would have no number for a state.
        """
        if self._real is None:
            return None
        return self._with_columns([width] * num_rows, width, self._held.length).long()

    def _with_columns(self, lengths: Sequence[int], width: int, before: int) -> Any:
        """What columns hold when `width` are added to `before`, of which row i has `lengths[i]`."""
        ends = torch.tensor(lengths, device=self._prompt.device)
        added = _arange(width, ends)[None] < ends[:, None]
        real = self._real
        if real is None:
            real = added.new_ones(len(lengths), before)
        return torch.cat([real, added], dim=-1)

    def _pack_if_needed(self, *, has_new_holes: bool) -> None:
        fullest = self._real.sum(-1)
        width, most = self._real.shape[1], int(fullest.max())
        if width < PACK_AT * most and not (has_new_holes and self._counts_columns):
            return
        # The real columns of a row, in order, behind as many others as it takes.
        order = self._real.int().argsort(dim=-1, stable=True)
        self._held.gather(order[:, width - most :])
        self._real = _arange(most, fullest)[None] >= most - fullest[:, None]
        if bool(self._real.all()):
            self._real = None


class WholeTarget:
    """A model without a cache. Implements `Target`."""

    can_select = True

    def __init__(self, model: Any, writing: Writing, config: Any, model_kwargs: Any) -> None:
        self._model = model
        self._writing = writing
        self._config = config
        self._kwargs = model_kwargs
        self._rest = {k: v for k, v in model_kwargs.items() if k not in _FIRST_PASS_ONLY}

    def prefill(self) -> Any:
        """See `Target.prefill`."""
        outputs = self._model._prefill(self._writing.prompt, self._config, self._kwargs)
        return outputs.logits[:, -1:]

    def forward(self, rows: Sequence[Row], parts: Sequence[Part]) -> Any:
        """See `Target.forward`. Texts end in one column, and the drafts stand behind it."""
        prompt, width = self._writing.prompt, max(map(len, parts))
        texts = [(*row.written, *part[1:]) for row, part in zip(rows, parts, strict=True)]
        before = max(len(row.written) for row in rows) - 1
        num_prompt_tokens = prompt.shape[1]
        total = num_prompt_tokens + before + width
        ids = prompt.new_zeros(len(rows), total)
        mask = torch.zeros_like(ids)
        positions = torch.zeros_like(ids)
        for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
            start = before + 1 - len(row.written)
            middle, end = start + num_prompt_tokens, start + num_prompt_tokens + len(text)
            ids[place, start:middle] = prompt[row.index]
            ids[place, middle:end] = prompt.new_tensor(text)
            mask[place, start:] = 1
            given = self._kwargs.get("attention_mask")
            if given is not None:
                mask[place, start:middle] = given[row.index]
            known = self._kwargs.get("position_ids")
            if known is not None:
                known = known[row.index if known.shape[0] > 1 else 0]
                positions[place, start:middle] = known
                positions[place, middle:end] = known[-1] + 1 + _arange(len(text), known)
        kwargs = dict(self._rest)
        if self._kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = positions
        if "logits_to_keep" in self._kwargs:
            kwargs["logits_to_keep"] = width
        inputs = self._model.prepare_inputs_for_generation(
            ids, attention_mask=None if bool(mask.all()) else mask, use_cache=False, **kwargs
        )
        return self._model(**inputs, return_dict=True).logits[:, -width:]

    def settle(self, counts: Sequence[int]) -> None:
        """See `Target.settle`: nothing was kept."""

    def select(self, places: Sequence[int]) -> None:
        """See `Target.select`: nothing is held."""

    def finish(self, num_written: int) -> None:
        """See `Target.finish`: nothing is held."""

    def close(self) -> None:
        """See `Target.close`."""


def _arange(count: int, like: Any) -> Any:
    """0 to `count` - 1, in the dtype and on the device of `like`."""
    return torch.arange(count, dtype=like.dtype, device=like.device)
