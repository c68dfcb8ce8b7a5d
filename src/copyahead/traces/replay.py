"""Replay: what a policy would have done, teacher-forced on what a model really wrote.

Every request drafts through the very `DraftSession` that serves it in production; the recorded
answer stands for the model's. Turns of one session attach to one row, as they do in the engine.
Limits: the model is assumed to write the same text again, and a step's cost to be a fixed curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import cast

import numpy as np
import numpy.typing as npt

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Drafter, DraftSession
from copyahead.step_cost import StepCost
from copyahead.traces.corpus import BASE, COLD, END, REPEATED, START, Corpus
from copyahead.traces.drafts.recorded import ModelCost, RecordedDrafter
from copyahead.traces.limit import limit_rounds, longest_earlier_matches
from copyahead.types import Source, Token

Counts = npt.NDArray[np.int64]

OPENING = 32
"""Tokens of an answer that count as its beginning."""

_SOURCES = tuple(Source)


def _counts() -> Counts:
    return np.zeros(MAX_DRAFT_TOKENS + 1, dtype=np.int64)


@dataclass
class Tally:
    """Sums over the rounds of some requests. Adds up."""

    requests: int = 0
    repeated: int = 0
    emitted: int = 0
    drafted: Counts = field(default_factory=_counts)
    """`drafted[k]`: rounds that drafted k tokens."""
    accepted: Counts = field(default_factory=_counts)
    """`accepted[k]`: rounds with a draft of which k tokens were kept."""
    accepted_from: dict[str, int] = field(default_factory=dict)
    """Accepted tokens by the source of their draft."""
    model: ModelCost = field(default_factory=ModelCost)
    """Passes of a draft model, where one was recorded and took part."""
    propose_ns: int = 0
    settle_ns: int = 0

    @property
    def rounds(self) -> int:
        """All rounds."""
        return int(self.drafted.sum())

    @property
    def num_draft_tokens(self) -> int:
        """All drafted tokens."""
        return int(self.drafted @ np.arange(len(self.drafted)))

    def cost(self, step_cost: StepCost) -> float:
        """Time of all rounds, a draft model's passes included, in passes of one row."""
        return float(self.drafted @ step_cost.curve(MAX_DRAFT_TOKENS + 1)[1:]) + self.model.steps

    def speedup(self, step_cost: StepCost) -> float:
        """Emitted tokens a unit of that time: 1.0 is plain decoding; 0.0 where there are none."""
        return self.emitted / self.cost(step_cost) if self.emitted else 0.0

    def __iadd__(self, other: Tally) -> Tally:
        self.requests += other.requests
        self.repeated += other.repeated
        self.emitted += other.emitted
        self.drafted += other.drafted
        self.accepted += other.accepted
        for source, count in other.accepted_from.items():
            self.accepted_from[source] = self.accepted_from.get(source, 0) + count
        self.model += other.model
        self.propose_ns += other.propose_ns
        self.settle_ns += other.settle_ns
        return self


@dataclass
class Phases:
    """First requests of a session (`cold`) and those after them (`warm`), apart."""

    cold: Tally = field(default_factory=Tally)
    warm: Tally = field(default_factory=Tally)
    opening: Tally = field(default_factory=Tally)
    """What of `cold` are the rounds that start within the first `OPENING` tokens of an answer."""

    def of(self, cold: bool) -> Tally:
        """One of them."""
        return self.cold if cold else self.warm

    def both(self) -> Tally:
        """Their sum."""
        total = Tally()
        total += self.cold
        total += self.warm
        return total

    def __iadd__(self, other: Phases) -> Phases:
        self.cold += other.cold
        self.warm += other.warm
        self.opening += other.opening
        return self


def replay_sessions(
    corpus: Corpus,
    spans: Sequence[tuple[int, int]],
    make_drafter: Callable[[int], Drafter],
    on_session: Callable[[int], None] | None = None,
    recorded: RecordedDrafter | None = None,
) -> Phases:
    """Replay the sessions in `spans`, one after another, on one drafter.

    `make_drafter` gets the tokens that its one row must hold; `on_session` the tokens that a
    session wrote. `recorded`: the part of the drafter that stands for a draft model, which is
    told the requests and whose passes count.
    """
    if not spans:
        return Phases()
    longest = max(int(corpus.requests[first:last, END].max()) for first, last in spans)
    drafter = make_drafter(longest)
    phases = Phases()
    for first, last in spans:
        written = 0
        for number, request in enumerate(corpus.requests[first:last], start=first):
            if recorded is not None:
                recorded.begin(number)
            _replay_request(corpus, request, drafter, phases, recorded)
            written += int(request[END] - request[START])
        if on_session is not None:
            on_session(written)
    return phases


