"""A policy's name in, a drafter out: only here is it known which policy needs which drafter."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from copyahead.config import MAX_DRAFT_TOKENS, HybridRule, SharedOptions
from copyahead.contracts import Backend, ChainDrafter, Drafter, Load
from copyahead.drafters.mode import parse_mode
from copyahead.policies import parse_policy
from copyahead.policies.registry import PolicyChoice, PricedKnobs
from copyahead.types import Token

if TYPE_CHECKING:
    from copyahead.drafters.lookup import LookupDrafter
    from copyahead.drafters.priced import PricedDrafter
    from copyahead.history.pool import HistoryPool
    from copyahead.history.store import SharedStore

MAX_SCOPES = 16
"""Tenants whose text is kept at once in a shared store."""


def make_drafter(
    policy: str | PolicyChoice, pool: HistoryPool, load: Load, end_tokens: Collection[Token] = ()
) -> LookupDrafter | PricedDrafter:
    """The drafter of `policy` over `pool`. Raises ConfigError where the policy is wrong.

    It reads `load` at every round. `end_tokens` end a request: a drafter may stop at one.
    """
    from copyahead.drafters.lookup import LookupDrafter
    from copyahead.drafters.priced import PricedDrafter

    choice = parse_policy(policy) if isinstance(policy, str) else policy
    if isinstance(choice.knobs, PricedKnobs):
        return PricedDrafter(pool, load, knobs=choice.knobs, end_tokens=end_tokens)
    return LookupDrafter(pool, choice, load)


def make_store(options: SharedOptions | None, vocab_size: int) -> SharedStore | None:
    """The store that `options` ask for."""
    from copyahead.history.store import SharedStore

    if options is None or not options.shared:
        return None
    return SharedStore(MAX_SCOPES, options.shared_tokens, vocab_size)


def drafter_factory(
    backend: Backend,
    shared: SharedOptions | None = None,
    model: ChainDrafter | None = None,
    rule: HybridRule = "priced",
) -> Callable[[str, Load], Drafter]:
    """Makes the drafter for a policy; all of them share one pool of histories.

    With a `model` that drafts too, `rule` says which draft is verified where a policy does not.
    """
    from copyahead.history.pool import HistoryPool

    capabilities, tokenizer = backend.capabilities, backend.tokenizer
    pool = HistoryPool(
        capabilities.num_slots,
        # A request's own text, and as much again that it expects to write.
        2 * capabilities.context_size + MAX_DRAFT_TOKENS,
        tokenizer.vocab_size,
        make_store(shared, tokenizer.vocab_size),
    )

    def make(policy: str, load: Load) -> Drafter:
        mode = parse_mode(policy, rule if model is not None else None)
        if mode.copies is None:
            assert model is not None
            return model
        copies = make_drafter(mode.copies, pool, load, tokenizer.end_tokens)
        if mode.rule is None or model is None:
            return copies
        from copyahead.drafters.hybrid import HybridDrafter

        return HybridDrafter(copies, model, mode.rule, load)

    return make
