"""One answer's text as it is to be shown: reasoning, content, and tool calls.

Text comes in as the engine hands it out; what leaves, joined by kind, does not depend on how it
was cut. Every route of the server builds its own frames from these events.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from copyahead.chat.reasoning import ReasoningSplitter
from copyahead.chat.tools.stream import ParserEvent, TextDelta, ToolCallDelta, ToolCallStart
from copyahead.chat.untrusted_json import well_formed


class ReasoningDelta(msgspec.Struct, frozen=True):
    """Text of the model's thinking."""

    text: str


ReplyEvent = ReasoningDelta | TextDelta | ToolCallStart | ToolCallDelta


class Parser(Protocol):
    """What finds tool calls in content; see `copyahead.chat.tools.definitions`."""

    def push(self, text: str) -> list[ParserEvent]:
        """What `text` settles."""
        ...

    def finish(self) -> list[ParserEvent]:
        """What was held back."""
        ...


class Call(msgspec.Struct):
    """A tool call as far as it has been written."""

    id: str
    name: str
    arguments: str = ""


class Reply:
    """Takes an answer's text, gives events, and keeps the whole."""

    def __init__(
        self,
        splitter: ReasoningSplitter | None = None,
        parser: Parser | None = None,
        *,
        max_calls: int | None = None,
    ) -> None:
        """`max_calls`: later calls are dropped (`parallel_tool_calls` false)."""
        self.reasoning = ""
        self.content = ""
        self.calls: list[Call] = []
        self._splitter = splitter
        self._parser = parser
        self._max_calls = max_calls

    def push(self, text: str) -> list[ReplyEvent]:
        """The events that `text` settles."""
        if not text:
            return []
        if self._splitter is None:
            return self._take(self._parse(text))
        events: list[ReplyEvent] = []
        for kind, part in self._splitter.push(text):
            events += [ReasoningDelta(part)] if kind == "reasoning" else self._parse(part)
        return self._take(events)

    def finish(self) -> list[ReplyEvent]:
        """The events of what was held back; nothing may be pushed after it."""
        events: list[ReplyEvent] = []
        for kind, part in self._splitter.finish() if self._splitter is not None else []:
            events += [ReasoningDelta(part)] if kind == "reasoning" else self._parse(part)
        if self._parser is not None:
            events += self._parser.finish()
        return self._take(events)

    def _parse(self, text: str) -> list[ReplyEvent]:
        if self._parser is None:
            return [TextDelta(text)]
        return list(self._parser.push(text))

    def _take(self, events: list[ReplyEvent]) -> list[ReplyEvent]:
        kept = []
        for event in events:
            if isinstance(event, ToolCallStart | ToolCallDelta):
                if self._max_calls is not None and event.index >= self._max_calls:
                    continue
                if isinstance(event, ToolCallStart):
                    # An escape in its JSON may stand for half of a surrogate pair.
                    event = ToolCallStart(event.index, event.id, well_formed(event.name))
                    self.calls.append(Call(event.id, event.name))
                else:
                    event = ToolCallDelta(event.index, well_formed(event.arguments))
                    self.calls[event.index].arguments += event.arguments
            elif isinstance(event, ReasoningDelta):
                self.reasoning += event.text
            else:
                self.content += event.text
            kept.append(event)
        return kept
