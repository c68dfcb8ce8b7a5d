"""Bars in groups with their spread, as inline SVG: a group for each place, a bar for each name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from copyahead.traces.plots import COLOURS

_WIDTH, _HEIGHT = 460, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 14, 46
_MARKS = 5
"""About how many marks the vertical axis has."""


class Bar(NamedTuple):
    """A value at one of the places, and between which two most of what it stands for lies."""

    place: int
    value: float
    low: float | None = None
    high: float | None = None


def grouped_bars(
    series: Mapping[str, Sequence[Bar]], places: Sequence[str], *, across: str, up: str
) -> str:
    """The plot; `across` and `up` are the titles of the axes, units included."""
    bars = [bar for each in series.values() for bar in each]
    top = 1.06 * max((max(b.value, b.high or 0.0) for b in bars), default=1.0) or 1.0
    group = (_WIDTH - _LEFT - _RIGHT) / max(1, len(places))
    width = 0.8 * group / max(1, len(series))
    parts = [_axis(top), _titles(across, up)]
    for number, place in enumerate(places):
        parts.append(_text(_LEFT + (number + 0.5) * group, _HEIGHT - 28, place, "middle"))
    for number, (name, mine) in enumerate(series.items()):
        for bar in mine:
            x = _LEFT + bar.place * group + 0.1 * group + number * width
            parts.append(_bar(bar, x, width, top, COLOURS[number % len(COLOURS)], name))
    label = escape(f"{up} by {across}", quote=True)
    return (
        f"<svg role='img' aria-label='{label}' width='{_WIDTH}' height='{_HEIGHT}' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}'>{''.join(parts)}</svg>"
    )


def _bar(bar: Bar, x: float, width: float, top: float, colour: str, name: str) -> str:
    y = _y(bar.value, top)
    spread = ""
    said = f"{name}: {bar.value:.4g}"
    if bar.low is not None and bar.high is not None:
        middle = x + width / 2
        low, high = _y(bar.low, top), _y(bar.high, top)
        path = f"M{middle:.1f} {low:.1f}V{high:.1f}M{middle - 4:.1f} {high:.1f}h8"
        path += f"M{middle - 4:.1f} {low:.1f}h8"
        spread = f"<path d='{path}' stroke='currentColor' stroke-width='1.4' fill='none'/>"
        said += f" ({bar.low:.4g} to {bar.high:.4g})"
    return (
        f"<g><title>{escape(said)}</title><rect x='{x:.1f}' y='{y:.1f}' "
        f"width='{max(width - 2, 1):.1f}' height='{max(_y(0, top) - y, 0):.1f}' fill='{colour}'/>"
        f"{spread}</g>"
    )


def _axis(top: float) -> str:
    step = 10 ** math.floor(math.log10(top / _MARKS))
    step *= next(factor for factor in (1, 2, 5, 10) if top / (step * factor) <= _MARKS + 1)
    parts = []
    for number in range(int(top / step) + 1):
        y = _y(number * step, top)
        parts.append(
            f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' "
            "stroke='currentColor' stroke-opacity='.3' stroke-dasharray='1 5'/>"
            + _text(_LEFT - 6, y + 4, f"{number * step:g}", "end")
        )
    return "".join(parts)


def _titles(across: str, up: str) -> str:
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return (
        _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, across, "middle")
        + f"<text transform='translate(14 {middle:.0f}) rotate(-90)' text-anchor='middle' "
        f"font-size='11' fill='currentColor'>{escape(up)}</text>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='11' "
        f"fill='currentColor'>{escape(text)}</text>"
    )


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top
