"""Putting the parts together: a model in, an engine out.

models        a GGUF file or a folder of transformers, and the backend that runs it
draft_model   a draft model beside it
catalog/      models by name, in the folders where people keep them
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from copyahead.config import DraftModelOptions, LookupOptions, ModelOptions, SharedOptions
from copyahead.contracts import Backend, ChainDrafter
from copyahead.loading.models import find, may_be_name

if TYPE_CHECKING:
    from copyahead.engine import Engine
    from copyahead.engine.scheduler import EngineOptions

__all__ = ["check_policy", "find", "load", "make_engine", "may_be_name"]


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    model: ModelOptions | None = None,
    lookup: LookupOptions | None = None,
    shared: SharedOptions | None = None,
    draft: DraftModelOptions | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine over the model at `path`: a GGUF file, run by llama.cpp, or the folder of a
    transformers model, or the name of one that is on this machine (see `loading.catalog`). None
    takes the bundled one.

    Raises ConfigError for a wrong option, and ModelError when the model, or the draft model that
    `draft` names, cannot be used as asked.
    """
    from copyahead.loading.draft_model import card, check_draft_model, load_draft_model
    from copyahead.loading.models import load_probed

    model, lookup = model or ModelOptions(), lookup or LookupOptions()
    draft = draft or DraftModelOptions()
    check_policy(lookup, draft)
    found = find(path)
    check_draft_model(found, model, draft)
    probed = load_probed(found, model)
    try:
        drafter = load_draft_model(probed.backend, model, draft)
    except BaseException:
        probed.backend.close()
        raise
    engine = make_engine(
        probed.backend,
        lookup=lookup,
        shared=shared,
        options=options,
        draft=draft,
        model_drafter=drafter,
    )
    engine.keep_step_cost = partial(probed.keep_step_cost, found, probed.backend.settings)
    if drafter is not None:
        engine.beside.callback(drafter.backend.close)
        engine.draft_model = card(probed.backend, drafter, lookup)
    return engine


def check_policy(lookup: LookupOptions, draft: DraftModelOptions | None = None) -> None:
    """Raise ConfigError where the policy is unknown or wrong: before a model is loaded."""
    from copyahead.drafters.factory import parse_mode

    if lookup.lookup:
        with_model = draft is not None and draft.draft_model is not None
        parse_mode(lookup.policy, draft.hybrid if draft is not None and with_model else None)


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
