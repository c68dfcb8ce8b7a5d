"""The HTML report of a replay: one file, its plots drawn in place, readable without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from copyahead.traces.formats.importers import Trace
from copyahead.traces.plots import bars, legend, lines
from copyahead.traces.rows import Row, categories_shown

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2430; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem } h3 { font-size: 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem }
th, td { padding: .18rem .6rem; text-align: right; border-bottom: 1px solid #e3e7ee }
th:first-child, td:first-child { text-align: left } .note { color: #5a6577 }
.wide { overflow-x: auto } .plots { display: flex; flex-wrap: wrap; gap: 1rem } figure { margin: 0 }
figcaption { font-size: .85rem; color: #5a6577 }
@media (prefers-color-scheme: dark) { body { color: #e4e8ef; background: #14181f }
  th, td { border-color: #2c3440 } .note, figcaption { color: #9aa5b5 } }
"""
_COLUMNS = (
    "policy", "cost", "speed-up", "tokens/round", "drafted/round", "silent", "of limit",
    "draft µs", "cold", "warm",
)  # fmt: skip


def html_report(traces: Sequence[Trace], tokenizer: str, rows: Sequence[Row]) -> str:
    """The whole page."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>copyahead replay</title><style>{STYLE}</style>",
        "<h1>copyahead replay</h1>",
        f"<p class='note'>Teacher-forced: no model was run. Tokenised with {escape(tokenizer)}. "
        "Speed-up is emitted tokens over the cost of their passes, in passes of one row; "
        "1.00 is plain decoding.</p>",
        _sources(traces),
    ]
    for category in categories_shown(rows):
        mine = [row for row in rows if row.category == category]
        parts += [f"<h2>{escape(category)}</h2>", _summary(mine[0]), _plots(mine), _table(mine)]
    return "\n".join(parts) + "\n"


def _summary(row: Row) -> str:
    repeated = f", {row.repeated} of them repeated" if row.repeated else ""
    return f"<p class='note'>{row.requests} requests{repeated}; {row.emitted:,} tokens written.</p>"


def _sources(traces: Sequence[Trace]) -> str:
    lines_ = []
    for trace in traces:
        text = f"{escape(trace.path)}: {trace.num_sessions} sessions"
        skipped = sum(problem.count for problem in trace.problems if problem.skipped)
        if skipped:
            text += f", {skipped} parts skipped"
        lines_.append(f"<li>{text}")
        lines_ += [f"<li class='note'>{escape(str(problem))}" for problem in trace.problems[:20]]
    return f"<ul>{''.join(lines_)}</ul>"


def _name(row: Row) -> str:
    """What drafted, with the price of the draft model's passes where it took part."""
    return row.policy if row.draft_cost is None else f"{row.policy} at {row.draft_cost:g}"


def _plots(rows: Sequence[Row]) -> str:
    policies = list(dict.fromkeys(_name(row) for row in rows))
    costs = list(dict.fromkeys(str(row.cost) for row in rows))
    series = {
        policy: [(costs.index(str(r.cost)), r.speedup) for r in rows if _name(r) == policy]
        for policy in policies
    }
    first = [next(row for row in rows if _name(row) == policy) for policy in policies]
    sources = {
        _name(row): [(name, part * row.accepted_share) for name, part in row.accepted_from.items()]
        for row in first
    }
    kept = f"share of drafted tokens kept, by their source, at cost {first[0].cost}"
    return (
        "<div class='plots'>"
        f"<figure>{lines(series, costs)}<figcaption>speed-up by cost of a row</figcaption></figure>"
        f"<figure>{bars(sources)}<figcaption>{escape(kept)}</figcaption></figure></div>"
        f"{legend(policies)}"
    )


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(r))}</tr>" for r in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(row: Row) -> list[str]:
    return [
        escape(_name(row)),
        escape(str(row.cost)),
        f"{row.speedup:.2f}",
        f"{row.tokens_per_round:.2f}",
        f"{row.drafted_per_round:.2f}",
        f"{row.silent_share:.0%}",
        "" if row.limit_share is None else f"{row.limit_share:.0%}",
        f"{row.draft_us:.1f}",
        f"{row.cold.speedup:.2f}" if row.cold else "",
        f"{row.warm.speedup:.2f}" if row.warm else "",
    ]
