"""Thinking and answer: the same parts for every way of cutting the text."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.chat.reasoning import (
    THINK,
    ReasoningMarkers,
    ReasoningSplitter,
    markers_of,
    opens_reasoning,
)
from copyahead.testing import rechunk

SHORT = ReasoningMarkers("<t>", "</t>")


def split(chunks: list[str], opened: bool, markers: ReasoningMarkers = SHORT) -> tuple[str, str]:
    """Reasoning and content, each joined."""
    splitter = ReasoningSplitter(opened, markers)
    parts = [part for chunk in chunks for part in splitter.push(chunk)] + splitter.finish()
    joined = {"reasoning": "", "content": ""}
    for kind, text in parts:
        assert text, "an empty part"
        assert kind == "content" or not joined["content"], "reasoning after content"
        joined[kind] += text
    return joined["reasoning"], joined["content"]


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("a b</t> c <tool>", True, "a b", " c <tool>"),
        ("<t>\na\n</t>\n\nb", False, "a", "b"),
        (" \n<t>a</t>b</t>c", False, "a", "b</t>c"),
        ("<t>a</t>\n<t>b</t>", False, "a", "<t>b</t>"),
        ("say <t>x</t>", False, "", "say <t>x</t>"),
        ("\n  plain", False, "", "\n  plain"),
        ("<t>never ends </", False, "never ends </", ""),
        ("\na\n", True, "a\n", ""),
        ("<t>a</t>", True, "a", ""),
        ("a\n\n</ t></t>\n  x", True, "a\n\n</ t>", "  x"),
        ("</t>b", True, "", "b"),
        ("<t", False, "", "<t"),
        ("<t", True, "<t", ""),
        ("<t>\n", False, "", ""),
        ("", True, "", ""),
        (" \n", False, "", " \n"),
    ],
)
def test_every_cutting_gives_the_same_parts(
    text: str, opened: bool, reasoning: str, content: str
) -> None:
    for steps in rechunk(text):
        assert split(["".join(step) for step in steps], opened) == (reasoning, content)


MARKS = st.sampled_from(["<think>", "</think>", "<", "</thi", "\n", " ", "a", "think>"])


def oracle(text: str, opened: bool) -> tuple[str, str]:
    """What the parts of a whole text are, by regular expression."""
    begin = re.match(r"\s*<think>", text)
    if not begin and not opened:
        return "", text
    text = text[begin.end() :] if begin else text
    before, end, after = text.lstrip("\n").partition("</think>")
    return (before.rstrip("\n"), after.lstrip("\n")) if end else (before, "")


@given(st.lists(MARKS, max_size=12).map("".join), st.booleans(), st.data())
def test_any_text_in_any_chunks(text: str, opened: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)) | {0, len(text)})
    chunks = [text[a:b] for a, b in pairwise(cuts)]
    assert split(chunks, opened, THINK) == oracle(text, opened)
    assert split(list(text), opened, THINK) == oracle(text, opened)


@pytest.mark.parametrize("lead", ["", "<t>a"])
def test_white_space_takes_linear_time(lead: str) -> None:
    breaks = "\n" * 1_000_000
    assert split([*lead, *breaks, "b</t>c"], True) == (f"{lead[3:] + breaks}b".strip("\n"), "c")
    assert split([*" " * 1_000_000, "b"], False) == ("", " " * 1_000_000 + "b")


def test_content_is_not_held_back() -> None:
    splitter = ReasoningSplitter(False)
    assert splitter.push("<thin") == []
    assert splitter.push("ner> ok") == [("content", "<thinner> ok")]
    assert splitter.push("<think>") == [("content", "<think>")]


def test_markers_come_from_the_template() -> None:
    assert markers_of("{% if x %}<seed:think>{% endif %}</seed:think>").begin == "<seed:think>"
    assert markers_of("no marker") == THINK
    assert opens_reasoning("<|assistant|>\n<think>\n", THINK)
    assert not opens_reasoning("<think>\n\n</think>\n\n", THINK)
