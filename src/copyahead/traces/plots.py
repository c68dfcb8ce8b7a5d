"""Two kinds of plot as inline SVG: lines over named places, and stacked bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[int, float]
"""Which of the named places, and the value there."""

COLOURS = ("#2166c4", "#d1603d", "#2f9e6e", "#8d5cc4", "#b58900", "#c2417c", "#4a9bb5", "#7a7f8a")
_WIDTH, _HEIGHT = 430, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 12, 28


def lines(series: Mapping[str, Sequence[Point]], places: Sequence[str]) -> str:
    """A line for each name; the vertical axis starts at 0, with a mark at plain speed, 1.0."""
    top = max([1.2, *(value for points in series.values() for _, value in points)]) * 1.05
    parts = [_axis(top), _horizontal(1.0, top, "4 3")]
    for number, place in enumerate(places):
        parts.append(_text(_x(number, len(places)), _HEIGHT - 8, place, "middle"))
    for number, points in enumerate(series.values()):
        colour = COLOURS[number % len(COLOURS)]
        placed = [(_x(place, len(places)), _y(value, top)) for place, value in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>" for x, y in placed]
    return _svg(parts, "speed-up of each policy by cost of a row")


def bars(stacks: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """A stack of named shares, at most 1 together, for each name."""
    parts = [_axis(1.0)]
    width = (_WIDTH - _LEFT - _RIGHT) / max(1, len(stacks))
    kinds = sorted({kind for stack in stacks.values() for kind, _ in stack})
    for number, stack in enumerate(stacks.values()):
        bottom = 0.0
        x = _LEFT + number * width + width * 0.2
        for kind, share in stack:
            y, height = _y(bottom + share, 1.0), _y(0, 1.0) - _y(share, 1.0)
            opacity = 1 - 0.35 * kinds.index(kind)
            parts.append(
                f"<rect x='{x:.1f}' y='{y:.1f}' width='{width * 0.6:.1f}' height='{height:.1f}' "
                f"fill='{COLOURS[number % len(COLOURS)]}' fill-opacity='{max(opacity, 0.2):.2f}'>"
                f"<title>{escape(kind)} {share:.0%}</title></rect>"
            )
            bottom += share
    parts.append(_text(_LEFT, _HEIGHT - 8, "dark to light: " + ", ".join(kinds), "start"))
    return _svg(parts, "share of drafted tokens kept")


def legend(names: Sequence[str]) -> str:
    """The colour of each name."""
    items = (
        f"<span style='color:{COLOURS[n % len(COLOURS)]}'>&#9632;</span> {escape(name)}"
        for n, name in enumerate(names)
    )
    return f"<p>{'&emsp;'.join(items)}</p>"


def _svg(parts: Sequence[str], title: str) -> str:
    return (
        f"<svg role='img' aria-label='{escape(title)}' width='{_WIDTH}' height='{_HEIGHT}' "
        f"viewBox='0 0 {_WIDTH} {_HEIGHT}'>{''.join(parts)}</svg>"
    )


def _axis(top: float) -> str:
    step = next(s for s in (0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if top / s <= 6)
    marks = [n * step for n in range(int(top / step) + 1)]
    return "".join(
        _horizontal(mark, top, "1 5") + _text(_LEFT - 6, _y(mark, top) + 4, f"{mark:g}", "end")
        for mark in marks
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-size='11' "
        f"fill='currentColor'>{escape(text)}</text>"
    )


def _horizontal(value: float, top: float, dashes: str) -> str:
    y = _y(value, top)
    return (
        f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}' "
        f"stroke='currentColor' stroke-opacity='.4' stroke-dasharray='{dashes}'/>"
    )


def _x(place: int, places: int) -> float:
    room = _WIDTH - _LEFT - _RIGHT - 24
    return _LEFT + 12 + (room / 2 if places == 1 else room * place / (places - 1))


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * value / top
