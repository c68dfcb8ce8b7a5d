"""`POST /v1/responses`: one answer as a list of items, and the events of their making.

Every item has one id, the same in all its events and in the whole response.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.engine.request import Chunk, Request
from copyahead.errors import CopyaheadError
from copyahead.server.answers import (
    answer_stream,
    answer_whole,
    make_request,
    num_reasoning_tokens,
)
from copyahead.server.errors import api_error
from copyahead.server.generation import Generation
from copyahead.server.prompting import ChatPrompt, chat_prompt
from copyahead.server.reply import ReasoningDelta, ReplyEvent
from copyahead.server.responses_input import (
    FIELD_NAMES,
    ResponsesRequest,
    format_of,
    functions_of,
    messages_of,
)
from copyahead.server.service import Service
from copyahead.server.streaming import frame, while_connected
from copyahead.server.tool_parser import TextDelta, ToolCallStart
from copyahead.server.usage import timings
from copyahead.server.wire import budget, new_id, now
from copyahead.stats import CopyStats
from copyahead.types import FinishReason, Token

Event = tuple[str, dict[str, Any]]
"""An event's type and its fields, apart from its number."""
Kind = Literal["message", "reasoning", "function_call"]
_PREFIXES: dict[Kind, str] = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}


async def responses(
    service: Service, http: HttpRequest, body: ResponsesRequest, tenant: str
) -> Response:
    """Answer one request."""
    try:
        body.check()
        prompt = await while_connected(http, _prompt(service, body))
        request = await _request(service, body, prompt, tenant)
        generation = service.start([request], answer_id=new_id("resp_"), route="responses")
        answer = ResponsesAnswer(service, prompt, body, generation)
        if body.stream:
            return await answer_stream(http, service, generation, _frames(service, answer))
        return await answer_whole(http, generation, answer.whole())
    except CopyaheadError as error:
        raise api_error(error, FIELD_NAMES) from error


async def _prompt(service: Service, body: ResponsesRequest) -> ChatPrompt:
    options = dict(body.chat_template_kwargs or {})
    effort = body.reasoning.effort if body.reasoning is not None else None
    if effort is not None:
        options.setdefault("reasoning_effort", effort)
        options.setdefault("enable_thinking", effort != "none")
    return await chat_prompt(
        service,
        messages_of(body),
        tools=functions_of(body.tools),
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=format_of(body.text),
        template_options=options,
    )


async def _request(
    service: Service, body: ResponsesRequest, prompt: ChatPrompt, tenant: str
) -> Request:
    return await make_request(
        service,
        body,
        prompt.tokens,
        tenant,
        stop=(*body.stops, *service.template.end_texts),
        sampling=body.sampling(default_temperature=1.0),
        max_tokens=budget("max_output_tokens", body.max_output_tokens),
        **prompt.constraint,
    )


class _Item(msgspec.Struct):
    """An output item as far as it has been written."""

    kind: Kind
    id: str
    index: int
    text: str = ""
    call_id: str = ""
    name: str = ""

    def document(self, status: str) -> dict[str, Any]:
        """The item with what it holds so far."""
        head = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == "function_call":
            return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        content = [] if status == "in_progress" else [self.part()]
        if self.kind == "reasoning":
            return {**head, "summary": [], "content": content}
        return {**head, "role": "assistant", "content": content}

    def part(self) -> dict[str, Any]:
        """Its one part, for items that are text."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}


class Output:
    """The items of one response, and the events of their making, in the official order."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._open: _Item | None = None

    def push(self, event: ReplyEvent) -> list[Event]:
        """The events that `event` makes."""
        if isinstance(event, ToolCallStart):
            item = _Item("function_call", new_id("fc_"), 0, call_id=event.id, name=event.name)
            return self._begin(item)
        if isinstance(event, TextDelta):
            return [*self._turn_to("message"), *self._add(event.text)]
        if isinstance(event, ReasoningDelta):
            return [*self._turn_to("reasoning"), *self._add(event.text)]
        return self._add(event.arguments)

    def finish(self, status: str) -> list[Event]:
        """The events of the last item's end. A response always has an item."""
        events = [] if self.items or self._open is not None else self._turn_to("message")
        return [*events, *self._end(status)]

    def _turn_to(self, kind: Kind) -> list[Event]:
        if self._open is not None and self._open.kind == kind:
            return []
        return self._begin(_Item(kind, new_id(_PREFIXES[kind]), 0))

    def _begin(self, item: _Item) -> list[Event]:
        events = self._end("completed")
        item.index = len(self.items)
        self._open = item
        added = {"output_index": item.index, "item": item.document("in_progress")}
        events.append(("response.output_item.added", added))
        if item.kind != "function_call":
            events.append(("response.content_part.added", {**_place(item), "part": item.part()}))
        return events

    def _add(self, text: str) -> list[Event]:
        item = self._open
        assert item is not None, "text comes after an item has begun"
        item.text += text
        return [(f"response.{_delta_name(item)}.delta", {**_spoken(item), "delta": text})]

    def _end(self, status: str) -> list[Event]:
        item, self._open = self._open, None
        if item is None:
            return []
        self.items.append(item.document(status))
        done = {"arguments" if item.kind == "function_call" else "text": item.text}
        if item.kind == "function_call":
            done["name"] = item.name
        events: list[Event] = [(f"response.{_delta_name(item)}.done", {**_spoken(item), **done})]
        if item.kind != "function_call":
            events.append(("response.content_part.done", {**_place(item), "part": item.part()}))
        ended = {"output_index": item.index, "item": self.items[-1]}
        return [*events, ("response.output_item.done", ended)]


