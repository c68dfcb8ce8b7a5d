"""The HTML report of logs: one file, its plots drawn in place, readable without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TypeVar

from copyahead.traces.logs.bands import ALL, BANDS
from copyahead.traces.logs.plots import Bar, grouped_bars
from copyahead.traces.logs.reading import KINDS, Log
from copyahead.traces.logs.rows import Ratio, Row, Spread
from copyahead.traces.plots import COLOURS, legend
from copyahead.traces.report import STYLE

T = TypeVar("T", Row, Ratio)
Column = tuple[str, Callable[[T], str]]
"""A heading, and what stands below it for a row."""


def figure(value: float | None, form: str = ".1f") -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else format(value, form)


COLUMNS: tuple[Column[Row], ...] = (
    ("requests", lambda r: f"{r.requests:,}"),
    ("failed", lambda r: f"{r.failed:,}"),
    ("tok/s p50", lambda r: figure(r.tok_s.p50)),
    ("p5", lambda r: figure(r.tok_s.p5)),
    ("p95", lambda r: figure(r.tok_s.p95)),
    ("first token ms p50", lambda r: figure(r.first_token_ms.p50, ",.0f")),
    ("p95", lambda r: figure(r.first_token_ms.p95, ",.0f")),
    ("drafted", lambda r: f"{r.drafted_tokens:,}"),
    ("accepted", lambda r: f"{r.accepted_tokens:,}"),
    ("share", lambda r: figure(r.acceptance, ".0%")),
    ("tok/round", lambda r: figure(r.tokens_per_round, ".2f")),
    ("prefix reuse", lambda r: figure(r.prefix_reuse, ".0%")),
)
"""What a table shows of a row, after its name."""
RATIO_COLUMNS: tuple[Column[Ratio], ...] = (
    ("requests", lambda r: f"{r.requests:,}"),
    ("of the other", lambda r: f"{r.requests_vs:,}"),
    ("tok/s", lambda r: figure(r.tok_s, ".2f")),
    ("first token", lambda r: figure(r.first_token, ".2f")),
    ("tok/round", lambda r: figure(r.tokens_per_round, ".2f")),
    ("accepted share", lambda r: figure(r.acceptance, ".2f")),
    ("prefix reuse", lambda r: figure(r.prefix_reuse, ".2f")),
)
_FIGURES: tuple[tuple[str, bool, Callable[[Row], Spread | float | None]], ...] = (
    ("decode speed (tok/s)", False, lambda row: row.tok_s),
    ("time to first token (ms)", False, lambda row: row.first_token_ms),
    ("tokens a round", False, lambda row: row.tokens_per_round),
    ("accepted of drafted tokens (%)", True, lambda row: row.acceptance),
    ("prompt tokens kept from before (%)", True, lambda row: row.prefix_reuse),
)
"""What is drawn, whether it is a share, and where a row has it."""
_ACROSS = "context at the end (1,024 tokens)"
_NOTE = (
    "<p class='note'>Speed and time are medians of requests, with whiskers from the 5th to the "
    "95th percentile; the others are of all tokens together.</p>"
)
_STYLE = """
.plots { gap: 1.4rem 2rem; margin: 1.2rem 0 2rem } .plots svg { max-width: 100%; height: auto }
figure { min-width: 0 } ul { padding-left: 1.1rem } li { overflow-wrap: anywhere }
"""


def names_of(row: Row | Ratio) -> list[str]:
    """What a row is about: its policy and day, where these are kept apart, and its band."""
    return [name for name in (row.policy, row.day) if name] + [row.band]


def headings(rows: Sequence[Row] | Sequence[Ratio]) -> list[str]:
    """The columns of `names_of`."""
    by_policy, by_day = any(row.policy for row in rows), any(row.day for row in rows)
    return ["policy"] * by_policy + ["day"] * by_day + ["context"]


def html_report(log: Log, other: Log | None, ratios: Sequence[Ratio]) -> str:
    """The whole page; `ratios` are `log` over `other`."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>copyahead logs</title><style>{STYLE}{_STYLE}</style>",
        "<h1>copyahead logs</h1>",
        _about(log),
        _table(headings(log.rows), COLUMNS, log.rows),
    ]
    if other is not None:
        parts += [
            "<h2>The other log</h2>",
            _about(other),
            _table(headings(other.rows), COLUMNS, other.rows),
            "<h2>The first over the other</h2>",
            "<p class='note'>Of medians. Above 1 the first is faster by tok/s; below 1 it is "
            "sooner by its first token.</p>",
            _table(headings(ratios), RATIO_COLUMNS, ratios),
        ]
    parts.append(f"<section><h2>By context</h2>{_plots(log, other)}</section>")
    return "\n".join(parts) + "\n"


def _about(log: Log) -> str:
    lines = [
        f"<li>{escape(str(file) if file.not_understood else f'{file.path}: {file.lines:,} lines')}"
        for file in log.files
    ]
    title = escape(f"{KINDS[log.format].title}; {log.note}.")
    return f"<p class='note'>{title}</p><ul>{''.join(lines)}</ul>"


def _table(first: Sequence[str], columns: Sequence[Column[T]], rows: Sequence[T]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (*first, *(name for name, _ in columns)))
    body = "".join(_line(row, columns) for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class='wide'>{table}</div>"


def _line(row: T, columns: Sequence[Column[T]]) -> str:
    cells = (*names_of(row), *(cell(row) for _, cell in columns))
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _plots(log: Log, other: Log | None) -> str:
    """A bar for each policy and day, and for the same of the other log."""
    logs = [("", log)]
    if other is not None:
        logs = [(_name("first", log), log), (_name("other", other), other)]
    series: dict[str, list[Row]] = {}
    for title, each in logs:
        for row in each.rows:
            name = " ".join(filter(None, (title, *names_of(row)[:-1])))
            series.setdefault(name, []).append(row)
    shown = dict(list(series.items())[: len(COLOURS)])
    used = {row.band for rows in shown.values() for row in rows}
    places = [band for band in BANDS if band in used]
    # Of one band alone, the total is the same.
    if len(places) != 1 or not all(places[0] in map(_band, rows) for rows in shown.values()):
        places.append(ALL)
    drawn = []
    for title, is_share, value in _FIGURES:
        bars = {name: _bars(rows, places, value) for name, rows in shown.items()}
        if any(bars.values()):
            plot = grouped_bars(
                bars, places, across=_ACROSS, up=title, share=is_share, apart=len(places) > 1
            )
            drawn.append(f"<figure>{plot}</figure>")
    left_out = len(series) - len(shown)
    more = f"<p class='note'>{left_out} more are in the table.</p>" if left_out else ""
    key = legend(list(shown)) if len(shown) > 1 else ""
    if not drawn:
        return "<p class='note'>There is no request to draw.</p>"
    return f"{key}{_NOTE}{more}<div class='plots'>{''.join(drawn)}</div>"


def _name(which: str, log: Log) -> str:
    """What a log is called beside another one."""
    names = [Path(file.path).name for file in log.files]
    return f"{which}: {names[0]}{' and more' if len(names) > 1 else ''}" if names else which


def _band(row: Row) -> str:
    return row.band


def _bars(
    rows: Sequence[Row], places: Sequence[str], value: Callable[[Row], Spread | float | None]
) -> list[Bar]:
    bars = []
    for row in rows:
        if row.band not in places:
            continue
        found, place = value(row), places.index(row.band)
        if isinstance(found, Spread):
            if found.p50 is not None:
                bars.append(Bar(place, found.p50, found.p5, found.p95))
        elif found is not None:
            bars.append(Bar(place, found))
    return bars
