"""A model of transformers behind `contracts.Backend`.

Which settings give bit-identical logits whatever the number of rows is measured elsewhere
(`backends.probe`); here they are only obeyed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from copyahead.backends.transformers.apart import ApartMemory
from copyahead.backends.transformers.load import LoadedModel, TransformersSettings
from copyahead.backends.transformers.packed import PackedMemory
from copyahead.backends.transformers.sampler import TransformersSampler
from copyahead.backends.transformers.tokenizer import FolderTokenizer
from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Capabilities, Logits, Part
from copyahead.errors import BackendError, ModelError
from copyahead.sampling import SamplingOptions
from copyahead.step_cost import StepCost
from copyahead.types import Exactness, Token

logger = logging.getLogger(__name__)

_UNMEASURED = StepCost.linear(0.3)
_ROWS_PER_REQUEST = 1 + MAX_DRAFT_TOKENS
_MIN_PASS_ROWS = 512


class TransformersBackend:
    """See `contracts.Backend`. Not thread-safe."""

    def __init__(
        self,
        loaded: LoadedModel,
        settings: TransformersSettings,
        *,
        exactness: Exactness | None = None,
        step_cost: StepCost | None = None,
    ) -> None:
        """A backend over a model in memory. `settings` beside device and dtype may be any.

        The model computes its experts as the newest backend over it says.
        """
        self.path: Path = loaded.folder
        self.settings = settings
        self.exactness = exactness
        self.step_cost = step_cost or _UNMEASURED
        self._loaded: LoadedModel | None = loaded
        self._tokenizer = loaded.tokenizer
        self._capabilities = _capabilities(loaded, settings)
        self._lengths = [0] * settings.parallel
        self._rewindable = [0] * settings.parallel
        self._memory: Any = _memory(loaded, settings)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; does not change."""
        return self._capabilities

    @property
    def name(self) -> str:
        """The model's folder."""
        return str(self.path)

    @property
    def tokenizer(self) -> FolderTokenizer:
        """The model's own tokenizer."""
        return self._tokenizer

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template (Jinja), if it has one."""
        return self._tokenizer.chat_template

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds."""
        return self._lengths[slot]

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """One target pass; see `contracts.Backend`."""
        import torch

        self._check(parts)
        try:
            with torch.inference_mode():
                found = self._memory.run(parts)
                logits = None if found is None else found.float().cpu().numpy()
        except Exception as error:
            for part in parts:
                self._lengths[part.slot] = self._memory.undo(part.slot, part.start)
                self._rewindable[part.slot] = 0
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise BackendError(f"transformers could not run a pass: {reason}") from error
        for part in parts:
            self._lengths[part.slot] = part.start + len(part.tokens)
            self._rewindable[part.slot] = len(part.tokens) - 1
        return _split(parts, logits, self._capabilities.logits_width)

    def truncate(self, slot: int, length: int) -> None:
        """Make `slot` hold at most its first `length` tokens; see `contracts.Backend`.

        Where `max_rewind` is a number, only rows of the slot's last pass can be taken back, all
        but its first, and only once.
        """
        length, held = max(length, 0), self._lengths[slot]
        if length >= held:
            return
        limit = self._capabilities.max_rewind
        if limit is not None and length > 0:
            limit = min(limit, self._rewindable[slot])
            if held - length > limit:
                raise BackendError(
                    f"slot {slot} cannot go back {held - length} tokens: its state can be taken "
                    f"back {limit}"
                )
        try:
            self._memory.truncate(slot, length)
        except ModelError as error:
            raise BackendError(f"slot {slot}: {error}") from error
        self._lengths[slot] = length
        self._rewindable[slot] = 0

    def fork(self, source: int, target: int, length: int) -> None:
        """Empty `target`, then give it the first `length` tokens of `source`.

        Where `can_fork` is false, all of `source` can still be forked, and nothing less.
        """
        if source == target:
            raise BackendError("a slot cannot be forked onto itself")
        if length > self._lengths[source]:
            raise BackendError(f"slot {source} holds fewer than {length} tokens")
        if not self._capabilities.can_fork and length not in (0, self._lengths[source]):
            raise BackendError("a state that cannot be taken back can only be forked whole")
        import torch

        self.truncate(target, 0)
        if length:
            with torch.inference_mode():
                self._memory.fork(source, target, length)
        self._lengths[target] = length

    def sampler(self, options: SamplingOptions, prompt: Sequence[Token]) -> TransformersSampler:
        """A sampler for a request that has read `prompt`."""
        return TransformersSampler(options, prompt, vocab_size=self._tokenizer.vocab_size)

    def set_threads(self, threads: int) -> None:
        """Have passes run on so many threads from now on."""
        import torch

        torch.set_num_threads(threads)

    def pack(self) -> None:
        """Nothing: every slot has its own keys, and all are in their places."""

    def check(self) -> None:
        """See `contracts.Backend.check`."""
        for slot, length in enumerate(self._lengths):
            assert length <= self._capabilities.context_size, (
                f"slot {slot} holds {length} tokens, more than the context"
            )
            self._memory.check(slot, length)

    def close(self) -> None:
        """Let go of the model. Idempotent. Nothing else of the backend may be used after."""
        self._loaded = None
        self._memory = None

    def _check(self, parts: Sequence[Part]) -> None:
        rows = sum(len(part.tokens) for part in parts)
        if not 0 < rows <= self._capabilities.max_rows:
            raise BackendError(
                f"a pass takes 1 to {self._capabilities.max_rows} rows, not {rows} of them"
            )
        for part in parts:
            count, held = len(part.tokens), self._lengths[part.slot]
            if count == 0 or not 0 <= part.num_logits <= count:
                raise BackendError(f"{part.num_logits} rows of logits asked of {count} rows")
            if held != part.start:
                raise BackendError(
                    f"slot {part.slot} holds {held} tokens, and the pass starts at {part.start}"
                )


