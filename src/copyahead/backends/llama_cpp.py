"""A GGUF model run by llama.cpp, through its low-level C interface.

One context holds all sequences in one unified KV cache, so that the ragged rows of many
requests share one pass over the weights. Which settings give bit-identical logits whatever the
number of rows is measured elsewhere (`copyahead.exactness`); here they are only obeyed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from copyahead.backends.base import Capabilities, Logits, Part
from copyahead.backends.llama_library import library, set_tiled, show_log, take_errors
from copyahead.backends.llama_sampler import Candidates, LlamaSampler
from copyahead.backends.llama_tokenizer import LlamaTokenizer
from copyahead.config import MAX_DRAFT_TOKENS, ModelOptions
from copyahead.errors import BackendError, ModelError
from copyahead.models import find_model
from copyahead.sampling import SamplingOptions
from copyahead.step_cost import StepCost
from copyahead.types import Exactness, Token

log = logging.getLogger(__name__)

ROWS_PER_REQUEST = 1 + MAX_DRAFT_TOKENS
"""Rows with logits that one request may have in a pass."""

_MIN_PASS_ROWS = 512
_KV_TYPES = {"f16": 1, "q8_0": 8, "bf16": 30}
"""Numbers of `enum ggml_type`; the binding has no name for bf16."""
_UNMEASURED = StepCost.linear(0.3)


class LlamaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is loaded: what the numbers of a pass may depend on, and the room for it."""

    kv_type: Literal["f16", "bf16", "q8_0"] = "q8_0"
    """Type of the KV cache."""
    repack: bool = True
    """Whether weights are repacked for the processor (`use_extra_bufts`)."""
    tiled: bool = True
    """Whether the tiled kernels run; one choice a process (`GGML_CPU_TILED_MM`)."""
    threads: int = 1
    gpu_layers: int = 0
    ctx: int = 4096
    parallel: int = 1
    verbose: bool = False

    @classmethod
    def of(cls, options: ModelOptions) -> LlamaSettings:
        """The settings that `options` ask for, with q8_0 where they leave the KV type open."""
        return cls(
            kv_type="q8_0" if options.kv_type == "auto" else options.kv_type,
            threads=options.num_threads,
            gpu_layers=options.gpu_layers,
            ctx=options.ctx,
            parallel=options.parallel,
            verbose=options.verbose,
        )

    def numerics(self) -> str:
        """What the logits may depend on, in words, for people."""
        repack = "repacked" if self.repack else "no repacking"
        tiled = "tiled" if self.tiled else "no tiled kernels"
        return f"{self.kv_type} KV, flash attention, {repack}, {tiled}, {self.threads} threads"


