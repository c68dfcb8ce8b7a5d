"""Finds tool calls in an answer while it is written, however the text was cut into deltas.

A call is announced when its name is known and its arguments begin; from then on its arguments
are passed on as they come, whether they are whole or not. What turns out not to be a call is text
again, and nothing that was passed over is looked at twice, so the work is linear in the text.

Where calls may stand is found here; what is inside one is a reader's work, of which there is one
for JSON objects and one for tags.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from copyahead.chat.tools.json_call import SPACE


class TextDelta(msgspec.Struct, frozen=True):
    """Text that is not part of a call."""

    text: str


class ToolCallStart(msgspec.Struct, frozen=True):
    """The first word of a call. Its arguments follow, at least one delta of them."""

    index: int
    """Number of the call in this answer, from 0."""
    id: str
    name: str


class ToolCallDelta(msgspec.Struct, frozen=True):
    """More of the JSON text of a call's arguments."""

    index: int
    arguments: str


ParserEvent = TextDelta | ToolCallStart | ToolCallDelta


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid.uuid4().hex[:24]}"


class Reader(Protocol):
    """Reads one call. Fed a character at a time, it may be interrupted after any of them."""

    name: str
    started: bool
    """Whether the call can be announced: its name is known, and its arguments begin."""
    done: bool
    """Whether the call is whole."""
    ended: bool
    """Whether it has also read the marker after the call."""
    arguments: list[str]
    """Pieces of the JSON text of its arguments; whoever passes them on empties it."""
    leftover: str
    """After a refusal: the last that it had read, where that is not part of what came before."""

    @property
    def can_be_cut(self) -> bool:
        """Whether the marker after the call would end it here."""
        ...

    def feed(self, char: str) -> bool:
        """Take a character; False when what was read, with `char`, is not a call."""
        ...

    def finish(self) -> None:
        """Put what is held of the arguments into `arguments`: nothing more comes."""
        ...


class CallSyntax(msgspec.Struct, frozen=True):
    """Where calls stand in a text."""

    begin: str
    """Marker before a call. Empty: a call begins a line, or the answer, with `{`."""
    end: str
    """Marker after a call."""
    opener: str
    """What a call itself begins with; empty where that can be anything."""
    strays: str = ""
    """Characters that models write between a call and what follows it, and that are no text."""
    bare: bool = False
    """Whether `opener` begins a call without `begin` too."""


