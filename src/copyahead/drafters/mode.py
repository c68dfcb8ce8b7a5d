"""What drafts in a request: copies, a draft model, or both, and by which rule.

A policy is written `name:knob=value`. Beside a draft model it may say more: `POLICY+RULE` takes
another rule than the one that was asked for at load, `POLICY+off` copies alone, and `model` is the
draft model alone.
"""

from __future__ import annotations

from typing import NamedTuple, cast, get_args

from copyahead.config import HybridRule
from copyahead.errors import ConfigError
from copyahead.policies import parse_policy
from copyahead.policies.registry import PolicyChoice

MODEL_ALONE = "model"
COPIES_ALONE = "off"


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
            "does not: take policy priced, or hybrid agree, longer or first"
        )
    return mode
