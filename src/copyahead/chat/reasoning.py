"""Tells a model's thinking from its answer, however the text was cut into deltas.

Thinking can only come first: after its end marker, or after any other text, a marker is
something that the answer quotes. Knows nothing of templates, tools or HTTP.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Literal, NamedTuple

Part = tuple[Literal["reasoning", "content"], str]
"""A piece of text and where it belongs."""


class ReasoningMarkers(NamedTuple):
    """The texts around the thinking."""

    begin: str
    end: str


THINK = ReasoningMarkers("<think>", "</think>")
"""The usual pair."""

_KNOWN = (
    THINK,
    ReasoningMarkers("<seed:think>", "</seed:think>"),
    ReasoningMarkers("<thinking>", "</thinking>"),
    ReasoningMarkers("[THINK]", "[/THINK]"),
    ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningMarkers("<reasoning>", "</reasoning>"),
)


def markers_of(template: str) -> ReasoningMarkers:
    """The pair whose end marker a chat template names; `<think>` when it names none."""
    return next((pair for pair in _KNOWN if pair.end in template), THINK)


def opens_reasoning(prompt: str, markers: ReasoningMarkers) -> bool:
    """Whether a rendered prompt ends inside the thinking, so that the answer starts there."""
    return prompt.rstrip().endswith(markers.begin)


class _Place(Enum):
    """How far the splitter has come; it only ever moves down."""

    START = auto()
    AFTER_BEGIN = auto()
    THINKING = auto()
    AFTER_END = auto()
    ANSWER = auto()


class ReasoningSplitter:
    """Cuts one answer into reasoning and content.

    Line breaks next to a marker belong to neither side. Joined by kind, the parts are the same
    for every way of cutting the text.
    """

    def __init__(self, start_in_reasoning: bool, markers: ReasoningMarkers = THINK) -> None:
        """`start_in_reasoning`: the prompt already holds the begin marker."""
        self._opened = start_in_reasoning
        self._markers = markers
        self._place = _Place.START
        self._held = ""
        self._lead: list[str] = []
        """White space before the begin marker."""
        self._num_breaks = 0
        """Line breaks before what is held, in the thinking."""

    def push(self, text: str) -> list[Part]:
        """What `text` settles; what may still be part of a marker is held back."""
        self._held += text
        parts: list[Part] = []
        if self._place is _Place.START:
            self._look_for_begin()
        if self._place is _Place.AFTER_BEGIN:
            self._skip_breaks(_Place.THINKING)
        if self._place is _Place.THINKING:
            self._look_for_end(parts)
        if self._place is _Place.AFTER_END:
            self._skip_breaks(_Place.ANSWER)
        if self._place is _Place.ANSWER:
            parts += _parts("content", self._held)
            self._held = ""
        return parts

    def finish(self) -> list[Part]:
        """What was held back: thinking that never ended is still thinking."""
        held, self._held = self._held, ""
        if self._place is _Place.THINKING:
            return _parts("reasoning", "\n" * self._num_breaks + held)
        if self._place is _Place.START:
            held = "".join([*self._lead, held])
            return (
                _parts("reasoning", held.lstrip("\n")) if self._opened else _parts("content", held)
            )
        return []

    def _look_for_begin(self) -> None:
        """Settle whether the text begins with the begin marker."""
        text, begin = self._held.lstrip(), self._markers.begin
        self._lead.append(self._held.removesuffix(text))
        self._held = text
        if text.startswith(begin):
            self._held, self._place = text[len(begin) :], _Place.AFTER_BEGIN
        elif not begin.startswith(text):
            self._held = "".join([*self._lead, text])
            self._place = _Place.AFTER_BEGIN if self._opened else _Place.ANSWER

    def _skip_breaks(self, after: _Place) -> None:
        self._held = self._held.lstrip("\n")
        if self._held:
            self._place = after

    def _look_for_end(self, parts: list[Part]) -> None:
        before, marker, after = self._held.partition(self._markers.end)
        keep = 0 if marker else num_held(before, self._markers.end)
        self._held = before[len(before) - keep :]
        before = before[: len(before) - keep]
        shown = before.rstrip("\n")
        if shown:
            parts += _parts("reasoning", "\n" * self._num_breaks + shown)
            self._num_breaks = 0
        self._num_breaks += len(before) - len(shown)
        if marker:
            self._held, self._place = after, _Place.AFTER_END


def num_held(text: str, marker: str) -> int:
    """Length of the longest end of `text` that could begin `marker`."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0


def _parts(kind: Literal["reasoning", "content"], text: str) -> list[Part]:
    return [(kind, text)] if text else []
