"""Speeds of the answers of a server, and ratios of two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from copyahead.evaluate.bench.asking import Answer
from copyahead.evaluate.bench.running import Result

RESAMPLES = 2000
_SEED = 0
_INTERVAL = (2.5, 97.5)

Measure = Callable[[Answer], float | None]


class Spread(msgspec.Struct, frozen=True):
    """Percentiles over requests."""

    p50: float
    p90: float
    p99: float


class Figures(msgspec.Struct, frozen=True):
    """What one server did. A figure is None where no answer allows it."""

    url: str
    model: str
    requests: int
    """Those that were answered or failed, without warm-up."""
    warm_up: int
    failed: int
    errors: dict[str, int]
    """How many failed, by kind."""
    first_errors: dict[str, str]
    """What was said of the first of each kind."""
    refusals: int
    """Times that the server said to come back later, before it took a request."""
    without_usage: int
    """Whole answers of which the server did not say how many tokens they have."""
    in_one_piece: int
    """Whole answers of several tokens that came all at once: they have no time a token."""
    seconds: float
    prompt_tokens: int
    output_tokens: int
    total_tok_s: float | None
    """Output tokens of all requests, by the time that these took together."""
    tok_s: Spread | None
    """A request's output tokens, by the time from its sending to its end."""
    first_token_ms: Spread | None
    """From the sending of a request to its first text."""
    token_ms: Spread | None
    """From the first text to the last, by the tokens after the first."""


class Ratio(msgspec.Struct, frozen=True):
    """A median of the first server over the same of the second, over requests that both answered,
    and where 95 of 100 such ratios lie when requests are drawn again."""

    measure: str
    requests: int
    ratio: float
    low: float
    high: float


def speed(answer: Answer) -> float | None:
    """Output tokens by the whole time."""
    if not answer.output_tokens or answer.total <= 0:
        return None
    return answer.output_tokens / answer.total


def first_token(answer: Answer) -> float | None:
    """Seconds."""
    return answer.first


def time_a_token(answer: Answer) -> float | None:
    """Seconds between tokens: from the first text to the last, over the tokens after the first."""
    if answer.first is None or answer.last is None or (answer.output_tokens or 0) < 2:
        return None
    span = answer.last - answer.first
    return span / ((answer.output_tokens or 0) - 1) if span > 0 else None


MEASURES: dict[str, Measure] = {
    "tok_s": speed,
    "first_token": first_token,
    "time_a_token": time_a_token,
}


def figures(result: Result) -> Figures:
    """The figures of one server."""
    whole = [answer for answer in result.answers if answer.error is None]
    failed = [answer for answer in result.answers if answer.error is not None]
    tokens = sum(answer.output_tokens or 0 for answer in whole)
    return Figures(
        url=result.target.url,
        model=result.target.model,
        requests=len(result.answers),
        warm_up=len(result.warm_up),
        failed=len(failed),
        errors=dict(Counter(str(answer.error) for answer in failed).most_common()),
        first_errors={str(answer.error): answer.detail for answer in reversed(failed)},
        refusals=sum(answer.refusals for answer in result.answers),
        without_usage=sum(answer.output_tokens is None for answer in whole),
        in_one_piece=sum(_came_at_once(answer) for answer in whole),
        seconds=round(result.seconds, 3),
        prompt_tokens=sum(answer.prompt_tokens or 0 for answer in whole),
        output_tokens=tokens,
        total_tok_s=round(tokens / result.seconds, 3) if tokens and result.seconds else None,
        tok_s=_spread(whole, speed, 1),
        first_token_ms=_spread(whole, first_token, 1000),
        token_ms=_spread(whole, time_a_token, 1000),
    )


def ratios(first: Result, second: Result) -> list[Ratio]:
    """The first server over the second, by each measure that at least two requests allow."""
    found = (_ratio(name, first, second, measure) for name, measure in MEASURES.items())
    return [ratio for ratio in found if ratio is not None]


def _ratio(name: str, first: Result, second: Result, measure: Measure) -> Ratio | None:
    mine, others = _values(first, measure), _values(second, measure)
    both = sorted(mine.keys() & others.keys())
    if len(both) < 2:
        return None
    one = np.array([mine[number] for number in both])
    other = np.array([others[number] for number in both])
    random = np.random.default_rng(_SEED)
    draws = (random.integers(len(both), size=len(both)) for _ in range(RESAMPLES))
    low, high = np.percentile([_over(one[draw], other[draw]) for draw in draws], _INTERVAL)
    figures = (round(float(figure), 4) for figure in (_over(one, other), low, high))
    return Ratio(name, len(both), *figures)


def _over(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    return float(np.median(one) / np.median(other))


def _values(result: Result, measure: Measure) -> dict[int, float]:
    values = {a.number: measure(a) for a in result.answers if a.error is None}
    return {number: value for number, value in values.items() if value}


def _spread(answers: Sequence[Answer], measure: Measure, unit: float) -> Spread | None:
    values = [value * unit for value in map(measure, answers) if value is not None]
    if not values:
        return None
    return Spread(*(round(float(place), 3) for place in np.percentile(values, (50, 90, 99))))


def _came_at_once(answer: Answer) -> bool:
    return (answer.output_tokens or 0) > 1 and answer.first == answer.last