class ToolParser:
    """Cuts one answer into text and tool calls.

    White space right before a call, and after the last one, is not text. Apart from the ids,
    and joined by kind and index, the events are the same for every way of cutting the text.
    """

    def __init__(
        self,
        syntax: CallSyntax,
        make_reader: Callable[[bool], Reader],
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """`make_reader(strict)`: a reader for one call. Strict: no marker says that it is one,
        so its name must be that of a tool, or it is text."""
        self._begin, self._end, self._opener = syntax.begin, syntax.end, syntax.opener
        self._markers = [syntax.begin, *([syntax.opener] if syntax.bare else [])]
        self._strays = SPACE + syntax.strays
        self._make_reader, self._new_id = make_reader, new_id
        self.num_calls = 0
        self._events: list[ParserEvent] = []
        self._state: Callable[[str], None] = self._text
        self._held = ""
        self._skipped: list[str] = []
        self._space: list[str] = []
        self._line_start = True
        self._in_list = False
        self._text_last = False
        self._raw: list[str] = []
        self._reader = self._new_reader()

    def push(self, text: str) -> list[ParserEvent]:
        """What `text` settles, in order."""
        for char in text:
            self._state(char)
        if self._reader.started:
            self._flush()
        return self._take()

    def finish(self) -> list[ParserEvent]:
        """What was held back. A call that is not finished keeps the arguments it has."""
        if self._state == self._call:
            self._abandon(self._held)
        elif self._state != self._after:
            self._say(self._held)
        if self._text_last or not self.num_calls:
            self._add_text("".join(self._space))
        return self._take()

    def _text(self, char: str) -> None:
        if not self._begin:
            if self._line_start and char in "{[":
                self._open(char)
            else:
                self._say(char)
            return
        held = self._held + char
        while held and not any(marker.startswith(held) for marker in self._markers):
            self._say(held[0])
            held = held[1:]
        self._held = held
        if held == self._begin:
            self._held = ""
            self._read_call(held, "")
        elif held in self._markers:
            self._held = ""
            self._read_call("", held, strict=True)

    def _open(self, char: str) -> None:
        """A bracket at the start of a line: a call, or a list of calls."""
        self._in_list = char == "["
        if char == "{":
            self._read_call("", char)
        else:
            self._held, self._state = char, self._list

    def _list(self, char: str) -> None:
        held, self._held = self._held, ""
        if char == "{":
            self._read_call(held, char)
        elif char in SPACE:
            self._held = held + char
        else:
            self._state = self._text
            self._say(held)
            self._text(char)

    def _read_call(self, before: str, start: str, strict: bool = False) -> None:
        """Read a call that begins with `start`; `before` is text should it be none."""
        self._reader = self._new_reader(strict)
        self._raw = [before]
        self._state = self._call
        for char in start:
            self._call(char)

    def _call(self, char: str) -> None:
        reader = self._reader
        if self._end and reader.can_be_cut and (self._held or char == self._end[0]):
            self._look_for_end(char)
            return
        was_started = reader.started
        accepted = reader.feed(char)
        if reader.started and not was_started:
            self._announce()
        if not accepted:
            self._abandon("")
            for each in reader.leftover + char:
                self._state(each)
        elif reader.done:
            self._leave(self._text if reader.ended else self._after)
        elif not reader.started:
            self._raw.append(char)

    def _look_for_end(self, char: str) -> None:
        """The end marker outside a string closes a call whose brackets do not match."""
        held = self._held + char
        if held == self._end:
            self._held = ""
            self._leave(self._text)
        elif self._end.startswith(held):
            self._held = held
        else:
            held, self._held = self._held, ""
            for each in held:
                self._reader.feed(each)
            self._call(char)

    def _announce(self) -> None:
        self._space, self._raw, self._text_last = [], [], False
        self._events.append(ToolCallStart(self.num_calls, self._new_id(), self._reader.name))
        self.num_calls += 1

    def _abandon(self, rest: str) -> None:
        """Stop reading a call: what is not yet announced is text, the rest keeps what it has."""
        self._held = ""
        if not self._reader.started:
            self._state = self._text
            self._say("".join(self._raw).removesuffix(self._reader.leftover) + rest)
            return
        self._reader.finish()
        self._reader.arguments.append(rest)
        self._leave(self._after)

    def _leave(self, state: Callable[[str], None]) -> None:
        self._flush()
        self._reader = self._new_reader()
        self._state = state

    def _after(self, char: str) -> None:
        """Between a call and whatever comes next."""
        if not self._held and char in self._strays:
            self._skipped.append(char)
            return
        core = self._held + char
        if core not in (self._end, self._opener) and any(
            text.startswith(core) for text in (self._end, self._opener)
        ):
            self._held = core
            return
        before, self._skipped, self._held = "".join(self._skipped), [], ""
        if core == self._end:
            self._state = self._text
        elif core == self._opener:
            self._read_call(before, core)
        else:
            self._state, self._line_start = self._text, False
            text = before + core
            for each in text.replace("]", "", 1) if self._in_list else text:
                self._state(each)

    def _say(self, text: str) -> None:
        """Text; white space waits until it is known what follows."""
        if not text:
            return
        shown = text.rstrip()
        nothing_yet = not (shown or self._text_last or self.num_calls)
        self._line_start = text[-1] == "\n" or nothing_yet
        if shown:
            self._add_text("".join([*self._space, shown]))
            self._space = []
        self._space.append(text[len(shown) :])

    def _add_text(self, text: str) -> None:
        if text:
            self._events.append(TextDelta(text))
            self._text_last = True

    def _flush(self) -> None:
        arguments = "".join(self._reader.arguments)
        self._reader.arguments.clear()
        if arguments:
            self._events.append(ToolCallDelta(self.num_calls - 1, arguments))

    def _take(self) -> list[ParserEvent]:
        events, self._events = self._events, []
        return joined(events)

    def _new_reader(self, strict: bool = False) -> Reader:
        return self._make_reader(strict or not self._begin)


def joined(events: Iterable[ParserEvent]) -> list[ParserEvent]:
    """The events with neighbours of one kind and index made one."""
    result: list[ParserEvent] = []
    for (kind, index), group in itertools.groupby(events, _kind):
        if kind is TextDelta:
            result.append(TextDelta("".join(e.text for e in group if isinstance(e, TextDelta))))
        elif kind is ToolCallDelta:
            more = "".join(e.arguments for e in group if isinstance(e, ToolCallDelta))
            result.append(ToolCallDelta(index, more))
        else:
            result += group
    return result


def _kind(event: ParserEvent) -> tuple[type[ParserEvent], int]:
    return type(event), 0 if isinstance(event, TextDelta) else event.index
