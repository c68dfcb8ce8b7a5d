"""Who gets the rows of a pass, when several requests want to draft.

Drafts with survivals compete: rows are worth it, the highest survival first, while they raise the
expected tokens per cost of the whole step, and where there is no room for all of these everybody's
first one goes before anybody's second. Drafts of fixed length are only capped, evenly.

A pass is as long for an answer that drafts nothing as for one that copies a whole file. So nobody's
tokens may take more than a quarter longer than in a pass without drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from copyahead.step_cost import StepCost
from copyahead.types import Draft

MAX_SLOWDOWN = 1.25
"""How many times as long as without drafts a token may take, for the drafts of others."""


def allocate(
    drafts: Sequence[Draft],
    max_rows: int,
    num_rows: int,
    cost: StepCost,
    measured: StepCost | None = None,
) -> list[Draft]:
    """The same drafts, each shortened where needed, together at most `max_rows` tokens long.

    `num_rows` rows are in the pass before anyone drafts; `cost` is that of the whole pass, and
    `measured` what it was when nothing else ran: beside other programs rows look cheaper than they
    are, and nobody's tokens are to be slow for that.
    """
    costs = (cost,) if measured is None else (cost, measured)
    if len(drafts) == 1 and num_rows == 1:
        return [drafts[0].first(max(0, max_rows))]
    # Tokens that were drawn are not to be cut by what others drew; their drafters see to it that
    # they fit.
    drawn = _share_evenly([len(draft.draft_probs) for draft in drafts], max_rows)
    given = drafts
    while True:
        # Whoever gets less than was asked for bears less.
        max_rows = min(max_rows, _bearable(given, max_rows, num_rows, costs))
        lengths = _shared(drafts, drawn, max_rows, num_rows, cost)
        given = [draft.first(length) for draft, length in zip(drafts, lengths, strict=True)]
        if sum(lengths) <= max(sum(drawn), _bearable(given, max_rows, num_rows, costs)):
            return given


def _shared(
    drafts: Sequence[Draft], drawn: Sequence[int], max_rows: int, num_rows: int, cost: StepCost
) -> list[int]:
    """How long each draft may be: the drawn tokens first, then fixed drafts, then the likeliest."""
    lengths = list(drawn)
    left = max_rows - sum(lengths)
    fixed = [0 if draft.survivals else len(draft) - len(draft.draft_probs) for draft in drafts]
    for place, length in enumerate(_share_evenly(fixed, left)):
        lengths[place] += length
    left = max_rows - sum(lengths)
    offered = [draft.survivals if draft.tokens else () for draft in drafts]
    for place, length in enumerate(_by_survival(offered, left, num_rows + sum(lengths), cost)):
        lengths[place] += length
    return lengths


def _bearable(
    drafts: Sequence[Draft], max_rows: int, num_rows: int, costs: Sequence[StepCost]
) -> int:
    """Most drafted rows in a pass that every answer can bear that gets these drafts, at most
    `max_rows`."""
    if len(drafts) == 1 or max_rows <= 0:
        return max_rows
    least = min(sum(d.survivals) if d.tokens and d.survivals else len(d) for d in drafts)
    for cost in costs:
        curve = cost.curve(num_rows + max_rows)[num_rows:]
        longest = MAX_SLOWDOWN * curve[0] * (1.0 + least)
        max_rows = int(np.searchsorted(curve, longest, side="right")) - 1
    return max_rows


def _share_evenly(wanted: Sequence[int], budget: int) -> list[int]:
    """Cut the longest first, until all together fit."""
    lengths = list(wanted)
    excess = sum(lengths) - max(0, budget)
    while excess > 0:
        longest = max(range(len(lengths)), key=lengths.__getitem__)
        lengths[longest] -= 1
        excess -= 1
    return lengths


def _by_survival(
    offered: Sequence[Sequence[float]], budget: int, base_rows: int, cost: StepCost
) -> list[int]:
    """How many rows each offer gets: those that pay, and of too many each answer's first ones.

    Survivals fall along a draft, so taking rows in their order always takes prefixes. `base_rows`
    are in the pass anyhow. The step emits one token a request and, expected, one survival more a
    row; the rows with the most of that for their cost are worth it. Where they are more than
    `budget`, everybody's first row goes before anybody's second: a copy that is certain does not
    take the place of another's likely one.
    """
    rows = sorted(
        (-survival, place, position)
        for place, survivals in enumerate(offered)
        for position, survival in enumerate(survivals)
    )
    lengths = [0] * len(offered)
    if not rows or budget <= 0:
        return lengths
    curve = cost.curve(base_rows + len(rows))
    expected = float(len(offered))
    best, taken = expected / curve[base_rows], 0
    for count, (survival, _, _) in enumerate(rows, start=1):
        expected -= survival
        rate = expected / curve[base_rows + count]
        if rate > best:
            best, taken = rate, count
    worth = rows[:taken]
    if taken > budget:
        worth = sorted(worth, key=lambda row: (row[2], row[0], row[1]))[:budget]
    for _, place, _ in worth:
        lengths[place] += 1
    return lengths
