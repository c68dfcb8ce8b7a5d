"""The two halves of recorded text, and the settings that the first chooses for the second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from copyahead.step_cost import StepCost
from copyahead.traces.corpus import END, START, Corpus

AFTER = 200_000
"""Of one long session, what comes before this token is only read."""
FEWEST = 4
"""Of fewer sessions no half is kept for tuning: settings are chosen on what is scored."""
RUN = 16
"""Neighbours that are taken together from a long session."""
LONG = 240_000
"""Tokens of the history that times are taken over."""


class Halves(NamedTuple):
    """Rows of the requests that settings are chosen on, and of those that are scored."""

    tuning: list[int]
    scored: list[int]


def halves(corpus: Corpus, *, tuning: int, scored: int, fresh: bool) -> Halves:
    """The first half of each category's sessions, and the second; at most so many written tokens.

    Sessions are taken in a fixed random order. A lone session is halved by its tokens. `fresh`:
    only the first request of each session.
    """
    first: list[int] = []
    second: list[int] = []
    for category in range(len(corpus.categories)):
        sessions = [list(range(*span)) for span in corpus.sessions(category)]
        if fresh:
            sessions = [session[:1] for session in sessions]
        if len(sessions) == 1 and not fresh:
            early, late = in_two(corpus, sessions[0])
            first += spread(corpus, early, tuning)
            second += spread(corpus, late, scored)
            continue
        half = (len(sessions) + 1) // 2 if len(sessions) >= FEWEST else 0
        first += sample(corpus, sessions[:half] or sessions, tuning)
        second += sample(corpus, sessions[half:], scored)
    return Halves(first, second)


def in_two(corpus: Corpus, session: list[int]) -> tuple[list[int], list[int]]:
    """Requests of the first half of a session's text, and of the second; see `AFTER`."""
    starts = corpus.requests[session, START]
    later = [row for row, start in zip(session, starts, strict=True) if start >= AFTER] or session
    middle = int(corpus.requests[session, END].max()) // 2
    early = [row for row in later if corpus.requests[row, START] < middle]
    late = [row for row in later if corpus.requests[row, START] >= middle]
    return early or late, late or early


def spread(corpus: Corpus, rows: list[int], budget: int) -> list[int]:
    """Of `rows`, runs of `RUN` neighbours from all over them that write about `budget` tokens."""
    runs = [rows[n : n + RUN] for n in range(0, len(rows), RUN)]
    written = int((corpus.requests[rows, END] - corpus.requests[rows, START]).sum())
    share = min(1.0, budget / max(1, written))
    return [
        row
        for number, run in enumerate(runs)
        if int((number + 1) * share) > int(number * share)
        for row in run
    ]


def sample(corpus: Corpus, sessions: Sequence[list[int]], budget: int) -> list[int]:
    """The requests of whole sessions, in a fixed random order, that write at most `budget`."""
    rows: list[int] = []
    for place in np.random.default_rng(0).permutation(len(sessions)):
        members = sessions[place]
        size = int((corpus.requests[members, END] - corpus.requests[members, START]).sum())
        if size <= budget:
            budget -= size
            rows += members
    return rows


def save(corpus: Corpus, rows: Sequence[int], path: Path) -> int:
    """The requests of `rows`, and one long stream for the times; returns the tokens written."""
    requests = corpus.requests[list(rows)]
    longest = corpus.requests[np.argmax(corpus.requests[:, END])]
    stream = corpus.tokens[longest[0] : longest[0] + longest[END]]
    np.savez(
        path,
        tokens=corpus.tokens,
        requests=requests,
        categories=np.array(corpus.categories),
        vocab_size=corpus.vocab_size,
        end_tokens=np.array(corpus.end_tokens, dtype=np.int32),
        long=np.resize(stream, LONG),
    )
    return int((requests[:, END] - requests[:, START]).sum())


class Score(NamedTuple):
    """What one setting comes to at one cost."""

    speedup: float
    tokens_per_round: float
    drafted_per_round: float
    draft_us: float
    opening: float
    """The speed-up over the rounds that start within the first 32 tokens of an answer."""


def score(tally: dict[str, Any], cost: float) -> Score:
    """The figures of a worker's tally, see `worker.Tally`."""
    drafted, opening = np.array(tally["drafted"]), np.array(tally["opening_drafted"])
    rounds = max(1, int(drafted.sum()))
    curve = StepCost.linear(cost).curve(len(drafted))[1:]
    return Score(
        round(tally["emitted"] / float(drafted @ curve), 4),
        round(tally["emitted"] / rounds, 4),
        round(float(drafted @ np.arange(len(drafted))) / rounds, 4),
        round(tally["nanoseconds"] / rounds / 1e3, 2),
        round(tally["opening_emitted"] / float(opening @ curve), 4),
    )


def choose(tuned: dict[str, dict[str, Any]], cost: float) -> str:
    """The fastest of some settings, by their tallies where they are chosen; the first of equals."""
    return max(tuned, key=lambda setting: score(tuned[setting], cost).speedup)