class LlamaBackend:
    """See `backends.base.Backend`. Not thread-safe."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        settings: LlamaSettings,
        *,
        exactness: Exactness | None = None,
        step_cost: StepCost | None = None,
    ) -> None:
        """Load the model at `path` (the bundled one when None).

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
        model, context = _load(self._library, self.path, settings)
        self._model, self._context = model, context
        self._close = weakref.finalize(self, _free, self._library, model, context)
        self._memory = self._library.llama_get_memory(context)
        self._vocab = self._library.llama_model_get_vocab(model)
        self._width = int(self._library.llama_vocab_n_tokens(self._vocab))
        self._tokenizer = LlamaTokenizer(self._library, self._vocab)
        self._capabilities = _capabilities(self._library, model, context, settings, self._width)
        self._lengths = [0] * settings.parallel
        self._candidates: Candidates | None = None
        self._rows = _Rows(self._library, self._capabilities)
        self._address = 0
        self._logits: Logits = np.zeros((0, self._width), dtype=np.float32)

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; does not change."""
        return self._capabilities

    @property
    def tokenizer(self) -> LlamaTokenizer:
        """The model's own tokenizer."""
        return self._tokenizer

    @property
    def chat_template(self) -> str | None:
        """The model's own chat template (Jinja), if it has one."""
        text = self._library.llama_model_chat_template(self._model, None)
        return text.decode("utf-8", "replace") if text else None

    def metadata(self, key: str) -> str | None:
        """The value of a field of the GGUF file as text; None when it has no such field."""
        buffer = ctypes.create_string_buffer(1 << 16)
        length = self._library.llama_model_meta_val_str(
            self._model, key.encode(), buffer, len(buffer)
        )
        return None if length < 0 else buffer.value.decode("utf-8", "replace")

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """One target pass; see `backends.base.Backend`."""
        num_outputs = self._rows.fill(parts, self._lengths)
        status = self._library.llama_decode(self._context, self._rows.batch)
        if status != 0:
            self._undo(parts)
            reason = "; ".join(take_errors()) or "no reason given"
            raise BackendError(f"llama.cpp could not run a pass (status {status}): {reason}")
        for part in parts:
            self._lengths[part.slot] = part.start + len(part.tokens)
        return self._cut(parts, num_outputs)

    def truncate(self, slot: int, length: int) -> None:
        """Make `slot` hold at most its first `length` tokens; see `backends.base.Backend`."""
        held = self._lengths[slot]
        if length >= held:
            return
        if length <= 0:
            self._library.llama_memory_seq_rm(self._memory, slot, -1, -1)
            self._lengths[slot] = 0
            return
        limit = self._capabilities.max_rewind
        if limit is not None and held - length > limit:
            raise BackendError(
                f"slot {slot} cannot go back {held - length} tokens: the model's state "
                f"can be taken back {limit}"
            )
        if not self._library.llama_memory_seq_rm(self._memory, slot, length, -1):
            raise BackendError(f"llama.cpp could not cut slot {slot} to {length} tokens")
        self._lengths[slot] = length

    def fork(self, source: int, target: int, length: int) -> None:
        """Empty `target`, then give it the first `length` tokens of `source`."""
        if source == target:
            raise BackendError("a slot cannot be forked onto itself")
        if not self._capabilities.can_fork:
            raise BackendError("this model's state cannot be shared between sequences")
        if length > self._lengths[source]:
            raise BackendError(f"slot {source} holds fewer than {length} tokens")
        self.truncate(target, 0)
        if length > 0:
            self._library.llama_memory_seq_cp(self._memory, source, target, 0, length)
        self._lengths[target] = length

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

    def close(self) -> None:
        """Free the model. Idempotent. Nothing else of the backend may be used after."""
        self._close()

    def _cut(self, parts: Sequence[Part], num_outputs: int) -> list[Logits]:
        """Views of the library's logits, one a part."""
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

    def _undo(self, parts: Sequence[Part]) -> None:
        """Take back what a failed pass may have left in the slots."""
        for part in parts:
            remove = self._library.llama_memory_seq_rm
            if not remove(self._memory, part.slot, part.start or -1, -1):
                remove(self._memory, part.slot, -1, -1)
                self._lengths[part.slot] = 0


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

    def fill(self, parts: Sequence[Part], lengths: Sequence[int]) -> int:
        """Take over the rows of `parts`; returns how many have logits."""
        end = num_outputs = 0
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
                num_outputs += part.num_logits
        if end == 0:
            raise BackendError("a pass needs at least one row")
        self.batch.n_tokens = end
        return num_outputs

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


def _load(library: Any, path: Path, settings: LlamaSettings) -> tuple[Any, Any]:
    """The model and its context. Raises ModelError with llama.cpp's own reason."""
    take_errors()
    model = library.llama_model_load_from_file(os.fsencode(path), _model_params(library, settings))
    if not model:
        raise ModelError(f"llama.cpp cannot load {path}: {_reason()}")
    try:
        _refuse_other_kinds(library, path, model)
        context = library.llama_init_from_model(model, _context_params(library, model, settings))
        if not context:
            raise ModelError(
                f"llama.cpp cannot run {path} with {settings.numerics()} and a context of "
                f"{settings.ctx}: {_reason()}"
            )
        if not library.llama_get_memory(context):
            library.llama_free(context)
            raise ModelError(f"model {path} is an embedding model: name one that generates text")
    except BaseException:
        library.llama_model_free(model)
        raise
    return model, context


