"""Completions that end by their lines or by their time, however their text comes in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.server.infill.ending import Ending


def naive(text: str, min_indent: int) -> str:
    """All lines up to the first but one that is not blank and is indented too little."""
    lines = text.split("\n")
    for n, line in enumerate(lines[1:], start=1):
        if line.strip() and len(line) - len(line.lstrip()) < min_indent:
            kept = lines[:n]
            while len(kept) > 1 and not kept[-1].strip():
                kept.pop()
            return "\n".join(kept)
    return text


@given(parts=st.lists(st.text(" \tab\n", max_size=6), max_size=12), min_indent=st.integers(0, 4))
def test_an_answer_ends_before_a_line_that_is_indented_too_little(
    parts: list[str], min_indent: int
) -> None:
    ending = Ending(min_indent=min_indent)
    shown = "".join(ending.push(part) for part in parts) + ending.rest()
    wanted = naive("".join(parts), min_indent)
    assert shown == wanted
    assert ending.ended == (wanted != "".join(parts))


@pytest.mark.parametrize(("text", "ended"), [("one", False), ("one\ntwo", True)])
def test_time_ends_an_answer_of_more_than_one_line(text: str, ended: bool) -> None:
    now = 0.0
    ending = Ending(max_seconds=1.5, clock=lambda: now)
    assert ending.push("a") == "a"
    now = 1.4
    assert (ending.push(text), ending.ended) == (text, False)
    now = 1.6
    assert (ending.push("b"), ending.ended) == ("b", ended)
    assert ending.push("c") == ("" if ended else "c")
