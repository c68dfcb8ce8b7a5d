"""A draft model beside a model: checked before either is loaded, and loaded without a probe.

How a draft model rounds changes no text, so nothing about it has to be exact.
"""

from __future__ import annotations

from pathlib import Path

from copyahead.config import DraftModelOptions, LookupOptions, ModelOptions
from copyahead.contracts import Backend
from copyahead.drafters.draft_model import DraftModelCard, check_same_tokenizer
from copyahead.drafters.factory import parse_mode
from copyahead.drafters.model import ModelDrafter
from copyahead.drafters.pass_seconds import measure
from copyahead.errors import ConfigError, ModelError
from copyahead.loading.models import find, vocabulary
from copyahead.policies.registry import PricedKnobs

_READ_TOKENS = 1000
"""Tokens of a prompt whose price is told."""


def check_draft_model(path: Path, model: ModelOptions, draft: DraftModelOptions) -> None:
    """Raise where the draft model cannot be one for the model at `path`: before either is loaded.

    ConfigError for options that exclude each other, ModelError for a file that is none, or that
    has another tokenizer.
    """
    if draft.draft_model is None:
        return
    if draft.draft_sample and model.exact:
        raise ConfigError(
            "exact and draft_sample exclude each other: drafts that are verified by rejection give "
            "another sample than plain decoding; leave out one of them"
        )
    try:
        draft_path = find(draft.draft_model)
    except ModelError as error:
        raise ModelError(f"draft_{error}") from None
    with vocabulary(path) as target, vocabulary(draft_path) as other:
        check_same_tokenizer(target, other, draft_path.name)


def load_draft_model(
    backend: Backend, model: ModelOptions, draft: DraftModelOptions
) -> ModelDrafter | None:
    """The draft model, with as many slots and as long a context as `backend`; None without one."""
    if draft.draft_model is None:
        return None
    path = find(draft.draft_model)
    try:
        own = _folder(path, backend, model) if path.is_dir() else _file(path, backend, model, draft)
    except ModelError as error:
        raise ModelError(f"draft_model: {error}".replace(" gpu_", " draft_gpu_")) from None
    try:
        return ModelDrafter(own, draft)
    except BaseException:
        own.close()
        raise


def _file(path: Path, backend: Backend, model: ModelOptions, draft: DraftModelOptions) -> Backend:
    from copyahead.backends.llama_cpp.backend import LlamaBackend
    from copyahead.backends.llama_cpp.load import LlamaSettings

    limits = backend.capabilities
    settings = LlamaSettings(
        kv_type="f16",
        # One choice a process, which the model has made if llama.cpp runs it.
        tiled=getattr(backend.settings, "tiled", True),
        threads=model.num_threads,
        gpu_layers=draft.draft_gpu_layers,
        ctx=limits.context_size,
        parallel=limits.num_slots,
        verbose=model.verbose,
    )
    return LlamaBackend(path, settings, yields=model.threads is None)


def _folder(path: Path, backend: Backend, model: ModelOptions) -> Backend:
    from copyahead.backends.transformers.backend import TransformersBackend
    from copyahead.backends.transformers.load import TransformersSettings, load_model

    limits = backend.capabilities
    asked = ModelOptions(
        ctx=limits.context_size,
        parallel=limits.num_slots,
        threads=model.threads,
        device=model.device,
        verbose=model.verbose,
    )
    settings = TransformersSettings.of(path, asked)
    return TransformersBackend(load_model(path, settings), settings)


def card(backend: Backend, drafter: ModelDrafter, lookup: LookupOptions) -> DraftModelCard:
    """What the draft model costs, in passes of the model: timed now, with both loaded."""
    step = measure(backend, (1,))[1]
    mode = parse_mode(lookup.policy, drafter.options.hybrid) if lookup.lookup else None
    knobs = mode.copies.knobs if mode is not None and mode.copies is not None else None
    return DraftModelCard(
        name=Path(drafter.backend.name).name,
        memory_bytes=getattr(drafter.backend, "memory_bytes", 0),
        draft_steps=drafter.seconds(1) / step,
        read_steps=drafter.seconds(_READ_TOKENS) / step,
        longest_prompt=drafter.longest_read(knobs.credit * step)
        if isinstance(knobs, PricedKnobs)
        else None,
    )
