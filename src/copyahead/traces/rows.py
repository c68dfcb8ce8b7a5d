"""The table of a replay: a row for each category, policy and cost, and one of `all` categories."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from copyahead.traces.corpus import Corpus
from copyahead.traces.replay import Phases, Tally
from copyahead.traces.runs import Cost, Results, Run

ALL = "all"


class Figures(msgspec.Struct, frozen=True):
    """What one tally comes to at one cost."""

    requests: int
    emitted: int
    speedup: float
    """Emitted tokens a unit of time, with a pass of one row as the unit: 1.0 is plain decoding."""
    tokens_per_round: float
    drafted_per_round: float
    silent_share: float
    """Rounds without a draft."""
    limit_share: float | None
    """The speed-up as a share of the copying limit's at the same cost. None where there is no
    limit: with a store, which it does not know, and where the drafter was faster."""


class Row(msgspec.Struct, frozen=True):
    """One row of the table."""

    category: str
    policy: str
    cost: float | str
    """A row's cost where the curve is a straight line, else the curve's name."""
    hybrid: str | None
    """The rule between copies and recorded drafts; `alone`: drafts only; None: copies only."""
    draft_cost: float | None
    """What a pass of the draft model cost over one row, where one took part."""
    speedup: float
    tokens_per_round: float
    drafted_per_round: float
    silent_share: float
    limit_share: float | None
    draft_us: float
    """Mean time of `propose` a round, microseconds."""
    settle_us: float
    """Mean time of `settle` a round: indexing and learning."""
    model_passes_per_round: float
    """Passes of the draft model."""
    model_share: float
    """The part of the time that they took."""
    accepted_share: float
    """Drafted tokens that were kept."""
    accepted_from: dict[str, float]
    """Share of the kept drafted tokens by the source that they were copied from."""
    requests: int
    repeated: int
    """Requests that read and wrote the very tokens of an earlier one."""
    emitted: int
    cold: Figures | None
    """First requests of their session; None where there are none."""
    warm: Figures | None
    """All later ones."""
    opening: Figures | None
    """Of first requests, the rounds that start within the first 32 tokens of their answer."""


def categories_shown(rows: Sequence[Row]) -> list[str]:
    """The categories in order; `all` only beside more than one, as it says the same of one."""
    names = list(dict.fromkeys(row.category for row in rows))
    return names[:1] if len(names) == 2 else names


def make_rows(
    corpus: Corpus,
    runs: Sequence[Run],
    results: Results,
    limits: dict[int, Phases] | None,
    costs: Sequence[Cost],
) -> list[Row]:
    """The rows in order of category, policy, and cost; `all` last.

    `limits`: the copying limit of each category, where it was computed. A run with a store has
    none, as the limit copies only from the request's own text.
    """
    rows = []
    for category in [*range(len(corpus.categories)), None]:
        name = ALL if category is None else corpus.categories[category]
        if not any(_of(found, category).both().requests for found in results):
            continue
        own = None if limits is None else _of(limits, category)
        for run, found in zip(runs, results, strict=True):
            phases = _of(found, category)
            # The limit knows copies of the request's own text only.
            limit = None if run.shared.shared or run.beside is not None else own
            for cost in [run.cost] if run.cost is not None else costs:
                rows.append(_row(name, run, cost, phases, limit))
    return rows


def _of(found: dict[int, Phases], category: int | None) -> Phases:
    if category is not None:
        return found.get(category, Phases())
    total = Phases()
    for phases in found.values():
        total += phases
    return total


def _row(name: str, run: Run, cost: Cost, phases: Phases, limit: Phases | None) -> Row:
    tally = phases.both()
    beside = run.beside
    figures = _figures(tally, limit.both() if limit else None, cost)
    rounds, drafted = max(1, tally.rounds), max(1, tally.num_draft_tokens)
    kept = sum(tally.accepted_from.values())
    return Row(
        category=name,
        policy=run.name,
        cost=cost.name if cost.row_cost is None else cost.row_cost,
        hybrid=beside.rule if beside is not None else None,
        draft_cost=beside.price.of_pass if beside is not None else None,
        speedup=figures.speedup,
        tokens_per_round=figures.tokens_per_round,
        drafted_per_round=figures.drafted_per_round,
        silent_share=figures.silent_share,
        limit_share=figures.limit_share,
        draft_us=round(tally.propose_ns / rounds / 1e3, 2),
        settle_us=round(tally.settle_ns / rounds / 1e3, 2),
        model_passes_per_round=round(tally.model.passes / rounds, 4),
        model_share=round(tally.model.steps / max(1e-9, tally.cost(cost.curve)), 4),
        accepted_share=round(kept / drafted, 4),
        accepted_from={
            str(source): round(count / max(1, kept), 4)
            for source, count in sorted(tally.accepted_from.items())
        },
        requests=tally.requests,
        repeated=tally.repeated,
        emitted=tally.emitted,
        cold=_phase(phases.cold, limit.cold if limit else None, cost),
        warm=_phase(phases.warm, limit.warm if limit else None, cost),
        opening=_phase(phases.opening, None, cost),
    )


def _phase(tally: Tally, limit: Tally | None, cost: Cost) -> Figures | None:
    return _figures(tally, limit, cost) if tally.requests else None


def _figures(tally: Tally, limit: Tally | None, cost: Cost) -> Figures:
    rounds = max(1, tally.rounds)
    speedup = tally.speedup(cost.curve)
    best = limit.speedup(cost.curve) if limit is not None else 0.0
    share = round(speedup / best, 4) if best else None
    return Figures(
        requests=tally.requests,
        emitted=tally.emitted,
        speedup=round(speedup, 4),
        tokens_per_round=round(tally.emitted / rounds, 4),
        drafted_per_round=round(tally.num_draft_tokens / rounds, 4),
        silent_share=round(int(tally.drafted[0]) / rounds, 4),
        limit_share=share if share is not None and share <= 1.0 else None,
    )
