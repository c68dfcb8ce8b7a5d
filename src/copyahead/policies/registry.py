"""The policies by name, and how one is written on a command line: `name:knob=value,knob=value`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import LengthPolicy, Load
from copyahead.errors import ConfigError
from copyahead.policies.adaptive_k import AdaptiveK, AdaptiveKKnobs
from copyahead.policies.fixed import Fixed, FixedKnobs
from copyahead.policies.hysteresis import Hysteresis, HysteresisKnobs
from copyahead.policies.knobs import Knob, Knobs, knobs_of
from copyahead.policies.single import Single, SingleKnobs
from copyahead.policies.window import Window, WindowKnobs
from copyahead.ranges import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedKnobs(Knobs):
    """Options of `priced`. The defaults suit every machine: what differs is measured."""

    max_draft_tokens: Annotated[int, Range(1, MAX_DRAFT_TOKENS), "longest draft"] = MAX_DRAFT_TOKENS
    credit: Annotated[
        float,
        Range(1.0, 1024.0),
        "most steps that a request may ever lose to drafts that were not kept",
    ] = 16.0
    credit_cap: Annotated[
        float, Range(0.0, 65536.0), "most steps of past gains that count as credit"
    ] = 64.0
    trickle: Annotated[
        float, Range(0.0, 0.1), "credit for every emitted token, so that it recovers"
    ] = 0.005
    threshold: Annotated[
        float,
        Range(0.5, 4.0),
        "tokens a step that a further row must bring, in units of the running rate, "
        "where the copy has probably broken",
    ] = 1.35


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy with its options settled; `drafters.factory` has the drafter for it."""

    name: str
    knobs: Knobs

    @property
    def is_preset(self) -> bool:
        """Whether it is a length policy: it knows no step cost, and no request but its own.

        Any other policy has a drafter of its own.
        """
        return POLICIES[self.name].make is not None

    def __call__(self, load: Load) -> LengthPolicy:
        """A preset's state for one request, which watches `load`."""
        make = POLICIES[self.name].make
        if make is None:
            raise ConfigError(
                f"policy {self.name} is no preset: take drafters.factory.make_drafter"
            )
        return make(self.knobs, load)

    def __str__(self) -> str:
        changed = [
            f"{k.name}={getattr(self.knobs, k.name)}"
            for k in knobs_of(type(self.knobs))
            if getattr(self.knobs, k.name) != k.default
        ]
        return f"{self.name}:{','.join(changed)}" if changed else self.name


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """One policy, as shown to a user."""

    name: str
    about: str
    knobs: tuple[Knob, ...]


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """What the registry knows of a policy."""

    about: str
    """It in half a sentence, for `copyahead policies`."""
    knobs: type[Knobs]
    make: Callable[[Any, Load], LengthPolicy] | None
    """Makes a request's length policy; None for a policy with a drafter of its own."""


POLICIES: dict[str, PolicyEntry] = {
    "priced": PolicyEntry(
        "as much of a copy as is worth its price on this machine; learns which copies hold",
        PricedKnobs,
        None,
    ),
    "hysteresis": PolicyEntry(
        "long copies, behind a gate on the match that opens while a copy runs",
        HysteresisKnobs,
        Hysteresis,
    ),
    "window": PolicyEntry(
        "copies of the newest place, in a window that doubles and halves", WindowKnobs, Window
    ),
    "single": PolicyEntry("one token after the newest place", SingleKnobs, Single),
    "adaptive_k": PolicyEntry(
        "the newest place; twice as long after a full accept, 1 after a miss",
        AdaptiveKKnobs,
        AdaptiveK,
    ),
    "fixed": PolicyEntry("the newest place, always the same length", FixedKnobs, Fixed),
}


_FORMER_NAMES = {
    "max_draft": "max_draft_tokens",
    "batch_max_draft": "batch_max_draft_tokens",
}
"""Names that options of policies had before: they may still be written."""


def policy_names() -> tuple[str, ...]:
    """The names that `parse_policy` knows."""
    return tuple(POLICIES)


def describe() -> tuple[PolicyDescription, ...]:
    """Every policy with its options, for a table."""
    return tuple(
        PolicyDescription(name, entry.about, knobs_of(entry.knobs))
        for name, entry in POLICIES.items()
    )


def parse_policy(text: str) -> PolicyChoice:
    """Read `name` or `name:knob=value,knob=value`.

    Raises ConfigError for an unknown name or option, a value out of range, and options that
    exclude each other.
    """
    name, _, rest = text.strip().partition(":")
    entry = POLICIES.get(name)
    if entry is None:
        raise ConfigError(f"policy {name!r} is unknown: take one of {', '.join(POLICIES)}")
    known = {option.name: option for option in knobs_of(entry.knobs)}
    values: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        written, equals, value = (piece.strip() for piece in part.partition("="))
        key = _FORMER_NAMES.get(written, written)
        if key not in known:
            raise ConfigError(
                f"policy {name} has no option {written!r}: its options are {', '.join(known)}"
            )
        if not equals:
            raise ConfigError(f"policy {name}: write {key}={known[key].default:g}, not {part!r}")
        if key in values:
            also = f" ({written} is its former name)" if written != key else ""
            raise ConfigError(f"policy {name}: {key}{also} is given twice; leave one out")
        values[key] = _number(known[key], value)
    try:
        return PolicyChoice(name, entry.knobs(**values))
    except ConfigError as error:
        raise ConfigError(f"policy {name}: {error}") from None


def _number(option: Knob, text: str) -> float | str:
    """The number that `text` is; or `text`, for the option's own check to refuse."""
    try:
        return int(text) if isinstance(option.default, int) else float(text)
    except ValueError:
        return text
