"""A GGUF model run by llama.cpp, through its low-level C interface.

One context holds all sequences in one unified KV cache, so that the ragged rows of many
requests share one pass over the weights. Which settings give bit-identical logits whatever the
number of rows is measured elsewhere (`backends.probe`); here they are only obeyed.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from copyahead.backends.llama_cpp.cells import OrderedCells
from copyahead.backends.llama_cpp.gguf import find_model
from copyahead.backends.llama_cpp.library import library, set_tiled, show_log, take_errors
from copyahead.backends.llama_cpp.load import (
    ROWS_PER_REQUEST,
    LlamaSettings,
    load_model,
    memory_bytes,
    read_capabilities,
)
from copyahead.backends.llama_cpp.sampler import Candidates, LlamaSampler
from copyahead.backends.llama_cpp.states import PinnedStates
from copyahead.backends.llama_cpp.threads import yielding_threads
from copyahead.backends.llama_cpp.tokenizer import LlamaTokenizer
from copyahead.contracts import Capabilities, Logits, Part
from copyahead.errors import BackendError
from copyahead.sampling import SamplingOptions
from copyahead.step_cost import StepCost
from copyahead.types import Exactness, Token

_UNMEASURED = StepCost.linear(0.3)


class LlamaBackend:
    """See `contracts.Backend`. Not thread-safe."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        settings: LlamaSettings,
        *,
        exactness: Exactness | None = None,
        step_cost: StepCost | None = None,
        yields: bool = False,
    ) -> None:
        """Load the model at `path` (the bundled one when None).

        `yields`: passes have fewer threads while other programs use the CPUs (see `threads`).

        Raises ModelError when the file is missing, not GGUF, damaged, or of a kind that does
        not generate text token by token.
        """
        self.path = find_model(path)
        self.settings = settings
        self.exactness = exactness
        self.step_cost = step_cost or _UNMEASURED
        self._library = library()
        set_tiled(settings.tiled)
        show_log(settings.verbose)
        model, context = load_model(self._library, self.path, settings)
        self._model, self._context = model, context
        self._close = weakref.finalize(self, _free, self._library, model, context)
        self._vocab = self._library.llama_model_get_vocab(model)
        self._width = int(self._library.llama_vocab_n_tokens(self._vocab))
        self._tokenizer = LlamaTokenizer(self._library, self._vocab)
        self._capabilities = read_capabilities(self._library, model, context, settings, self._width)
        self.memory_bytes = memory_bytes(self._library, model, context, settings)
        """Of the weights and the KV cache."""
        self._lengths = [0] * settings.parallel
        self._memory = self._open_memory()
        self._candidates: Candidates | None = None
        self._rows = _Rows(self._library, self._capabilities)
        self._yielding = yielding_threads(settings.threads, self.set_threads) if yields else None
        self._address = 0
        self._logits: Logits = np.zeros((0, self._width), dtype=np.float32)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; does not change."""
        return self._capabilities

    @property
    def name(self) -> str:
        """The model's file."""
        return str(self.path)

    @property
    def tokenizer(self) -> LlamaTokenizer:
        """The model's own tokenizer."""
        return self._tokenizer

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template (Jinja), if it has one."""
        text = self._library.llama_model_chat_template(self._model, None)
        return text.decode("utf-8", "replace") if text else None

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """One target pass; see `contracts.Backend`."""
        if self._yielding is not None:
            self._yielding.before_pass()
        ordered = sorted(parts, key=lambda part: part.slot)
        self._rows.fill(ordered, self._lengths)
        try:
            self._memory.reserve(ordered, self._lengths)
        except BackendError:
            self._lengths = [0] * self.settings.parallel
            raise
        status = self._library.llama_decode(self._context, self._rows.batch)
        if status != 0:
            for slot in self._memory.failed(ordered, status):
                self._lengths[slot] = 0
            reason = "; ".join(take_errors()) or "no reason given"
            raise BackendError(f"llama.cpp could not run a pass (status {status}): {reason}")
        self._memory.placed(ordered)
        for part in parts:
            self._lengths[part.slot] = part.start + len(part.tokens)
        found = dict(zip((part.slot for part in ordered), self._cut(ordered), strict=True))
        return [found[part.slot] for part in parts]

    def truncate(self, slot: int, length: int) -> None:
        """Make `slot` hold at most its first `length` tokens; see `contracts.Backend`.

        Where `max_rewind` is a number, only rows of the slot's last pass can be taken back,
        all but its first, and only once.
        """
        held = self._lengths[slot]
        if length >= held:
            return
        length = max(length, 0)
        self._memory.release(slot, held, length)
        self._lengths[slot] = length

    def fork(self, source: int, target: int, length: int) -> None:
        """Empty `target`, then give it the first `length` tokens of `source`.

        Where `can_fork` is false, all of `source` can still be forked, and nothing less.
        """
        if source == target:
            raise BackendError("a slot cannot be forked onto itself")
        if not self._capabilities.can_fork and length not in (0, self._lengths[source]):
            raise BackendError("a recurrent state can only be forked whole")
        if length > self._lengths[source]:
            raise BackendError(f"slot {source} holds fewer than {length} tokens")
        self.truncate(target, 0)
        self._memory.share(source, target, length)
        self._lengths[target] = length

    def set_threads(self, threads: int) -> None:
        """Have passes run on so many threads from now on."""
        self._library.llama_set_n_threads(self._context, threads, threads)

    def pack(self) -> None:
        """Have the next pass pack the KV cache, as it does when it must. For probe and tests."""
        self._memory.pack_next()

    def length(self, slot: int) -> int:
        """Tokens that `slot` holds."""
        return self._lengths[slot]

    def sampler(self, options: SamplingOptions, prompt: Sequence[Token]) -> LlamaSampler:
        """A sampler for a request that has read `prompt`."""
        size = self._tokenizer.vocab_size
        if self._candidates is None:
            self._candidates = Candidates(self._library, size)
        return LlamaSampler(
            self._library,
            self._vocab,
            self._candidates,
            options,
            prompt,
            vocab_size=size,
            context_size=self._capabilities.context_size,
        )

    def check(self) -> None:
        """See `contracts.Backend.check`."""
        for slot, length in enumerate(self._lengths):
            assert length <= self._capabilities.context_size, (
                f"slot {slot} holds {length} tokens, more than the context"
            )
        self._memory.check(self._lengths)

    def close(self) -> None:
        """Free the model. Idempotent. Nothing else of the backend may be used after."""
        self._close()

    def _open_memory(self) -> OrderedCells | PinnedStates:
        """Keeps in place what llama.cpp holds of each slot."""
        slots, rewind = self.settings.parallel, self._capabilities.max_rewind
        if rewind is not None:
            return PinnedStates(self._library, self._context, num_slots=slots, max_rewind=rewind)
        return OrderedCells(
            self._library,
            self._context,
            num_slots=slots,
            num_cells=self._capabilities.num_cells,
        )

    def _cut(self, parts: Sequence[Part]) -> list[Logits]:
        """Views of the library's logits, one a part, in the order of the rows."""
        num_outputs = sum(part.num_logits for part in parts)
        if num_outputs:
            pointer = self._library.llama_get_logits(self._context)
            address = ctypes.addressof(pointer.contents)
            if address != self._address or num_outputs > len(self._logits):
                self._logits = _view(address, num_outputs, self._width)
                self._address = address
        cut, row = [], 0
        for part in parts:
            cut.append(self._logits[row : row + part.num_logits])
            row += part.num_logits
        return cut


