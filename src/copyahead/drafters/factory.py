"""A policy's name in, a drafter out: only here is it known which policy needs which drafter.

A policy is written `name:knob=value`. Beside a draft model it may say more: `POLICY+RULE` takes
another rule than the one that was asked for at load, `POLICY+off` copies alone, and `model` is the
draft model alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple, cast, get_args

from copyahead.config import MAX_DRAFT_TOKENS, HybridRule, SharedOptions
from copyahead.contracts import Backend, ChainDrafter, Drafter, Load
from copyahead.errors import ConfigError
from copyahead.policies import parse_policy
from copyahead.policies.registry import PolicyChoice, PricedKnobs
from copyahead.types import Token

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from copyahead.drafters.lookup import LookupDrafter
    from copyahead.drafters.priced import PricedDrafter
    from copyahead.history.pool import HistoryPool
    from copyahead.history.store import SharedStore

MODEL_ALONE = "model"
COPIES_ALONE = "off"

MAX_SCOPES = 16
"""Tenants whose text is kept at once in a shared store."""


class Mode(NamedTuple):
    """Who drafts."""

    copies: PolicyChoice | None
    """How much of a copy is tried; None: nothing is copied."""
    rule: HybridRule | None
    """Which draft is verified where there is a draft model; None: there is none, or only it."""

    def __str__(self) -> str:
        if self.copies is None:
            return MODEL_ALONE
        return f"{self.copies}+{self.rule or COPIES_ALONE}"


def parse_mode(text: str, rule: HybridRule | None) -> Mode:
    """Read a policy as it may be written. `rule`: the one asked for at load; None: no draft model.

    Raises ConfigError where it is wrong, or needs a draft model and there is none.
    """
    name, plus, wanted = text.rpartition("+") if "+" in text else (text, "", "")
    alone = text.strip() == MODEL_ALONE
    if rule is None and (plus or alone):
        raise ConfigError(f"policy {text!r} needs draft_model: name a small model with it")
    if alone:
        return Mode(None, None)
    copies = parse_policy(name)
    if not plus:
        return _possible(Mode(copies, rule))
    if wanted == COPIES_ALONE:
        return Mode(copies, None)
    if wanted not in get_args(HybridRule):
        known = ", ".join((*get_args(HybridRule), COPIES_ALONE))
        raise ConfigError(f"policy {text!r}: there is no rule {wanted!r}; take one of {known}")
    return _possible(Mode(copies, cast("HybridRule", wanted)))


def _possible(mode: Mode) -> Mode:
    if mode.rule == "priced" and mode.copies is not None and mode.copies.is_preset:
        raise ConfigError(
            f"hybrid priced needs copies that know their chances, and policy {mode.copies.name} "
            "does not: take policy priced, or hybrid agree, longer or first, as in "
            f"{mode.copies.name}+first"
        )
    return mode


def make_drafter(
    policy: str | PolicyChoice,
    pool: HistoryPool,
    load: Load,
    end_tokens: Collection[Token] = (),
    prior: npt.NDArray[np.float64] | None = None,
) -> LookupDrafter | PricedDrafter:
    """The drafter of `policy` over `pool`. Raises ConfigError where the policy is wrong.

    It reads `load` at every round. `end_tokens` end a request: a drafter may stop at one. `prior`:
    the model that `priced` starts from (`drafters.prior`); the shipped one when not given.
    """
    from copyahead.drafters.lookup import LookupDrafter
    from copyahead.drafters.priced import PricedDrafter

    choice = parse_policy(policy) if isinstance(policy, str) else policy
    if isinstance(choice.knobs, PricedKnobs):
        return PricedDrafter(pool, load, knobs=choice.knobs, end_tokens=end_tokens, prior=prior)
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
    pool.touch()

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
