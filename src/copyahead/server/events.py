"""Answers in typed events: sections of text, thinking and calls, each begun, grown and ended.

`/v1/responses` calls a section an item and `/v1/messages` calls it a block. What a section looks
like is the route's; when it begins and ends, and how the events are sent, is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.chat.reply import ReasoningDelta, ReplyEvent
from copyahead.chat.tools.stream import TextDelta, ToolCallStart
from copyahead.chat.transcript import Transcript
from copyahead.engine.request import Chunk
from copyahead.server.answers import answer_stream, answer_whole
from copyahead.server.errors import ApiError, api_error
from copyahead.server.http.streaming import frame
from copyahead.server.route import Exchange
from copyahead.server.wire import CommonFields
from copyahead.types import FinishReason

Event = dict[str, Any]
"""One event; its `type` is also its name in the stream."""
Kind = Literal["text", "thinking", "call"]


class Section(msgspec.Struct):
    """A part of an answer as far as it has been written."""

    kind: Kind
    index: int
    call_id: str = ""
    name: str = ""
    text: str = ""
    """The arguments of a call."""
    id: str = ""
    """For routes that give sections ids."""


class Sections(ABC):
    """The sections of one answer. One is open at a time; text in a row is in one section."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        """The sections that have ended."""
        self._open: Section | None = None

    def push(self, event: ReplyEvent) -> list[Event]:
        """The events that `event` makes."""
        if isinstance(event, ToolCallStart):
            return self._begin("call", event.id, event.name)
        if isinstance(event, TextDelta):
            return [*self._turn_to("text"), *self._add(event.text)]
        if isinstance(event, ReasoningDelta):
            return [*self._turn_to("thinking"), *self._add(event.text)]
        return self._add(event.arguments)

    def finish(self, complete: bool) -> list[Event]:
        """The events of the last section's end. An answer always has a section."""
        is_empty = not self.documents and self._open is None
        begun = self._turn_to("text") if is_empty else []
        return [*begun, *self._end(complete)]

    @abstractmethod
    def begun(self, section: Section) -> list[Event]:
        """The events of a section's beginning; called once for each, which it may give an id."""

    @abstractmethod
    def grown(self, section: Section, text: str) -> Event:
        """The event of `text`, which is already in the section."""

    @abstractmethod
    def ended(self, section: Section, document: Mapping[str, Any]) -> list[Event]:
        """The events of its end; `document` is what `document` made of it."""

    @abstractmethod
    def document(self, section: Section, complete: bool) -> dict[str, Any]:
        """The section in a whole answer. `complete`: it was not cut off."""

    def _turn_to(self, kind: Kind) -> list[Event]:
        is_open = self._open is not None and self._open.kind == kind
        return [] if is_open else self._begin(kind)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> list[Event]:
        events = self._end(True)
        self._open = Section(kind, len(self.documents), call_id, name)
        return [*events, *self.begun(self._open)]

    def _add(self, text: str) -> list[Event]:
        assert self._open is not None, "text comes after a section has begun"
        self._open.text += text
        return [self.grown(self._open, text)]

    def _end(self, complete: bool) -> list[Event]:
        section, self._open = self._open, None
        if section is None:
            return []
        self.documents.append(self.document(section, complete))
        return self.ended(section, self.documents[-1])


class TypedAnswer(ABC):
    """Takes the chunks of one generation, gives events, and keeps the whole."""

    def __init__(self, exchange: Exchange[CommonFields], sections: Sections) -> None:
        self.service, self.generation = exchange.service, exchange.generation
        self.sections = sections
        self.transcript = Transcript(exchange.prompt, exchange.service.pieces)
        self._names = exchange.names

    async def respond(self, http: HttpRequest, body: CommonFields) -> Response:
        """The answer, whole or as a stream of events."""
        if body.stream:
            return await answer_stream(http, self.service, self.generation, self._frames())
        return await answer_whole(http, self.generation, self._whole())

    @property
    def is_complete(self) -> bool:
        """Whether the answer ended by itself."""
        return self.transcript.finish_reason is not FinishReason.LENGTH

    @abstractmethod
    def begin(self) -> list[Event]:
        """The events before the first section."""

    @abstractmethod
    def end(self) -> list[Event]:
        """The events after the last section."""

    @abstractmethod
    def fail(self, fault: ApiError) -> list[Event]:
        """The events of a fault; nothing follows them."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer as one document, now that nothing more comes."""

    def numbered(self, event: Event) -> Event:
        """The event as it is sent, in this order."""
        return event

    def _push(self, chunk: Chunk) -> list[Event]:
        events = [
            each for event in self.transcript.push(chunk) for each in self.sections.push(event)
        ]
        if chunk.finish_reason is not None:
            events += self.sections.finish(self.is_complete)
        return events

    async def _whole(self) -> dict[str, Any]:
        async for _, chunk in self.generation:
            self._push(chunk)
        return self.whole()

    async def _frames(self) -> AsyncGenerator[bytes]:
        try:
            for event in self.begin():
                yield self._frame(event)
            async for _, chunk in self.generation:
                for event in self._push(chunk):
                    yield self._frame(event)
            for event in self.end():
                yield self._frame(event)
        except Exception as error:
            fault = api_error(error, self._names)
            self.service.report(error, fault)
            for event in self.fail(fault):
                yield self._frame(event)

    def _frame(self, event: Event) -> bytes:
        return frame(self.numbered(event), str(event["type"]))
