"""Bars in groups with their spread, as inline SVG: a group for each place, a bar for each name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from copyahead.traces.plots import COLOURS

_WIDTH, _HEIGHT = 400, 250
_RIGHT, _TOP, _BOTTOM = 8, 12, 44
_DIGIT = 6.6
"""About how wide a digit is."""
_MARKS = 5
"""At most so many steps between two marks of the vertical axis."""
_APART = 0.35
"""The gap before a place that stands apart, in widths of a group."""


class Bar(NamedTuple):
    """A value at one of the places, and between which two most of what it stands for lies."""

    place: int
    value: float
    low: float | None = None
    high: float | None = None


class _Frame(NamedTuple):
    """Where on the plot a value and a place are."""

    left: float
    group: float
    """Width of a group."""
    top: float
    """The value at the upper edge; 0 is at the lower one."""

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / self.top


def grouped_bars(
    series: Mapping[str, Sequence[Bar]],
    places: Sequence[str],
    *,
    across: str,
    up: str,
    share: bool = False,
    apart: bool = False,
) -> str:
    """The plot; `across` and `up` are the titles of the axes, units included.

    `share`: values are from 0 to 1, and shown as per cent. `apart`: the last place is of another
    kind than those before, as a total is, and stands behind a line.
    """
    bars = [bar for each in series.values() for bar in each]
    highest = max((max(bar.value, bar.high or 0.0) for bar in bars), default=0.0) or 1.0
    step = 0.2 if share else _step(highest)
    marks = [number * step for number in range((5 if share else math.ceil(highest / step)) + 1)]
    labels = [f"{mark:.0%}" if share else f"{mark:,.10g}" for mark in marks]
    left = 26 + _DIGIT * max(map(len, labels))
    room = len(places) + (_APART if apart else 0.0)
    frame = _Frame(left, (_WIDTH - left - _RIGHT) / max(1.0, room), marks[-1])
    parts = [_axis(frame, marks, labels), _titles(frame, across, up)]
    for number, place in enumerate(places):
        start = _start(frame, number, len(places), apart)
        parts.append(_text(start + frame.group / 2, _HEIGHT - 27, place, "middle"))
        if apart and number == len(places) - 1:
            parts.append(_line(start - _APART / 2 * frame.group, _TOP, _HEIGHT - 23, ".25"))
    width = 0.76 * frame.group / max(1, len(series))
    for number, (name, mine) in enumerate(series.items()):
        for bar in mine:
            x = _start(frame, bar.place, len(places), apart) + 0.12 * frame.group + number * width
            parts.append(_bar(bar, x, width, frame, COLOURS[number % len(COLOURS)], name, share))
    label = escape(f"{up} by {across}", quote=True)
    return (
        f"<svg role='img' aria-label='{label}' width='{_WIDTH}' height='{_HEIGHT}' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}'>{''.join(parts)}</svg>"
    )


def _step(highest: float) -> float:
    """1, 2 or 5 times a power of ten."""
    step = 10 ** math.floor(math.log10(highest / _MARKS))
    return float(step * next(factor for factor in (1, 2, 5, 10) if highest / step / factor <= 5))


def _start(frame: _Frame, place: int, places: int, apart: bool) -> float:
    gap = _APART if apart and place == places - 1 else 0.0
    return frame.left + (place + gap) * frame.group


def _bar(
    bar: Bar, x: float, width: float, frame: _Frame, colour: str, name: str, share: bool
) -> str:
    y, form = frame.y(bar.value), ".1%" if share else ",.4g"
    spread, said = "", ": ".join(filter(None, (name, f"{bar.value:{form}}")))
    if bar.low is not None and bar.high is not None:
        middle, cap = x + width / 2, min(4.0, width / 3)
        low, high = frame.y(bar.low), frame.y(bar.high)
        path = f"M{middle:.1f} {low:.1f}V{high:.1f}M{middle - cap:.1f} {high:.1f}h{2 * cap:.1f}"
        path += f"M{middle - cap:.1f} {low:.1f}h{2 * cap:.1f}"
        spread = f"<path d='{path}' stroke='currentColor' stroke-width='1.3' fill='none'/>"
        said += f" ({bar.low:{form}} to {bar.high:{form}})"
    return (
        f"<g><title>{escape(said)}</title><rect x='{x:.1f}' y='{y:.1f}' "
        f"width='{max(width - 1.5, 1):.1f}' height='{max(frame.y(0) - y, 0):.1f}' fill='{colour}'/>"
        f"{spread}</g>"
    )


def _axis(frame: _Frame, marks: Sequence[float], labels: Sequence[str]) -> str:
    parts = []
    for mark, label in zip(marks, labels, strict=True):
        y = frame.y(mark)
        parts.append(
            f"<line x1='{frame.left:.1f}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' "
            f"stroke='currentColor' stroke-opacity='{'.16' if mark else '.7'}'/>"
            + _text(frame.left - 6, y + 4, label, "end")
        )
    return "".join(parts)


def _line(x: float, top: float, bottom: float, opacity: str) -> str:
    return (
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}' stroke='currentColor' "
        f"stroke-opacity='{opacity}'/>"
    )


def _titles(frame: _Frame, across: str, up: str) -> str:
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    return (
        _text((frame.left + _WIDTH - _RIGHT) / 2, _HEIGHT - 7, across, "middle")
        + f"<text transform='translate(12 {middle:.0f}) rotate(-90)' text-anchor='middle' "
        f"font-size='11.5' fill='currentColor'>{escape(up)}</text>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='11.5' "
        f"fill='currentColor'>{escape(text)}</text>"
    )
