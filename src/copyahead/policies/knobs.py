"""What length policies share: how their options are described and checked, and their queries."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from typing import Any, cast

from copyahead.contracts import Query, Winner
from copyahead.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Knob:
    """One option of a policy, as shown to a user."""

    name: str
    about: str
    default: float
    low: float
    high: float


def knob(default: float, low: float, high: float, about: str) -> Any:
    """A dataclass field for an option from `low` to `high`; whole where the default is."""
    return field(default=default, metadata={"low": low, "high": high, "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Base of all policies' options: every value inside its range, or ConfigError."""

    def __post_init__(self) -> None:
        for option in knobs_of(type(self)):
            value = getattr(self, option.name)
            whole = isinstance(option.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "a whole number" if whole else "a number"
                raise ConfigError(f"{option.name} must be {kind}, not {value!r}")
            if not option.low <= value <= option.high:
                raise ConfigError(
                    f"{option.name} must be from {option.low:g} to {option.high:g}, not {value}"
                )

    def not_above(self, lower: str, upper: str) -> None:
        """Raise ConfigError where option `lower` is above option `upper`."""
        low, high = getattr(self, lower), getattr(self, upper)
        if low > high:
            raise ConfigError(
                f"{lower}={low} and {upper}={high} exclude each other: "
                f"{lower} must not be above {upper}"
            )


def knobs_of(kind: type[Knobs]) -> tuple[Knob, ...]:
    """The options of a policy, in order."""
    return tuple(
        Knob(f.name, f.metadata["about"], _default(f), f.metadata["low"], f.metadata["high"])
        for f in fields(kind)
    )


def _default(option: Field[Any]) -> float:
    return cast(float, option.default)


@lru_cache(maxsize=4096)
def query_for(
    keys: tuple[int, ...], min_match: int, max_tokens: int, winner: Winner = "longest"
) -> Query:
    """The Query with these fields, made once: a policy asks for the same few round after round."""
    return Query(keys=keys, min_match=min_match, max_tokens=max_tokens, winner=winner)
