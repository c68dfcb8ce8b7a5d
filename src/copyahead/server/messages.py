"""`POST /v1/messages`: one answer as a list of blocks, and the events of their making.

A block is open from its start to its stop, and only one at a time; all text that comes without a
call in between is in one block.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.engine.request import Chunk, Request
from copyahead.errors import CopyaheadError
from copyahead.server.answers import (
    answer_stream,
    answer_whole,
    json_response,
    make_request,
)
from copyahead.server.errors import MESSAGES_PATH, api_error
from copyahead.server.generation import Generation
from copyahead.server.messages_input import (
    FIELD_NAMES,
    Conversation,
    CountRequest,
    MessagesRequest,
    choice_of,
    format_of,
    functions_of,
    messages_of,
)
from copyahead.server.prompting import ChatPrompt, chat_prompt
from copyahead.server.reply import ReasoningDelta, ReplyEvent
from copyahead.server.service import Service
from copyahead.server.streaming import frame, while_connected
from copyahead.server.tool_parser import TextDelta, ToolCallStart
from copyahead.server.usage import timings
from copyahead.server.wire import budget, new_id
from copyahead.types import FinishReason, Token

Event = dict[str, Any]


async def messages(
    service: Service, http: HttpRequest, body: MessagesRequest, tenant: str
) -> Response:
    """Answer one request."""
    try:
        prompt = await while_connected(http, _prompt(service, body))
        request = await _request(service, body, prompt, tenant)
        generation = service.start([request], answer_id=new_id("msg_"), route="messages")
        answer = MessagesAnswer(service, prompt, body, generation)
        if body.stream:
            return await answer_stream(http, service, generation, _frames(service, answer))
        return await answer_whole(http, generation, answer.whole())
    except CopyaheadError as error:
        raise api_error(error, FIELD_NAMES) from error


async def count_tokens(service: Service, http: HttpRequest, body: CountRequest) -> Response:
    """How many tokens the prompt of a request has."""
    try:
        prompt = await while_connected(http, _prompt(service, body))
    except CopyaheadError as error:
        raise api_error(error, FIELD_NAMES) from error
    return json_response({"input_tokens": len(prompt.tokens)})


async def _prompt(service: Service, body: Conversation) -> ChatPrompt:
    conversation, prefill = messages_of(body)
    options = dict(body.chat_template_kwargs or {})
    if body.thinking is not None:
        options.setdefault("enable_thinking", body.thinking.type != "disabled")
    choice = body.tool_choice
    return await chat_prompt(
        service,
        conversation,
        tools=functions_of(body.tools),
        tool_choice=choice_of(choice),
        parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
        response_format=format_of(body.output_config),
        template_options=options,
        prefill=prefill,
    )


async def _request(
    service: Service, body: MessagesRequest, prompt: ChatPrompt, tenant: str
) -> Request:
    return await make_request(
        service,
        body,
        prompt.tokens,
        tenant,
        stop=(*body.sequences, *service.template.end_texts),
        sampling=body.sampling(default_temperature=1.0),
        max_tokens=budget("max_tokens", body.max_tokens),
        **prompt.constraint,
    )


class Blocks:
    """The content of one message, and the events of its making."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._open: str | None = None
        self._text = ""

    def push(self, event: ReplyEvent) -> list[Event]:
        """The events that `event` makes."""
        if isinstance(event, ToolCallStart):
            call_id = event.id.replace("call_", "toolu_", 1)
            return self._begin({"type": "tool_use", "id": call_id, "name": event.name, "input": {}})
        if isinstance(event, TextDelta):
            started = self._turn_to({"type": "text", "text": ""})
            return [*started, self._add("text_delta", "text", event.text)]
        if isinstance(event, ReasoningDelta):
            started = self._turn_to({"type": "thinking", "thinking": "", "signature": ""})
            return [*started, self._add("thinking_delta", "thinking", event.text)]
        return [self._add("input_json_delta", "partial_json", event.arguments)]

    def finish(self) -> list[Event]:
        """The end of the last block. A message always has a block."""
        started = [] if self.blocks else self._turn_to({"type": "text", "text": ""})
        return [*started, *self._end()]

    def _turn_to(self, block: dict[str, Any]) -> list[Event]:
        return [] if self._open == block["type"] else self._begin(block)

    def _begin(self, block: dict[str, Any]) -> list[Event]:
        ended = self._end()
        self.blocks.append(block)
        self._open, self._text = block["type"], ""
        index = len(self.blocks) - 1
        start = {"type": "content_block_start", "index": index, "content_block": dict(block)}
        return [*ended, start]

    def _add(self, kind: str, name: str, text: str) -> Event:
        self._text += text
        delta = {"type": kind, name: text}
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}

    def _end(self) -> list[Event]:
        if self._open is None:
            return []
        block = self.blocks[-1]
        if self._open == "tool_use":
            block["input"] = _input(self._text)
        else:
            block[self._open] = self._text
        self._open = None
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]