def _delta_name(item: _Item) -> str:
    names = {"message": "output_text", "reasoning": "reasoning_text"}
    return names.get(item.kind, "function_call_arguments")


def _place(item: _Item) -> dict[str, Any]:
    place: dict[str, Any] = {"item_id": item.id, "output_index": item.index}
    if item.kind != "function_call":
        place["content_index"] = 0
    return place


def _spoken(item: _Item) -> dict[str, Any]:
    """The place of text, with the log-probabilities that clients expect beside it."""
    return {**_place(item), "logprobs": []} if item.kind == "message" else _place(item)


class ResponsesAnswer:
    """Takes chunks, gives events, and keeps the response."""

    def __init__(
        self, service: Service, prompt: ChatPrompt, body: ResponsesRequest, generation: Generation
    ) -> None:
        self.generation = generation
        self._reply = prompt.reply()
        self._output = Output()
        self._head = _head(service, body, generation)
        self._pieces = service.pieces
        self._skipped = "" if prompt.thinking else prompt.markers.begin
        self._tokens: list[Token] = []
        self._reason = FinishReason.STOP

    @property
    def is_complete(self) -> bool:
        """Whether the answer ended by itself."""
        return self._reason is not FinishReason.LENGTH

    def push(self, chunk: Chunk) -> list[Event]:
        """The events of a chunk."""
        self._tokens += chunk.tokens
        events = self._reply.push(chunk.text)
        if chunk.finish_reason is not None:
            self._reason = chunk.finish_reason
            events += self._reply.finish()
        made = [each for event in events for each in self._output.push(event)]
        if chunk.finish_reason is not None:
            made += self._output.finish("completed" if self.is_complete else "incomplete")
        return made

    async def whole(self) -> dict[str, Any]:
        """The response when all chunks have come."""
        async for _, chunk in self.generation:
            self.push(chunk)
        return self.ended()

    def begun(self) -> dict[str, Any]:
        """The response before its first item."""
        return {**self._head, "status": "in_progress", "output": [], "usage": None}

    def ended(self) -> dict[str, Any]:
        """The response as it is now that nothing more comes."""
        stats = self.generation.stats
        return {
            **self._head,
            "status": "completed" if self.is_complete else "incomplete",
            "completed_at": now() if self.is_complete else None,
            "incomplete_details": None if self.is_complete else {"reason": "max_output_tokens"},
            "output": self._output.items,
            "usage": self._usage(stats),
            "timings": timings(stats),
        }

    def failed(self, message: str, code: str) -> dict[str, Any]:
        """The response after a fault."""
        error = {"code": code, "message": message}
        items = self._output.items
        return {**self._head, "status": "failed", "error": error, "output": items, "usage": None}

    def _usage(self, stats: CopyStats) -> dict[str, Any]:
        thought = num_reasoning_tokens(
            self._pieces, self._tokens, self._reply.reasoning, self._skipped
        )
        return {
            "input_tokens": stats.num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": stats.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": stats.num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": min(thought, stats.num_output_tokens)},
            "total_tokens": stats.num_prompt_tokens + stats.num_output_tokens,
        }


async def _frames(service: Service, answer: ResponsesAnswer) -> AsyncGenerator[bytes]:
    number = 0

    def numbered(kind: str, fields: Mapping[str, Any]) -> bytes:
        nonlocal number
        data = frame({"type": kind, "sequence_number": number, **fields}, kind)
        number += 1
        return data

    try:
        for kind in ("response.created", "response.in_progress"):
            yield numbered(kind, {"response": answer.begun()})
        async for _, chunk in answer.generation:
            for kind, fields in answer.push(chunk):
                yield numbered(kind, fields)
        kind = "response.completed" if answer.is_complete else "response.incomplete"
        yield numbered(kind, {"response": answer.ended()})
    except Exception as error:
        fault = api_error(error, FIELD_NAMES)
        service.report(error, fault)
        code = "rate_limit_exceeded" if fault.status == 429 else "server_error"
        yield numbered("response.failed", {"response": answer.failed(str(fault), code)})


def _head(service: Service, body: ResponsesRequest, generation: Generation) -> dict[str, Any]:
    """What a response says of its request; every field is there, as strict clients want it."""
    text = body.text.model_dump(exclude_none=True, by_alias=True) if body.text else {}
    reasoning = body.reasoning or None
    return {
        "id": generation.id,
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": service.options.model_name,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {
            "effort": reasoning.effort if reasoning is not None else None,
            "summary": None,
        },
        "service_tier": "default",
        "store": False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}, **text},
        "tool_choice": body.tool_choice if body.tool_choice is not None else "auto",
        "tools": [tool for tool in body.tools or () if tool.get("type") == "function"],
        "top_logprobs": 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