class _Rows:
    """The pooled batch: arrays that the library reads, filled a slice a part."""

    def __init__(self, library: Any, capabilities: Capabilities) -> None:
        limit = capabilities.max_rows
        self._limits = capabilities
        self._tokens = np.zeros(limit, dtype=np.int32)
        self._positions = np.zeros(limit, dtype=np.int32)
        self._slots = np.zeros(limit, dtype=np.int32)
        self._wanted = np.zeros(limit, dtype=np.int8)
        self._counts = np.ones(limit, dtype=np.int32)
        self._ramp = np.arange(capabilities.num_cells + limit, dtype=np.int32)
        # Each row belongs to one sequence, and its list of sequences is one entry of `_slots`.
        first = self._slots.ctypes.data
        self._lists = first + 4 * np.arange(limit, dtype=np.uint64)
        self.batch = library.llama_batch(
            0,
            _pointer(self._tokens, ctypes.c_int32),
            None,
            _pointer(self._positions, ctypes.c_int32),
            _pointer(self._counts, ctypes.c_int32),
            _pointer(self._lists, ctypes.POINTER(ctypes.c_int32)),
            _pointer(self._wanted, ctypes.c_int8),
        )

    def fill(self, parts: Sequence[Part], lengths: Sequence[int]) -> None:
        """Take over the rows of `parts`."""
        end = 0
        for part in parts:
            begin, count, start = end, len(part.tokens), part.start
            end += count
            self._check(part, lengths, end)
            self._tokens[begin:end] = part.tokens
            self._positions[begin:end] = self._ramp[start : start + count]
            self._slots[begin:end] = part.slot
            self._wanted[begin:end] = 0
            if part.num_logits:
                self._wanted[end - part.num_logits : end] = 1
        if end == 0:
            raise BackendError("a pass needs at least one row")
        self.batch.n_tokens = end

    def _check(self, part: Part, lengths: Sequence[int], end: int) -> None:
        count = len(part.tokens)
        if end > self._limits.max_rows:
            raise BackendError(f"a pass takes at most {self._limits.max_rows} rows")
        if not 0 <= part.num_logits <= min(count, ROWS_PER_REQUEST) or count == 0:
            raise BackendError(f"{part.num_logits} rows of logits asked of {count} rows")
        if lengths[part.slot] != part.start:
            raise BackendError(
                f"slot {part.slot} holds {lengths[part.slot]} tokens, and the pass starts at "
                f"{part.start}"
            )


def _pointer(array: Any, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _view(address: int, num_rows: int, width: int) -> Logits:
    buffer = (ctypes.c_float * width * num_rows).from_address(address)
    return np.ctypeslib.as_array(buffer)


def _free(library: Any, model: Any, context: Any) -> None:
    library.llama_free(context)
    library.llama_model_free(model)
