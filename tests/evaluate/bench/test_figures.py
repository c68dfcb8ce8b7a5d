"""Figures of answers: against working them out by hand, and against the plain way to do it."""

from __future__ import annotations

import numpy as np
import pytest

from copyahead.evaluate.bench.asking import Answer, Target
from copyahead.evaluate.bench.figures import Spread, figures, ratios
from copyahead.evaluate.bench.running import Result

TARGET = Target("http://x/v1", "m")


def whole(number: int, first: float, last: float, tokens: int | None) -> Answer:
    return Answer(
        number, first=first, last=last, total=last, prompt_tokens=10, output_tokens=tokens
    )


def test_the_figures_of_answers() -> None:
    answers = [
        whole(0, 0.5, 1.0, 11),
        whole(1, 1.0, 2.0, 5),
        whole(2, 0.7, 0.7, 4),
        whole(3, 0.7, 0.9, None),
        Answer(4, error="timeout", detail="first"),
        Answer(5, error="timeout", detail="second", refusals=2),
        Answer(6, error="HTTP 400", detail="no"),
    ]
    found = figures(Result(TARGET, answers, [whole(9, 1, 2, 3)], 4.0))
    assert (found.requests, found.warm_up, found.failed) == (7, 1, 3)
    assert found.errors == {"timeout": 2, "HTTP 400": 1}
    assert found.first_errors == {"timeout": "first", "HTTP 400": "no"}
    assert (found.refusals, found.without_usage, found.in_one_piece) == (2, 1, 1)
    assert (found.prompt_tokens, found.output_tokens, found.total_tok_s) == (40, 20, 5.0)
    speeds = [11 / 1.0, 5 / 2.0, 4 / 0.7]
    assert found.tok_s == Spread(*np.round(np.percentile(speeds, (50, 90, 99)), 3).tolist())
    times = [1000 * 0.5 / 10, 1000 * 1.0 / 4]
    assert found.token_ms == Spread(*np.round(np.percentile(times, (50, 90, 99)), 3).tolist())
    assert found.first_token_ms is not None
    assert found.first_token_ms.p50 == 700


def test_without_answers_there_are_no_figures() -> None:
    found = figures(Result(TARGET, [Answer(0, error="timeout")], [], 1.0))
    assert (found.total_tok_s, found.tok_s, found.first_token_ms, found.token_ms) == (None,) * 4
    assert figures(Result(TARGET)).requests == 0
    assert ratios(Result(TARGET), Result(TARGET)) == []


def test_ratios_are_of_requests_that_both_answered() -> None:
    random = np.random.default_rng(3)
    ones, others = [], []
    for number in range(60):
        first, span = random.uniform(0.1, 0.2), random.uniform(1.0, 1.5)
        ones.append(whole(number, first, first + span, 50))
        others.append(whole(number, 2 * first, 2 * first + 3 * span, 50))
    ones[3] = Answer(3, error="timeout")
    others.append(whole(77, 0.001, 0.002, 50))
    found = {r.measure: r for r in ratios(Result(TARGET, ones), Result(TARGET, others[::-1]))}
    assert found["first_token"].ratio == pytest.approx(0.5)
    assert found["time_a_token"].ratio == pytest.approx(1 / 3, rel=1e-3)
    assert {ratio.requests for ratio in found.values()} == {59}
    assert found["tok_s"].low < found["tok_s"].high
    for ratio in found.values():
        assert ratio.low <= ratio.ratio <= ratio.high


def test_the_interval_holds_what_the_servers_differ_by() -> None:
    """Two servers that are equally fast: in about 95 of 100 runs the interval holds 1."""
    held = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        one = [whole(n, 0.1, random.lognormal(0, 0.4), 50) for n in range(40)]
        other = [whole(n, 0.1, random.lognormal(0, 0.4), 50) for n in range(40)]
        (speed, *_) = ratios(Result(TARGET, one), Result(TARGET, other))
        held += speed.low <= 1 <= speed.high
    assert 51 <= held <= 60