def _replay_request(
    corpus: Corpus,
    request: npt.NDArray[np.int64],
    drafter: Drafter,
    phases: Phases,
    recorded: RecordedDrafter | None,
) -> None:
    base, start, end = int(request[BASE]), int(request[START]), int(request[END])
    stream = corpus.tokens[base : base + end]
    session = drafter.open(stream[:start], slot=0)  # type: ignore[arg-type]
    answer = stream[start:].tolist()
    is_cold = bool(request[COLD])
    opening = Tally(requests=1, repeated=int(request[REPEATED]))
    rest, at = Tally(), 0
    try:
        if is_cold:
            at = _rounds(session, answer, 0, min(OPENING, len(answer)), opening)
            _take_model(opening, recorded)
        _rounds(session, answer, at, len(answer), rest)
        _take_model(rest, recorded)
    finally:
        session.close()
    tally = phases.of(is_cold)
    tally += opening
    tally += rest
    if is_cold:
        phases.opening += opening


def _take_model(tally: Tally, recorded: RecordedDrafter | None) -> None:
    """Charge a draft model's passes since the last call to `tally`."""
    if recorded is not None:
        tally.model += recorded.cost
        recorded.cost = ModelCost()


def _rounds(
    session: DraftSession, answer: list[Token], begin: int, until: int, tally: Tally
) -> int:
    """Do the rounds that start at places `begin` to `until - 1` of `answer`; where the next starts.

    A draft may reach past the end of `answer` in vain.
    """
    at, end = begin, len(answer)
    propose, settle = session.propose, session.settle
    drafted, accepted = [0] * (MAX_DRAFT_TOKENS + 1), [0] * (MAX_DRAFT_TOKENS + 1)
    sources = dict.fromkeys(_SOURCES, 0)
    propose_ns = settle_ns = 0
    while at < until:
        began = perf_counter_ns()
        draft = propose(MAX_DRAFT_TOKENS)
        proposed = perf_counter_ns()
        kept = 0
        for token in draft.tokens:
            if at + kept >= end or token != answer[at + kept]:
                break
            kept += 1
        emitted = answer[at : at + kept + 1]
        ready = perf_counter_ns()
        settle(draft, emitted)
        settle_ns += perf_counter_ns() - ready
        propose_ns += proposed - began
        at += len(emitted)
        drafted[len(draft.tokens)] += 1
        if draft.source is not None:
            accepted[kept] += 1
            for position in range(kept) if draft.parts else ():
                sources[cast(Source, draft.source_at(position))] += 1
            if not draft.parts:
                sources[draft.source] += kept
    tally.emitted += at - begin
    tally.drafted += np.array(drafted)
    tally.accepted += np.array(accepted)
    for source, count in sources.items():
        if count:
            tally.accepted_from[source] = tally.accepted_from.get(source, 0) + count
    tally.propose_ns += propose_ns
    tally.settle_ns += settle_ns
    return at


def limit_sessions(
    corpus: Corpus,
    spans: Sequence[tuple[int, int]],
    on_session: Callable[[int], None] | None = None,
) -> Phases:
    """The copying limit of the same sessions, as a tally whose drafts are all accepted."""
    phases = Phases()
    for first, last in spans:
        requests = corpus.requests[first:last]
        for base in np.unique(requests[:, BASE]):
            mine = requests[requests[:, BASE] == base]
            stream = corpus.tokens[base : base + int(mine[:, END].max())]
            lengths = longest_earlier_matches(stream)
            for request in mine:
                start, end = int(request[START]), int(request[END])
                counts = limit_rounds(lengths, start, end)
                tally = phases.of(bool(request[COLD]))
                tally.requests += 1
                tally.repeated += int(request[REPEATED])
                tally.emitted += end - start
                tally.drafted += counts
                tally.accepted += counts
        if on_session is not None:
            on_session(int((requests[:, END] - requests[:, START]).sum()))
    return phases