def _reason() -> str:
    lines = [line.split(": ", 1)[-1] for line in take_errors()]
    return lines[0] if lines else "it gives no reason; try --verbose"


def _refuse_other_kinds(library: Any, path: Path, model: Any) -> None:
    if library.llama_model_has_encoder(model) or not library.llama_model_has_decoder(model):
        kind = "an encoder model"
    elif library.llama_model_is_diffusion(model):
        kind = "a diffusion model"
    elif library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)) == 0:
        kind = "a model without a vocabulary"
    else:
        return
    raise ModelError(f"model {path} is {kind}: name one that generates text token by token")


def _model_params(library: Any, settings: LlamaSettings) -> Any:
    params = library.llama_model_default_params()
    params.n_gpu_layers = settings.gpu_layers
    params.use_extra_bufts = settings.repack
    return params


def _context_params(library: Any, model: Any, settings: LlamaSettings) -> Any:
    params = library.llama_context_default_params()
    max_rows = _max_rows(settings)
    params.n_ctx = settings.parallel * (_context_size(library, model, settings) + ROWS_PER_REQUEST)
    params.n_batch = params.n_ubatch = max_rows
    params.n_outputs_max = min(max_rows, settings.parallel * ROWS_PER_REQUEST)
    params.n_seq_max = settings.parallel
    params.n_threads = params.n_threads_batch = settings.threads
    params.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.type_k = params.type_v = _KV_TYPES[settings.kv_type]
    params.kv_unified = True
    # A sliding window kept whole can be rolled back to any length.
    params.swa_full = True
    params.no_perf = True
    if _is_recurrent(library, model):
        params.n_rs_seq = MAX_DRAFT_TOKENS
    return params


def _max_rows(settings: LlamaSettings) -> int:
    return max(_MIN_PASS_ROWS, settings.parallel)


def _context_size(library: Any, model: Any, settings: LlamaSettings) -> int:
    trained = int(library.llama_model_n_ctx_train(model))
    if 0 < trained < settings.ctx:
        log.warning(
            "the model was trained on %d tokens: --ctx %d is cut to that", trained, settings.ctx
        )
        return trained
    return settings.ctx


def _is_recurrent(library: Any, model: Any) -> bool:
    return bool(library.llama_model_is_recurrent(model) or library.llama_model_is_hybrid(model))


def _capabilities(
    library: Any, model: Any, context: Any, settings: LlamaSettings, width: int
) -> Capabilities:
    recurrent = _is_recurrent(library, model)
    rewind = int(library.llama_n_rs_seq(context)) if recurrent else None
    note = ""
    if rewind == 0:
        note = (
            "drafting is off: the model keeps a recurrent state, and llama.cpp cannot take that "
            "back for its architecture"
        )
    elif rewind is not None:
        note = f"the model keeps a recurrent state: at most {rewind} tokens can be taken back"
    return Capabilities(
        vocab_size=width,
        context_size=_context_size(library, model, settings),
        num_slots=settings.parallel,
        num_cells=int(library.llama_n_ctx(context)),
        max_rows=_max_rows(settings),
        max_rewind=rewind,
        can_fork=not recurrent,
        keeps_prefix=not recurrent,
        note=note,
    )


def _pointer(array: Any, kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _view(address: int, num_rows: int, width: int) -> Logits:
    buffer = (ctypes.c_float * width * num_rows).from_address(address)
    return np.ctypeslib.as_array(buffer)


def _free(library: Any, model: Any, context: Any) -> None:
    library.llama_free(context)
    library.llama_model_free(model)
