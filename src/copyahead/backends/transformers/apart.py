"""One call of the model for each sequence: for models that cannot have ragged rows in one pass.

Recurrent layers read a row of tokens as one sequence, and some models make their own attention.
There every slot has a cache of transformers' own, and a pass is a call a slot.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

from copyahead.backends.transformers import cache as caches
from copyahead.contracts import Part
from copyahead.types import Token


class ApartMemory:
    """A cache for each slot, and the passes over them."""

    def __init__(
        self, model: Any, *, num_slots: int, recurrent: bool, resumes: bool = True
    ) -> None:
        """`recurrent`: whether a layer's state cannot be taken back. `resumes`: whether a call of
        several rows goes on from that state; without, such rows are read one by one."""
        self._model = model
        self._recurrent = recurrent
        self._resumes = resumes
        self._caches: list[Any] = [None] * num_slots
        names = inspect.signature(type(model).forward).parameters
        self._takes_positions = "position_ids" in names
        self._takes_rows = "logits_to_keep" in names

    def run(self, parts: Sequence[Part]) -> Any:
        """A call a part; the logits of all wanted rows, in the order of `parts`, as a tensor."""
        found = [self._read(part) for part in parts]
        wanted = [logits for logits in found if logits is not None]
        return torch_cat(wanted) if wanted else None

    def truncate(self, slot: int, length: int) -> None:
        """Make `slot` hold its first `length` tokens."""
        if length == 0:
            self._caches[slot] = None
        else:
            caches.crop(self._caches[slot], length)

    def undo(self, slot: int, length: int) -> int:
        """After a pass that failed: how many of the first `length` tokens are still held.

        Which states the pass has changed before it failed cannot be told: those are given up.
        """
        held = 0 if self._recurrent else length
        if self._caches[slot] is not None:
            self.truncate(slot, held)
        return held

    def fork(self, source: int, target: int, length: int) -> None:
        """Give `target` a copy of the first `length` tokens of `source`."""
        self._caches[target] = copy.deepcopy(self._caches[source])
        if not self._recurrent:
            self.truncate(target, length)

    def check(self, slot: int, length: int) -> None:
        """Raise AssertionError unless the cache of `slot` holds `length` tokens. For tests."""
        held = 0
        if self._caches[slot] is not None:
            try:
                held = self._caches[slot].get_seq_length()
            except ValueError:
                held = length  # No layer counts its tokens.
        assert held == length, f"slot {slot} is said to hold {length} tokens and holds {held}"

    def _read(self, part: Part) -> Any:
        """The logits of the last rows of `part`; None where none are wanted."""
        if self._caches[part.slot] is None:
            self._caches[part.slot] = caches.full_cache(self._model.config)
        elif not self._recurrent:
            # What layers have recorded is of the last pass, and has been settled.
            caches.crop(self._caches[part.slot], part.start)
        count = len(part.tokens)
        if part.start == 0 or count == 1 or self._resumes:
            return self._call(part.slot, part.start, part.tokens, part.num_logits)
        rows = [
            self._call(part.slot, part.start + n, part.tokens[n : n + 1], 1) for n in range(count)
        ]
        return torch_cat(rows[-part.num_logits :]) if part.num_logits else None

    def _call(self, slot: int, start: int, tokens: Sequence[Token], num_logits: int) -> Any:
        import torch

        device, count = self._model.device, len(tokens)
        options: dict[str, Any] = {}
        if self._takes_positions:
            options["position_ids"] = torch.arange(start, start + count, device=device)[None]
        if self._takes_rows:
            options["logits_to_keep"] = max(1, num_logits)
        logits = self._model(
            input_ids=torch.tensor([list(tokens)], device=device),
            cache=self._caches[slot],
            use_cache=True,
            **options,
        ).logits[0]
        return logits[-num_logits:] if num_logits else None


def torch_cat(rows: Sequence[Any]) -> Any:
    """`rows` below each other."""
    import torch

    return torch.cat(list(rows))