def _input(arguments: str) -> dict[str, Any]:
    """The object that a call's arguments are; under `arguments`, as text, what is none."""
    try:
        value = json.loads(arguments)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


class MessagesAnswer:
    """Takes chunks, gives events, and keeps the message."""

    def __init__(
        self, service: Service, prompt: ChatPrompt, body: MessagesRequest, generation: Generation
    ) -> None:
        self.generation = generation
        self._service = service
        self._num_prompt_tokens = len(prompt.tokens)
        self._reply = prompt.reply()
        self._sequences = body.sequences
        self._blocks = Blocks()
        self._tokens: list[Token] = []
        self._shown = ""
        self._reason = FinishReason.STOP

    def push(self, chunk: Chunk) -> list[Event]:
        """The events of a chunk."""
        self._tokens += chunk.tokens
        self._shown += chunk.text
        events = self._reply.push(chunk.text)
        if chunk.finish_reason is not None:
            self._reason = chunk.finish_reason
            events += self._reply.finish()
        made = [each for event in events for each in self._blocks.push(event)]
        if chunk.finish_reason is not None:
            made += self._blocks.finish()
        return made

    async def whole(self) -> dict[str, Any]:
        """The message when all chunks have come."""
        async for _, chunk in self.generation:
            self.push(chunk)
        return {
            **self.begun(),
            "content": self._blocks.blocks,
            **self._stop(),
            "usage": self._usage(),
            "timings": timings(self.generation.stats),
        }

    def begun(self) -> dict[str, Any]:
        """The message before its first block."""
        return {
            "id": self.generation.id,
            "type": "message",
            "role": "assistant",
            "model": self._service.options.model_name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**self._usage(), "output_tokens": 0},
        }

    def ended(self) -> Event:
        """The event that says why there is no more."""
        return {
            "type": "message_delta",
            "delta": self._stop(),
            "usage": self._usage(),
            "timings": timings(self.generation.stats),
        }

    def _stop(self) -> dict[str, Any]:
        sequence = self._sequence()
        if self._reason is FinishReason.LENGTH:
            reason = "max_tokens"
        elif sequence is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self._reply.calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _sequence(self) -> str | None:
        """The stop sequence that ended the answer: the one that its tokens go on with."""
        if self._reason is not FinishReason.STOP or not self._sequences:
            return None
        rest = self._service.text(self._tokens)[len(self._shown) :]
        return next((each for each in self._sequences if rest.startswith(each)), None)

    def _usage(self) -> dict[str, Any]:
        """Tokens read anew, read from the cache, and written: all so far."""
        stats = self.generation.stats
        return {
            "input_tokens": self._num_prompt_tokens - stats.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": stats.num_cached_tokens,
            "output_tokens": stats.num_output_tokens,
        }


async def _frames(service: Service, answer: MessagesAnswer) -> AsyncGenerator[bytes]:
    try:
        yield _named({"type": "message_start", "message": answer.begun()})
        yield _named({"type": "ping"})
        async for _, chunk in answer.generation:
            for event in answer.push(chunk):
                yield _named(event)
        yield _named(answer.ended())
        yield _named({"type": "message_stop"})
    except Exception as error:
        fault = api_error(error, FIELD_NAMES)
        service.report(error, fault)
        yield _named(fault.body(MESSAGES_PATH))


def _named(event: Event) -> bytes:
    return frame(event, str(event["type"]))
