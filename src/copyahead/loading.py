"""Putting the parts together: a model file in, an engine out."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from copyahead.backends.base import Backend, Capabilities
from copyahead.config import MAX_DRAFT_TOKENS, LookupOptions, ModelOptions, SharedOptions
from copyahead.contracts import Drafter, Load

if TYPE_CHECKING:
    from copyahead.engine import Engine
    from copyahead.engine.scheduler import EngineOptions
    from copyahead.history.store import SharedStore


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
    from copyahead.backends.probe.search import load as load_backend

    lookup = lookup or LookupOptions()
    check_policy(lookup)
    backend = load_backend(path, model or ModelOptions())
    return make_engine(backend, lookup=lookup, shared=shared, options=options)


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
    from copyahead.engine import Engine

    if not lookup.lookup:
        return Engine(backend, options=options)
    return Engine(
        backend,
        make_drafter=drafter_factory(backend, shared),
        policy=lookup.policy,
        max_draft_tokens=lookup.max_drafts,
        options=options,
    )


MAX_SCOPES = 16
"""Tenants whose text is kept at once in a shared store."""


def make_store(options: SharedOptions | None, vocab_size: int) -> SharedStore | None:
    """The store that `options` ask for."""
    from copyahead.history.store import SharedStore

    if options is None or not options.shared:
        return None
    return SharedStore(MAX_SCOPES, options.shared_tokens, vocab_size)


def drafter_factory(
    backend: Backend, shared: SharedOptions | None = None
) -> Callable[[str, Load], Drafter]:
    """Makes the drafter for a policy; all of them share one pool of histories."""
    from copyahead.drafters.lookup import LookupDrafter
    from copyahead.drafters.priced import PricedDrafter
    from copyahead.history.pool import HistoryPool
    from copyahead.policies import parse_policy

    capabilities: Capabilities = backend.capabilities
    pool = HistoryPool(
        capabilities.num_slots,
        # A request's own text, and as much again that it expects to write.
        2 * capabilities.context_size + MAX_DRAFT_TOKENS,
        backend.tokenizer.vocab_size,
        make_store(shared, backend.tokenizer.vocab_size),
    )

    def make(policy: str, load: Load) -> Drafter:
        choice = parse_policy(policy)
        if choice.priced is not None:
            ends = sorted(backend.tokenizer.end_tokens)
            return PricedDrafter(pool, load, knobs=choice.priced, end_tokens=ends)
        return LookupDrafter(pool, choice, load)

    return make
