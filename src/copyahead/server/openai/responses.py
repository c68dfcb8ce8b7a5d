"""`POST /v1/responses`: one answer as a list of items, and the events of their making.

Every item has one id, the same in all its events and in the whole response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from copyahead.server.constraints import constraint_of
from copyahead.server.errors import ApiError
from copyahead.server.events import Event, Kind, Section, Sections, TypedAnswer
from copyahead.server.openai.responses_input import (
    FIELD_NAMES,
    ResponsesRequest,
    format_of,
    functions_of,
    messages_of,
)
from copyahead.server.route import ChatRoute, Exchange
from copyahead.server.usage import timings
from copyahead.server.wire import new_id, now

INPUT_TOKENS = {"object": "response.input_tokens"}
"""What a count of tokens says of itself."""


class ResponsesRoute(ChatRoute[ResponsesRequest]):
    """OpenAI's responses."""

    name = "responses"
    id_prefix = "resp_"
    prompt_field = "input"
    field_names: ClassVar = FIELD_NAMES

    def conversation(self, body: ResponsesRequest) -> dict[str, Any]:
        """The items put together; how hard to think is the template's business."""
        options = dict(body.chat_template_kwargs or {})
        effort = body.reasoning.effort if body.reasoning is not None else None
        if effort is not None:
            options.setdefault("reasoning_effort", effort)
            options.setdefault("enable_thinking", effort != "none")
        return {
            "messages": messages_of(body),
            "tools": functions_of(body.tools),
            "tool_choice": body.tool_choice,
            "parallel_tool_calls": body.parallel_tool_calls,
            **constraint_of(body, "text.format", format_of(body.text)).for_prompt(),
            "template_options": options,
        }

    def budget(self, body: ResponsesRequest) -> tuple[str, int | None]:
        """Its own name for `max_tokens`."""
        return "max_output_tokens", body.max_output_tokens

    def answer(self, exchange: Exchange[ResponsesRequest]) -> ResponsesAnswer:
        """The one response."""
        return ResponsesAnswer(exchange)


class Output(Sections):
    """The items of one response, with the events in the official order."""

    def begun(self, section: Section) -> list[Event]:
        """The item, and its one part where it is text."""
        section.id = new_id(_ITEMS[section.kind].id_prefix)
        item = _item(section, "in_progress")
        events: list[Event] = [
            {"type": "response.output_item.added", "output_index": section.index, "item": item}
        ]
        if section.kind != "call":
            part = {**_place(section), "part": _part(section)}
            events.append({"type": "response.content_part.added", **part})
        return events

    def grown(self, section: Section, text: str) -> Event:
        """More text, or more arguments."""
        name = f"response.{_ITEMS[section.kind].text_name}.delta"
        return {"type": name, **_text_place(section), "delta": text}

    def ended(self, section: Section, document: Mapping[str, Any]) -> list[Event]:
        """The whole text, the whole part, the whole item."""
        name = f"response.{_ITEMS[section.kind].text_name}.done"
        if section.kind == "call":
            done = {"arguments": section.text, "name": section.name}
        else:
            done = {"text": section.text}
        events: list[Event] = [{"type": name, **_text_place(section), **done}]
        if section.kind != "call":
            part = {**_place(section), "part": _part(section)}
            events.append({"type": "response.content_part.done", **part})
        item = {"output_index": section.index, "item": document}
        return [*events, {"type": "response.output_item.done", **item}]

    def document(self, section: Section, complete: bool) -> dict[str, Any]:
        """The item."""
        return _item(section, "completed" if complete else "incomplete")


class _Names(NamedTuple):
    """What a kind of section is called here."""

    type: str
    id_prefix: str
    text_name: str


_ITEMS: dict[Kind, _Names] = {
    "text": _Names("message", "msg_", "output_text"),
    "thinking": _Names("reasoning", "rs_", "reasoning_text"),
    "call": _Names("function_call", "fc_", "function_call_arguments"),
}


def _item(section: Section, status: str) -> dict[str, Any]:
    head = {"id": section.id, "type": _ITEMS[section.kind].type, "status": status}
    if section.kind == "call":
        call = {"call_id": section.call_id, "name": section.name, "arguments": section.text}
        return {**head, **call}
    content = [] if status == "in_progress" else [_part(section)]
    if section.kind == "thinking":
        return {**head, "summary": [], "content": content}
    return {**head, "role": "assistant", "content": content}


def _part(section: Section) -> dict[str, Any]:
    """The one part of an item that is text."""
    if section.kind == "thinking":
        return {"type": "reasoning_text", "text": section.text}
    return {"type": "output_text", "text": section.text, "annotations": [], "logprobs": []}


def _place(section: Section) -> dict[str, Any]:
    place: dict[str, Any] = {"item_id": section.id, "output_index": section.index}
    if section.kind != "call":
        place["content_index"] = 0
    return place


def _text_place(section: Section) -> dict[str, Any]:
    """The place of text, with the log-probabilities that clients expect beside it."""
    place = _place(section)
    return {**place, "logprobs": []} if section.kind == "text" else place


class ResponsesAnswer(TypedAnswer):
    """A response."""

    def __init__(self, exchange: Exchange[ResponsesRequest]) -> None:
        super().__init__(exchange, Output())
        self._head = _head(exchange)
        self._num_events = 0

    def begin(self) -> list[Event]:
        """The response without items, twice."""
        response = {**self._head, "status": "in_progress", "output": [], "usage": None}
        kinds = ("response.created", "response.in_progress")
        return [{"type": kind, "response": response} for kind in kinds]

    def end(self) -> list[Event]:
        """The whole response."""
        kind = "response.completed" if self.is_complete else "response.incomplete"
        return [{"type": kind, "response": self.whole()}]

    def fail(self, fault: ApiError) -> list[Event]:
        """The response as far as it came."""
        code = "rate_limit_exceeded" if fault.status == 429 else "server_error"
        error = {"code": code, "message": str(fault)}
        items = {"output": self.sections.documents, "usage": None}
        response = {**self._head, "status": "failed", "error": error, **items}
        return [{"type": "response.failed", "response": response}]

    def whole(self) -> dict[str, Any]:
        """The response."""
        return {
            **self._head,
            "status": "completed" if self.is_complete else "incomplete",
            "completed_at": now() if self.is_complete else None,
            "incomplete_details": None if self.is_complete else {"reason": "max_output_tokens"},
            "output": self.sections.documents,
            "usage": self._usage(),
            "timings": timings(self.generation.stats),
        }

    def numbered(self, event: Event) -> Event:
        """Events are numbered from 0."""
        number = self._num_events
        self._num_events += 1
        return {"type": event["type"], "sequence_number": number, **event}

    def _usage(self) -> dict[str, Any]:
        stats, thought = self.generation.stats, self.transcript.num_reasoning_tokens
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


def _head(exchange: Exchange[ResponsesRequest]) -> dict[str, Any]:
    """What a response says of its request; every field is there, as strict clients want it."""
    body = exchange.body
    text = body.text.model_dump(exclude_none=True, by_alias=True) if body.text else {}
    reasoning = body.reasoning or None
    return {
        "id": exchange.generation.id,
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
        "model": exchange.service.options.model_name,
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
