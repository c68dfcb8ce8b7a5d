"""What length policies share: how their options are described and checked, and their queries."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, cast

from copyahead.contracts import Query, Winner
from copyahead.errors import ConfigError
from copyahead.ranges import check_ranges, numbers_of


@dataclass(frozen=True, slots=True)
class Knob:
    """One option of a policy, as shown to a user."""

    name: str
    about: str
    default: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Base of all policies' options: each with its range and the sentence that describes it."""

    def __post_init__(self) -> None:
        check_ranges(self)

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
    defaults: dict[str, Any] = {field.name: field.default for field in fields(kind)}
    return tuple(
        # The range of a knob always has an end.
        Knob(n.name, n.about, defaults[n.name], n.range.low, cast(float, n.range.high))
        for n in numbers_of(kind)
    )


@lru_cache(maxsize=4096)
def query_for(
    keys: tuple[int, ...], min_match: int, max_tokens: int, winner: Winner = "longest"
) -> Query:
    """The Query with these fields, made once: a policy asks for the same few round after round."""
    return Query(keys=keys, min_match=min_match, max_tokens=max_tokens, winner=winner)
