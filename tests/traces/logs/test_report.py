"""The HTML report of logs."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from copyahead.traces.logs.plots import Bar, grouped_bars
from copyahead.traces.logs.reading import read_log
from copyahead.traces.logs.report import html_report
from copyahead.traces.logs.rows import make_ratios
from tests.traces.logs.test_own import LINE
from tests.traces.logs.test_reading import LLAMA, write

VOID = {"meta", "li"}


class Checked(HTMLParser):
    """Notes tags that are not closed, and addresses of other files."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.outside += [str(value) for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(page: str) -> Checked:
    checked = Checked()
    checked.feed(page)
    assert checked.open == ["html"]
    assert checked.outside == []
    assert "url(" not in page
    assert "@import" not in page
    return checked


def test_the_page_stands_alone_and_has_every_band(tmp_path: Path) -> None:
    lines = [LINE.replace(b"read=812", b"read=%d" % size) for size in (10, 9000, 20000, 50000)]
    log = read_log([write(tmp_path / "<log>", *lines, b"<script>rubbish")], by=["policy", "day"])
    page = html_report(log, None, [])
    checked = check(page)
    assert checked.tags.count("svg") == 5
    # What stands for what is only said where there is more than one.
    assert "&#9632;" not in page
    for band in ("0-8k", "8-16k", "16-32k", "32k+"):
        assert page.count(f">{band}<") == 6
    assert "<script" not in page
    assert "&lt;log&gt;" in page
    for title in (
        "decode speed (tok/s)",
        "time to first token (ms)",
        "context at the end (1,024 tokens)",
    ):
        assert title in page
    assert "prefers-color-scheme: dark" in page


def test_two_logs_are_drawn_beside_each_other(tmp_path: Path) -> None:
    own = read_log([write(tmp_path / "log", LINE)])
    other = read_log([str(LLAMA)])
    page = html_report(own, other, make_ratios(own.rows, other.rows))
    check(page)
    assert "</span> first: log" in page
    assert "</span> other: llama-server" in page
    assert "The first over the other" in page


def test_bars_are_as_high_as_their_values() -> None:
    series = {"a": [Bar(0, 10.0, 5.0, 20.0)], "b": [Bar(0, 20.0), Bar(1, 0.0)]}
    svg = grouped_bars(series, ["x", "y"], across="place", up="speed (m/s)")
    heights = [float(height) for height in re.findall(r"<rect [^>]*height='([\d.]+)'", svg)]
    assert len(heights) == 3
    assert abs(heights[1] - 2 * heights[0]) < 0.2
    assert heights[2] == 0
    assert "a: 10 (5 to 20)" in svg
    assert grouped_bars({}, [], across="place", up="speed").startswith("<svg")


def numbers(svg: str, pattern: str) -> list[float]:
    return [float(number) for number in re.findall(pattern, svg)]


@pytest.mark.parametrize("highest", [1e-4, 0.7, 1.0, 9.99, 51.0, 999.0, 48_211.0, 2.5e7])
def test_marks_reach_over_the_highest_and_are_few(highest: float) -> None:
    svg = grouped_bars({"a": [Bar(0, highest / 3, 0.0, highest)]}, ["x"], across="p", up="v")
    labels = re.findall(r"text-anchor='end'[^>]*>([\d.,e-]+)<", svg)
    marks = [float(label.replace(",", "")) for label in labels]
    assert marks[0] == 0
    assert marks[-2] < highest <= marks[-1]
    assert 3 <= len(marks) <= 7
    (top,) = numbers(svg, r"V(-?[\d.]+)M")
    assert top >= 12, "a whisker leaves the plot"


def test_nothing_is_drawn_outside_and_bars_do_not_overlap() -> None:
    places = ["0-8k", "8-16k", "16-32k", "32k+", "all"]
    series = {f"s{n}": [Bar(p, 40_000.0 + n, 1.0, 90_000.0) for p in range(5)] for n in range(8)}
    svg = grouped_bars(series, places, across="p", up="v", apart=True)
    (width,) = numbers(svg, r"^<svg [^>]* width='(\d+)'")
    bars = sorted(
        (float(x), float(x) + float(wide))
        for x, wide in re.findall(r"<rect x='([\d.]+)' y='[\d.]+' width='([\d.]+)'", svg)
    )
    assert len(bars) == 40
    assert bars[0][0] > 0
    assert bars[-1][1] < width
    assert all(left[1] <= right[0] for left, right in pairwise(bars))


def test_shares_go_to_a_hundred_per_cent() -> None:
    svg = grouped_bars({"a": [Bar(0, 0.031)]}, ["x"], across="p", up="v", share=True)
    assert re.findall(r">(\d+%)<", svg) == ["0%", "20%", "40%", "60%", "80%", "100%"]
    assert "a: 3.1%" in svg


def test_the_total_is_not_drawn_beside_a_band_that_is_all_of_it(tmp_path: Path) -> None:
    log = read_log([write(tmp_path / "log", LINE)])
    assert html_report(log, None, []).count(">all<") == 1