def _memory(loaded: LoadedModel, settings: TransformersSettings) -> PackedMemory | ApartMemory:
    abilities = loaded.abilities
    if abilities.experts:
        loaded.model.set_experts_implementation(settings.experts or abilities.experts)
    if abilities.windows is None:
        return ApartMemory(
            loaded.model,
            num_slots=settings.parallel,
            recurrent=bool(abilities.recurrent),
            resumes=abilities.resumes,
        )
    return PackedMemory(
        loaded.model,
        num_slots=settings.parallel,
        windows=abilities.windows,
        kernel=settings.kernel,
        width=settings.width,
    )


def _capabilities(loaded: LoadedModel, settings: TransformersSettings) -> Capabilities:
    abilities, context = loaded.abilities, settings.ctx
    if 0 < loaded.context_size < context:
        context = loaded.context_size
        logger.warning(
            "the model was trained on %d tokens: --ctx %d is cut to that", context, settings.ctx
        )
    rewind, note = None, ""
    if abilities.recurrent:
        rewind = 0
        note = (
            f"drafting is off: a layer of type {abilities.recurrent} keeps a recurrent state, and "
            "transformers cannot take that back"
        )
    elif abilities.convolves:
        rewind = MAX_DRAFT_TOKENS
    return Capabilities(
        logits_width=loaded.logits_width,
        context_size=context,
        num_slots=settings.parallel,
        num_cells=settings.parallel * (context + _ROWS_PER_REQUEST),
        max_rows=max(_MIN_PASS_ROWS, settings.parallel),
        max_rewind=rewind,
        can_fork=rewind is None,
        note=note,
    )


def _split(parts: Sequence[Part], logits: Any, width: int) -> list[Logits]:
    """Views of `logits`, one a part, in their order."""
    if logits is None:
        logits = np.empty((0, width), dtype=np.float32)
    found, row = [], 0
    for part in parts:
        found.append(logits[row : row + part.num_logits])
        row += part.num_logits
    return found
