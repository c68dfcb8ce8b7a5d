"""Putting the parts together: a model file in, an engine out."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from copyahead.config import LookupOptions, ModelOptions, SharedOptions
from copyahead.contracts import Backend

if TYPE_CHECKING:
    from copyahead.engine import Engine
    from copyahead.engine.scheduler import EngineOptions


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    model: ModelOptions | None = None,
    lookup: LookupOptions | None = None,
    shared: SharedOptions | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine over the GGUF model at `path`; None takes the bundled one.

    Raises ConfigError for a wrong option, and ModelError when the model cannot be used as asked.
    """
    from copyahead.backends.probe.search import keep_step_cost
    from copyahead.backends.probe.search import load as load_backend

    lookup = lookup or LookupOptions()
    check_policy(lookup)
    backend = load_backend(path, model or ModelOptions())
    engine = make_engine(backend, lookup=lookup, shared=shared, options=options)
    engine.keep_step_cost = partial(keep_step_cost, backend.path, backend.settings)
    return engine


def check_policy(lookup: LookupOptions) -> None:
    """Raise ConfigError where the policy is unknown or wrong: before a model is loaded."""
    from copyahead.policies import parse_policy

    if lookup.lookup:
        parse_policy(lookup.policy)


def make_engine(
    backend: Backend,
    *,
    lookup: LookupOptions,
    shared: SharedOptions | None = None,
    options: EngineOptions | None = None,
) -> Engine:
    """An engine over a loaded backend."""
    from copyahead.drafters.factory import drafter_factory
    from copyahead.engine import Engine

    if not lookup.lookup:
        return Engine(backend, options=options)
    return Engine(
        backend,
        make_drafter=drafter_factory(backend, shared),
        policy=lookup.policy,
        max_draft_tokens=lookup.max_draft_tokens,
        options=options,
    )
