"""Loading a GGUF model with llama.cpp: the settings, the context, and what it can do."""

from __future__ import annotations

import ctypes
import logging
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

from copyahead.backends.llama_cpp.library import take_errors
from copyahead.config import MAX_DRAFT_TOKENS, ModelOptions
from copyahead.contracts import Capabilities
from copyahead.errors import ModelError

logger = logging.getLogger(__name__)

ROWS_PER_REQUEST = 1 + MAX_DRAFT_TOKENS
"""Rows with logits that one request may have in a pass."""

_MIN_PASS_ROWS = 512
_KV_TYPES = {"f16": 1, "q8_0": 8, "bf16": 30}
"""Numbers of `enum ggml_type`; the binding has no name for bf16."""
_KV_BYTES = {"f16": 2.0, "q8_0": 34 / 32, "bf16": 2.0}
_SNAPSHOT_BYTES = 256 << 20
"""Memory that snapshots of recurrent states may take, if more than a quarter of the weights."""


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


def load_model(library: Any, path: Path, settings: LlamaSettings) -> tuple[Any, Any]:
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
    if settings.gpu_layers and not library.llama_supports_gpu_offload():
        raise ModelError("gpu_layers needs a build of llama.cpp for a GPU: leave it at 0")
    params = library.llama_model_default_params()
    params.n_gpu_layers = settings.gpu_layers
    params.use_extra_bufts = settings.repack
    return params


def _context_params(library: Any, model: Any, settings: LlamaSettings) -> Any:
    params = library.llama_context_default_params()
    max_rows = max_pass_rows(settings)
    recurrent = is_recurrent(library, model)
    room = _context_size(library, model, settings) + ROWS_PER_REQUEST
    params.n_ctx = settings.parallel * room
    params.n_batch = params.n_ubatch = max_rows
    params.n_outputs_max = min(max_rows, settings.parallel * ROWS_PER_REQUEST)
    # One sequence more, for cells given up (`cells`).
    params.n_seq_max = settings.parallel + (0 if recurrent else 1)
    params.n_threads = params.n_threads_batch = settings.threads
    params.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.type_k = params.type_v = _KV_TYPES[settings.kv_type]
    # A recurrent state makes llama.cpp cut ragged passes anyway, so nothing is lost by
    # keeping those sequences apart.
    params.kv_unified = not recurrent
    # A sliding window kept whole can be rolled back to any length.
    params.swa_full = True
    params.no_perf = True
    if recurrent:
        params.n_rs_seq = _num_snapshots(library, model, settings.parallel)
    return params


def _num_snapshots(library: Any, model: Any, parallel: int) -> int:
    """Snapshots of each sequence's recurrent state: a whole draft's, or what memory allows."""
    architecture = meta_value(library, model, "general.architecture")

    def size(name: str) -> int:
        return int(meta_value(library, model, f"{architecture}.ssm.{name}") or 0)

    scan = size("inner_size") * size("state_size")
    convolution = size("conv_kernel") * (
        size("inner_size") + 2 * size("group_count") * size("state_size")
    )
    one = 4 * (scan + convolution) * int(library.llama_model_n_layer(model)) * parallel
    budget = max(_SNAPSHOT_BYTES, int(library.llama_model_size(model)) // 4)
    return max(1, min(MAX_DRAFT_TOKENS, budget // max(1, one)))


def meta_value(library: Any, model: Any, key: str) -> str | None:
    """A field of the GGUF file as text; None when it has no such field."""
    buffer = ctypes.create_string_buffer(1 << 12)
    length = library.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return None if length < 0 else buffer.value.decode("utf-8", "replace")


def memory_bytes(library: Any, model: Any, context: Any, settings: LlamaSettings) -> int:
    """Of the weights and of a KV cache of attention in every layer, which is the most there is."""
    architecture = meta_value(library, model, "general.architecture")
    heads = max(1, int(library.llama_model_n_head(model)))
    width = int(library.llama_model_n_embd(model)) // heads

    def length(name: str) -> int:
        return int(meta_value(library, model, f"{architecture}.attention.{name}_length") or width)

    row = int(library.llama_model_n_head_kv(model)) * (length("key") + length("value"))
    cells = int(library.llama_model_n_layer(model)) * int(library.llama_n_ctx(context))
    return int(library.llama_model_size(model) + cells * row * _KV_BYTES[settings.kv_type])


def max_pass_rows(settings: LlamaSettings) -> int:
    """Rows of the largest pass: at least one for each request."""
    return max(_MIN_PASS_ROWS, settings.parallel)


def _context_size(library: Any, model: Any, settings: LlamaSettings) -> int:
    trained = int(library.llama_model_n_ctx_train(model))
    if 0 < trained < settings.ctx:
        logger.warning(
            "the model was trained on %d tokens: --ctx %d is cut to that", trained, settings.ctx
        )
        return trained
    return settings.ctx


def is_recurrent(library: Any, model: Any) -> bool:
    """Whether any layer keeps a state that grows with no token, and so cannot be cut."""
    return bool(library.llama_model_is_recurrent(model) or library.llama_model_is_hybrid(model))


def read_capabilities(
    library: Any, model: Any, context: Any, settings: LlamaSettings, width: int
) -> Capabilities:
    """What a loaded model can do; `width` is that of a row of logits."""
    recurrent = is_recurrent(library, model)
    rewind = int(library.llama_n_rs_seq(context)) if recurrent else None
    note = ""
    if rewind == 0:
        note = (
            "drafting is off: the model keeps a recurrent state, and llama.cpp cannot take that "
            "back for its architecture"
        )
    elif rewind is not None and rewind < MAX_DRAFT_TOKENS:
        note = (
            f"drafts are at most {rewind} tokens: the model keeps a recurrent state, and that is "
            "how many snapshots of it are held"
        )
    return Capabilities(
        logits_width=width,
        context_size=_context_size(library, model, settings),
        num_slots=settings.parallel,
        num_cells=int(library.llama_n_ctx(context)),
        max_rows=max_pass_rows(settings),
        max_rewind=rewind,
        can_fork=not recurrent,
        note=note,
    )
