"""Keeps control tokens that somebody spells out in a message from being read as control tokens.

A chat template writes `<|im_end|>` where a turn ends, and the tokenizer reads that as the token.
The same letters inside a message are only text. To tell the two apart in a rendered prompt,
messages are rendered with one unused private character in the place of each spelling; where the
text comes out the same otherwise, the places of these characters are those of the spellings.

Only what holds a spelling is treated in any way: all other prompts, and all turns of a prompt up
to the one that holds it, have the tokens that they have without this.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from copyahead.contracts import Tokenizer
from copyahead.errors import RequestError
from copyahead.types import Token

_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Characters to which Unicode gives no meaning."""


class RenderedPrompt(NamedTuple):
    """A prompt's text, and where it spells control tokens that are to be read as letters."""

    text: str
    literal_spans: Sequence[tuple[int, int]] = ()
    """Start and end of each spelling, in order."""

    def __add__(self, other: Any) -> RenderedPrompt:
        """Both texts, one after the other."""
        more = [
            (start + len(self.text), end + len(self.text)) for start, end in other.literal_spans
        ]
        return RenderedPrompt(self.text + other.text, [*self.literal_spans, *more])


class ControlTexts:
    """The spellings of a tokenizer's control tokens."""

    def __init__(self, texts: Collection[str]) -> None:
        """No `texts`: nothing is ever found."""
        known = sorted({text for text in texts if text})
        self._pattern = re.compile(_trie(known)) if known else re.compile("(?!)")

    def find(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each spelling in `text`."""
        return [match.span() for match in self._pattern.finditer(text)]

    def literal(self, text: str) -> RenderedPrompt:
        """`text` with all its spellings to be read as letters."""
        return RenderedPrompt(text, self.find(text))

    def rendered(self, render: Callable[[Any], str], given: Any) -> RenderedPrompt:
        """What `render` makes of `given`, whose texts spell nothing but letters.

        `given`: lists and dicts of texts. Where `render` does not pass spellings on as they are,
        what it makes of them is read as any other text. RequestError where no private character
        is left to tell them apart.
        """
        text = render(given)
        spellings = sorted({s for one in _texts(given) for s in self._pattern.findall(one)})
        if not spellings:
            return RenderedPrompt(text)
        taken = set(text).union(*_texts(given))
        free = (char for char in map(chr, chain(*_PRIVATE)) if char not in taken)
        marks = dict(zip(spellings, free, strict=False))
        if len(marks) < len(spellings):
            raise RequestError("messages hold every private character of Unicode", "messages")
        try:
            marked = render(_mapped(given, lambda one: self._marked(one, marks)))
        except Exception:
            return RenderedPrompt(text)
        restored = _restored(marked, marks)
        return restored if restored.text == text else RenderedPrompt(text)

    def _marked(self, text: str, marks: dict[str, str]) -> str:
        return self._pattern.sub(lambda match: marks[match[0]], text)

    def encode(self, tokenizer: Tokenizer, prompt: RenderedPrompt) -> list[Token]:
        """Token ids of a prompt, its literal spans as letters.

        Control tokens cut a text into fragments that know nothing of each other. So only the
        fragments with spans are read without control tokens, and the rest together as ever. (A
        few vocabularies have control tokens that take the white space beside them: not so there.)
        """
        text, spans = prompt
        if not spans:
            return tokenizer.encode(text)
        lead = tokenizer.encode("")
        tokens: list[Token] = []
        done = 0
        for start, end in self._fragments(text, spans):
            tokens += tokenizer.encode(text[done:start])[len(lead) if done else 0 :]
            tokens += tokenizer.encode(text[start:end], special=False)
            done = end
        return tokens + tokenizer.encode(text[done:])[len(lead) :]

    def _fragments(self, text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The fragments that hold spans: each from one control token to the next."""
        edges = [0]
        letters = deque(spans)
        for start, end in self.find(text):
            while letters and letters[0][1] <= start:
                letters.popleft()
            if not letters or end <= letters[0][0]:
                edges += (start, end)
        edges.append(len(text))
        ends = [end for _, end in spans]
        return [
            (start, end)
            for start, end in zip(edges[::2], edges[1::2], strict=True)
            if bisect_right(ends, end) > bisect_right(ends, start)
        ]


def _restored(marked: str, marks: dict[str, str]) -> RenderedPrompt:
    """The text with spellings in the place of marks, which may have been written as JSON."""
    spellings = {}
    for spelling, mark in marks.items():
        spellings[mark] = spelling
        spellings[json.dumps(mark)[1:-1]] = json.dumps(spelling)[1:-1]
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = done = 0
    for match in re.finditer("|".join(map(re.escape, spellings)), marked):
        before, spelling = marked[done : match.start()], spellings[match[0]]
        length += len(before)
        spans.append((length, length + len(spelling)))
        length += len(spelling)
        pieces += (before, spelling)
        done = match.end()
    return RenderedPrompt("".join([*pieces, marked[done:]]), spans)


def _texts(given: Any) -> Iterator[str]:
    """Every text in lists and dicts, keys too, however deep; in any order."""
    pending = [given]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            pending += (*one, *one.values())
        elif isinstance(one, list | tuple):
            pending += one


def _mapped(given: Any, change: Callable[[str], str]) -> Any:
    """The same with every text changed."""
    if isinstance(given, str):
        return change(given)
    if isinstance(given, dict):
        return {_mapped(key, change): _mapped(value, change) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [_mapped(value, change) for value in given]
    return given


def _trie(texts: Sequence[str]) -> str:
    """A pattern for the longest of the texts: vocabularies have hundreds that begin alike."""
    after: dict[str, list[str]] = {}
    for text in filter(None, texts):
        after.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(first) + _trie(rest) for first, rest in after.items()]
    if not branches or (len(branches) == 1 and "" not in texts):
        return "".join(branches)
    return f"(?:{'|'.join(branches)})" + ("?" if "" in texts else "")
