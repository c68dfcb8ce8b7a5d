"""Keeps control tokens that a request's texts spell from being read as control tokens.

A chat template writes `<|im_end|>` where a turn ends, and the tokenizer reads that as the token.
The same letters in a message are only text. To tell the two apart in a rendered prompt, the
conversation is rendered a second time with an unused private character, a mark, in the place of
every character of its texts with which a spelling begins or ends. So no spelling of that rendering
holds anything of the texts: it is the template's own. What overlaps a mark is letters.

Nothing is read on trust. Where a template does not pass texts on as they are, the rendering with
the marks put back is the prompt; where it cannot be had, the request is refused.

Prompts whose texts hold none of these characters, and all turns of a prompt up to the one that
spells a control token, have the tokens that they have without this.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from copyahead.chat.untrusted_json import MAX_DEPTH, is_shallow, parsed
from copyahead.contracts import Tokenizer
from copyahead.errors import EngineStopped, RequestError, TemplateError, TemplateLimitError
from copyahead.types import Token

_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Characters to which Unicode gives no meaning."""
_PRIVATE_CHARACTER = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")
_PRIVATE_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})")
_LONGEST_ESCAPE = 10
_PIECE = 2**16
"""Characters."""
_STRUCTURE = frozenset(
    {"role", "content", "name", "type", "text", "function", "arguments", "tool_calls", "id",
     "tool_call_id", "reasoning_content", "description", "parameters", "properties", "required",
     "object", "string"}
)  # fmt: skip
"""Words that programs, and not people, write and read in a conversation."""
_FIELDS = ("messages", "tools", "chat_template_kwargs")
_MAX_DEPTH = MAX_DEPTH + 8
"""A schema of a tool, which may be nested `MAX_DEPTH` deep, stands in a few objects."""
_JSON_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = r"\\u[0-9a-fA-F]{4}|\\."


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

    def __init__(
        self, texts: Collection[str], *, kept: Collection[str] = (), known: Collection[str] = ()
    ) -> None:
        """No `texts`: nothing is ever found. `kept`: those that an assistant's message may hold,
        as templates look for them there. `known`: the words that the template itself uses."""
        spellings = sorted({text for text in texts if text})
        self._pattern = re.compile(_trie(spellings)) if spellings else re.compile("(?!)")
        self._kept = frozenset(filter(None, kept))
        self._known = _STRUCTURE | frozenset(known)
        # A letter at an edge cannot be marked wherever it stands: then the spelling is, as a whole.
        plain = [text for text in spellings if _is_letter(text[0]) or _is_letter(text[-1])]
        edges = {text[place] for text in spellings for place in (0, -1)}
        marked = [*plain, *(edge for edge in edges if not _is_letter(edge))]
        self._marked = "|".join(map(re.escape, marked)) or "(?!)"
        self._insides = "\0".join([*plain, *(text[1:-1] for text in spellings)])

    def find(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each spelling in `text`."""
        return [match.span() for match in self._pattern.finditer(text)]

    def literal(self, text: str) -> RenderedPrompt:
        """An assistant's text, with all its spellings to be read as letters but those kept."""
        spans = [
            (start, end) for start, end in self.find(text) if text[start:end] not in self._kept
        ]
        return RenderedPrompt(text, spans)

    def rendered(self, render: Callable[[Any], str], given: Sequence[Any]) -> RenderedPrompt:
        """What `render` makes of `given`, whose texts spell nothing but letters.

        `given`: messages as `chat.messages.checked` returns them, tools, and variables of the
        template. RequestError where they are nested too deeply, where `render` refuses them, and
        where what they spell cannot be told from what `render` writes by itself.
        """
        for field, value in zip(_FIELDS, given, strict=True):
            if not is_shallow(value, _MAX_DEPTH):
                raise RequestError(f"{field} is nested too deeply: make it flatter", field)
        text = render(given)
        texts = list(_texts(given))
        marks = _Marks(self._marked, self._insides, self._known, self._kept, [text, *texts])
        messages, tools, variables = given
        changed = [
            [marks.in_message(message) for message in messages],
            marks.within(tools),
            marks.within(variables),
        ]
        if not marks:
            return RenderedPrompt(text)
        try:
            marked = render(changed)
        except (TemplateLimitError, EngineStopped):
            raise
        except Exception as error:
            if not self.find(text):
                return RenderedPrompt(text)
            raise TemplateError(
                "the model's chat template does not take messages in which control tokens are "
                f"letters: leave {' '.join(marks.originals)} out of them",
                field="messages",
            ) from error
        restored, places = marks.restored(marked)
        if restored != text and self._spells_the_same(text, marked, texts):
            return RenderedPrompt(text)
        return RenderedPrompt(restored, tuple(_overlapping(self.find(restored), places)))

    def _spells_the_same(self, text: str, marked: str, texts: Iterable[str]) -> bool:
        """Whether `text` has the control tokens of its `marked` twin, and `texts` spell none: for
        templates that look into messages for something else that begins like a spelling."""
        find = self._pattern.findall
        return find(text) == find(marked) and not any(map(self._pattern.search, texts))

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


class _Marks:
    """Puts private characters into texts in the place of pieces of them, and back."""

    def __init__(
        self,
        pattern: str,
        insides: str,
        known: Collection[str],
        kept: Collection[str],
        texts: Sequence[str],
    ) -> None:
        """`pattern`: pieces to be marked. `insides`: what may stand between the edges of a
        spelling; a text that is all inside is one piece, but for `known` ones. `kept`: what is
        left as it is in an assistant's message. `texts`: none of them holds a mark."""
        self._free = _unused(texts)
        self._marks: dict[tuple[str, str], str] = {}
        """By the piece, and how a JSON text spells it."""
        self._insides, self._known = insides, known
        kept_first = "|".join([*(f"(?:{re.escape(one)})" for one in kept), f"({pattern})"])
        self._piece = re.compile(f"({pattern})")
        self._piece_but_kept = re.compile(kept_first)
        self._json_piece = re.compile(f"{_ESCAPE}|{pattern}", re.DOTALL)

    def __bool__(self) -> bool:
        return bool(self._marks)

    @property
    def originals(self) -> list[str]:
        """The pieces that were marked, each once, in order."""
        return list(dict.fromkeys(piece for piece, _ in self._marks))

    def in_message(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with marks."""
        is_answer = message["role"] == "assistant"
        pattern = self._piece_but_kept if is_answer else self._piece
        changed = {k: v for k, v in message.items() if k not in ("role", "tool_calls")}
        changed = {"role": message["role"], **self.within(changed, pattern)}
        if "tool_calls" in message:
            changed["tool_calls"] = [self._in_call(call) for call in message["tool_calls"]]
        return changed

    def within(self, given: Any, pattern: re.Pattern[str] | None = None) -> Any:
        """The same with marks in every text, keys too."""
        if isinstance(given, str):
            return self._in_text(given, pattern or self._piece)
        if isinstance(given, dict):
            return {self.within(k, pattern): self.within(v, pattern) for k, v in given.items()}
        if isinstance(given, list | tuple):
            return [self.within(value, pattern) for value in given]
        return given

    def _in_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = function["arguments"]
        if parsed(arguments) is None:
            arguments = self._in_text(arguments, self._piece)
        else:
            # What holds JSON together has to stay.
            arguments = _JSON_TEXT.sub(self._in_json_text, arguments)
        name = self._in_text(function["name"], self._piece)
        rest = self.within({key: value for key, value in call.items() if key != "function"})
        return {**rest, "function": {"name": name, "arguments": arguments}}

    def _in_text(self, text: str, pattern: re.Pattern[str]) -> str:
        if self._is_inside(text):
            return self._mark(text, text)
        return pattern.sub(lambda m: self._mark(m[1], m[1]) if m[1] else m[0], text)

    def _in_json_text(self, match: re.Match[str]) -> str:
        text = json.loads(match[0], strict=False)
        if self._is_inside(text):
            return f'"{self._mark(text, match[1])}"'
        return f'"{self._json_piece.sub(self._in_json_piece, match[1])}"'

    def _in_json_piece(self, match: re.Match[str]) -> str:
        piece = match[0]
        if not piece.startswith("\\"):
            return self._mark(piece, piece)
        character = json.loads(f'"{piece}"')
        is_edge = self._piece.fullmatch(character)
        return self._mark(character, piece) if is_edge else piece

    def _is_inside(self, text: str) -> bool:
        return bool(text) and text not in self._known and text in self._insides

    def _mark(self, piece: str, spelled: str) -> str:
        mark = self._marks.get((piece, spelled))
        if mark is None:
            mark = next(self._free, "")
            if not mark:
                raise RequestError("messages hold every private character of Unicode", "messages")
            self._marks[piece, spelled] = mark
        return mark if piece == spelled else _escaped(mark)

    def restored(self, marked: str) -> tuple[str, list[tuple[int, int]]]:
        """The text with the pieces in the place of their marks, and start and end of each.

        A mark may have been written as JSON or Python write what is not ASCII.
        """
        pieces: dict[str, str] = {}
        for (piece, spelled), mark in self._marks.items():
            escaped = json.dumps(piece)[1:-1] if piece == spelled else spelled
            pieces |= {mark: piece, repr(mark)[1:-1]: piece, _escaped(mark): escaped}
        texts: list[str] = []
        places: list[tuple[int, int]] = []
        length = done = 0
        for match in re.finditer("|".join(map(re.escape, pieces)), marked):
            before, piece = marked[done : match.start()], pieces[match[0]]
            length += len(before)
            places.append((length, length + len(piece)))
            length += len(piece)
            texts += (before, piece)
            done = match.end()
        return "".join([*texts, marked[done:]]), places


def _escaped(mark: str) -> str:
    return json.dumps(mark)[1:-1]


def _is_letter(character: str) -> bool:
    return character.isalnum() or character.isspace()


def _unused(texts: Sequence[str]) -> Iterator[str]:
    """The private characters that stand in none of the texts, as they are or escaped."""
    taken: set[str] = set()
    escapes: set[str] = set()
    for text in texts:
        # Piece by piece: nothing else runs in the process during a call.
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE + _LONGEST_ESCAPE - 1]
            if not piece.isascii():
                taken.update(_PRIVATE_CHARACTER.findall(piece))
            if "\\" in piece:
                escapes.update(map(str.lower, _PRIVATE_ESCAPE.findall(piece)))
    for character in map(chr, chain(*_PRIVATE)):
        ways = {_escaped(character)[1:6], repr(character)[2:-1].lower()}
        if character not in taken and not ways & escapes:
            yield character


def _overlapping(
    spans: Iterable[tuple[int, int]], places: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The spans that hold something of a place; both are in order."""
    ends = [end for _, end in places]
    for start, end in spans:
        following = bisect_right(ends, start)
        if following < len(places) and places[following][0] < end:
            yield start, end


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


def _trie(texts: Sequence[str]) -> str:
    """A pattern for the longest of the texts: vocabularies have hundreds that begin alike."""
    after: dict[str, list[str]] = {}
    for text in filter(None, texts):
        after.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(first) + _trie(rest) for first, rest in after.items()]
    if not branches or (len(branches) == 1 and "" not in texts):
        return "".join(branches)
    return f"(?:{'|'.join(branches)})" + ("?" if "" in texts else "")
