"""Figures of a log: a row for each band, and the ratios of two logs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from copyahead.traces.logs.bands import Key
from copyahead.traces.logs.quantiles import Quantiles


class Sums(Protocol):
    """Requests added up: `bands.Group`, `vllm.VllmTotal`."""

    requests: int
    failed: int
    read: int
    written: int
    cached: int
    read_known: int
    drafted: int
    accepted: int
    rounds: int

    @property
    def speed(self) -> Quantiles:
        """Of requests, in tokens a second."""
        ...

    @property
    def first_token(self) -> Quantiles:
        """Of requests, in seconds."""
        ...


class Spread(msgspec.Struct, frozen=True):
    """Where half of all requests lie, and nineteen of twenty; None where there is none."""

    p5: float | None
    p50: float | None
    p95: float | None


class Row(msgspec.Struct, frozen=True):
    """The requests of a band, and of a policy and a day where the log is taken apart by these."""

    band: str
    policy: str
    """Empty where policies are not kept apart."""
    day: str
    """Empty where days are not kept apart."""
    requests: int
    failed: int
    """Those that were refused, cancelled, or ended with an error."""
    prompt_tokens: int
    written_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    tok_s: Spread
    """Tokens after the first, by the second: a figure for each request."""
    first_token_ms: Spread
    acceptance: float | None
    """Accepted of drafted tokens; None where nothing was drafted."""
    tokens_per_round: float | None
    """Written tokens by passes; None where there were none."""
    prefix_reuse: float | None
    """The share of prompt tokens that were kept from earlier requests; None: not known."""


class Ratio(msgspec.Struct, frozen=True):
    """A band of one log over the same of the other; None where either has no such figure."""

    band: str
    policy: str
    day: str
    requests: int
    requests_vs: int
    tok_s: float | None
    """Of the medians; above 1: the first log is faster."""
    first_token: float | None
    """Of the medians; below 1: the first log is sooner."""
    tokens_per_round: float | None
    acceptance: float | None
    prefix_reuse: float | None


def make_row(key: Key, band: str, sums: Sums) -> Row:
    """The figures of `sums`."""
    return Row(
        band=band,
        policy=key.policy,
        day=key.day,
        requests=sums.requests,
        failed=sums.failed,
        prompt_tokens=sums.read,
        written_tokens=sums.written,
        drafted_tokens=sums.drafted,
        accepted_tokens=sums.accepted,
        tok_s=_spread(sums.speed, 1.0),
        first_token_ms=_spread(sums.first_token, 1000.0),
        acceptance=_share(sums.accepted, sums.drafted),
        tokens_per_round=_share(sums.written, sums.rounds),
        prefix_reuse=_share(sums.cached, sums.read_known),
    )


def make_ratios(rows: Sequence[Row], others: Iterable[Row]) -> list[Ratio]:
    """`rows` over `others`, for each band, policy and day that both have."""
    by_place = {(row.band, row.policy, row.day): row for row in others}
    pairs = ((row, by_place.get((row.band, row.policy, row.day))) for row in rows)
    return [_ratio(row, other) for row, other in pairs if other is not None]


def _ratio(row: Row, other: Row) -> Ratio:
    return Ratio(
        band=row.band,
        policy=row.policy,
        day=row.day,
        requests=row.requests,
        requests_vs=other.requests,
        tok_s=_over(row.tok_s.p50, other.tok_s.p50),
        first_token=_over(row.first_token_ms.p50, other.first_token_ms.p50),
        tokens_per_round=_over(row.tokens_per_round, other.tokens_per_round),
        acceptance=_over(row.acceptance, other.acceptance),
        prefix_reuse=_over(row.prefix_reuse, other.prefix_reuse),
    )


def _spread(numbers: Quantiles, unit: float) -> Spread:
    places = (numbers.at(share) for share in (0.05, 0.5, 0.95))
    return Spread(*(None if place is None else round(place * unit, 3) for place in places))


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _over(one: float | None, other: float | None) -> float | None:
    return round(one / other, 4) if one is not None and other else None
