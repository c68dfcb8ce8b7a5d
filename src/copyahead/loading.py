"""Putting the parts together: a model file in, an engine out."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from copyahead.config import DraftModelOptions, LookupOptions, ModelOptions, SharedOptions
from copyahead.contracts import Backend, ChainDrafter
from copyahead.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from copyahead.backends.llama_cpp.backend import LlamaBackend
    from copyahead.drafters.draft_model import DraftModelCard
    from copyahead.drafters.model import ModelDrafter
    from copyahead.engine import Engine
    from copyahead.engine.scheduler import EngineOptions

_READ_TOKENS = 1000
"""Tokens of a prompt whose price is told."""


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    model: ModelOptions | None = None,
    lookup: LookupOptions | None = None,
    shared: SharedOptions | None = None,
    draft: DraftModelOptions | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine over the GGUF model at `path`; None takes the bundled one.

    Raises ConfigError for a wrong option, and ModelError when the model, or the draft model that
    `draft` names, cannot be used as asked.
    """
    from copyahead.backends.probe.search import keep_step_cost
    from copyahead.backends.probe.search import load as load_backend

    model, lookup = model or ModelOptions(), lookup or LookupOptions()
    draft = draft or DraftModelOptions()
    check_policy(lookup, draft)
    check_draft_model(path, model, draft)
    backend = load_backend(path, model)
    try:
        drafter = load_draft_model(backend, model, draft)
    except BaseException:
        backend.close()
        raise
    engine = make_engine(
        backend,
        lookup=lookup,
        shared=shared,
        options=options,
        draft=draft,
        model_drafter=drafter,
    )
    engine.keep_step_cost = partial(keep_step_cost, backend.path, backend.settings)
    if drafter is not None:
        engine.beside.callback(drafter.backend.close)
        engine.draft_model = _card(backend, drafter, lookup)
    return engine


def check_policy(lookup: LookupOptions, draft: DraftModelOptions | None = None) -> None:
    """Raise ConfigError where the policy is unknown or wrong: before a model is loaded."""
    from copyahead.drafters.factory import parse_mode

    if lookup.lookup:
        with_model = draft is not None and draft.draft_model is not None
        parse_mode(lookup.policy, draft.hybrid if draft is not None and with_model else None)


def check_draft_model(
    path: str | os.PathLike[str] | None, model: ModelOptions, draft: DraftModelOptions
) -> None:
    """Raise where the draft model cannot be one for the model at `path`: before either is loaded.

    ConfigError for options that exclude each other, ModelError for a file that is none, or that
    has another tokenizer.
    """
    if draft.draft_model is None:
        return
    from copyahead.backends.llama_cpp.gguf import find_model
    from copyahead.backends.llama_cpp.tokenizer import load_vocabulary
    from copyahead.drafters.draft_model import check_same_tokenizer

    if draft.draft_sample and model.exact:
        raise ConfigError(
            "exact and draft_sample exclude each other: drafts that are verified by rejection give "
            "another sample than plain decoding; leave out one of them"
        )
    try:
        draft_path = find_model(draft.draft_model)
    except ModelError as error:
        raise ModelError(f"draft_{error}") from None
    target, other = load_vocabulary(find_model(path)), load_vocabulary(draft_path)
    try:
        check_same_tokenizer(target, other, draft_path.name)
    finally:
        target.close()
        other.close()


def load_draft_model(
    backend: LlamaBackend, model: ModelOptions, draft: DraftModelOptions
) -> ModelDrafter | None:
    """The draft model, with as many slots and as long a context as `backend`; None without one.

    Nothing is probed: how this model rounds changes no text.
    """
    if draft.draft_model is None:
        return None
    from copyahead.backends.llama_cpp.backend import LlamaBackend
    from copyahead.backends.llama_cpp.load import LlamaSettings
    from copyahead.drafters.model import ModelDrafter

    limits = backend.capabilities
    settings = LlamaSettings(
        kv_type="f16",
        # One choice a process, which the model has made.
        tiled=backend.settings.tiled,
        threads=backend.settings.threads,
        gpu_layers=draft.draft_gpu_layers,
        ctx=limits.context_size,
        parallel=limits.num_slots,
        verbose=model.verbose,
    )
    try:
        own = LlamaBackend(draft.draft_model, settings, yields=model.threads is None)
    except ModelError as error:
        raise ModelError(f"draft_model: {error}".replace(" gpu_", " draft_gpu_")) from None
    try:
        return ModelDrafter(own, draft)
    except BaseException:
        own.close()
        raise


def _card(backend: LlamaBackend, drafter: ModelDrafter, lookup: LookupOptions) -> DraftModelCard:
    """What the draft model costs, in passes of the model: timed now, with both loaded."""
    from copyahead.drafters.draft_model import DraftModelCard
    from copyahead.drafters.factory import parse_mode
    from copyahead.drafters.pass_seconds import measure
    from copyahead.policies.registry import PricedKnobs

    step = measure(backend, (1,))[1]
    read = drafter.seconds(_READ_TOKENS) / step
    mode = parse_mode(lookup.policy, drafter.options.hybrid) if lookup.lookup else None
    knobs = mode.copies.knobs if mode is not None and mode.copies is not None else None
    return DraftModelCard(
        name=os.path.basename(drafter.backend.name),
        memory_bytes=getattr(drafter.backend, "memory_bytes", 0),
        draft_steps=drafter.seconds(1) / step,
        read_steps=read,
        longest_prompt=drafter.longest_read(knobs.credit * step)
        if isinstance(knobs, PricedKnobs)
        else None,
    )


def make_engine(
    backend: Backend,
    *,
    lookup: LookupOptions,
    shared: SharedOptions | None = None,
    options: EngineOptions | None = None,
    draft: DraftModelOptions | None = None,
    model_drafter: ChainDrafter | None = None,
) -> Engine:
    """An engine over a loaded backend, and a draft model where there is one."""
    from copyahead.drafters.factory import MODEL_ALONE, drafter_factory
    from copyahead.engine import Engine

    if not lookup.lookup and model_drafter is None:
        return Engine(backend, options=options)
    rule = (draft or DraftModelOptions()).hybrid
    return Engine(
        backend,
        make_drafter=drafter_factory(backend, shared, model_drafter, rule),
        policy=lookup.policy if lookup.lookup else MODEL_ALONE,
        max_draft_tokens=lookup.max_draft_tokens,
        options=options,
    )
