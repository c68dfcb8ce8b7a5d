"""`POST /v1/chat/completions`: from messages to a request, and from chunks to deltas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead._version import __version__
from copyahead.engine.request import Chunk, Request, TokenLogprob
from copyahead.engine.text import Run
from copyahead.server.answers import (
    answer_stream,
    answer_whole,
    copied_runs,
    guarded,
    make_request,
    num_reasoning_tokens,
)
from copyahead.server.errors import ApiError
from copyahead.server.generation import Generation
from copyahead.server.logprobs import chat_logprobs
from copyahead.server.prompting import ChatPrompt, chat_prompt
from copyahead.server.reply import ReasoningDelta, ReplyEvent
from copyahead.server.service import Service
from copyahead.server.streaming import DONE, frame, while_connected
from copyahead.server.tool_parser import TextDelta, ToolCallStart
from copyahead.server.usage import timings, usage
from copyahead.server.wire import RENAMES, ChatRequest, budget, new_id, now
from copyahead.types import FinishReason, Token

FIELD_NAMES = {**RENAMES, "prompt": "messages", "logprobs": "top_logprobs"}
FINGERPRINT = f"copyahead-{__version__}"


async def chat(service: Service, http: HttpRequest, body: ChatRequest, tenant: str) -> Response:
    """Answer one chat request."""
    prompt = await while_connected(http, _prompt(service, body))
    request = await _request(service, body, prompt, tenant)
    answers = [ChatAnswer(service, prompt, body, index) for index in range(request.n)]
    generation = service.start([request], answer_id=new_id("chatcmpl-"), route="chat")
    if body.stream:
        frames = guarded(service, _frames(service, generation, answers, body), FIELD_NAMES)
        return await answer_stream(http, service, generation, frames)
    return await answer_whole(http, generation, _document(service, generation, answers))


async def _prompt(service: Service, body: ChatRequest) -> ChatPrompt:
    return await chat_prompt(
        service,
        [message.model_dump(exclude_none=True) for message in body.messages],
        tools=body.tools,
        tool_choice=body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=body.response_format,
        template_options=body.chat_template_kwargs,
    )


async def _request(service: Service, body: ChatRequest, prompt: ChatPrompt, tenant: str) -> Request:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value"
        )
    return await make_request(
        service,
        body,
        prompt.tokens,
        tenant,
        stop=(*body.stops, *service.template.end_texts),
        sampling=body.sampling(default_temperature=1.0),
        max_tokens=budget(name, getattr(body, name)),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **prompt.constraint,
    )


class ChatAnswer:
    """One choice: takes its chunks, gives deltas, and keeps what the whole answer needs."""

    def __init__(self, service: Service, prompt: ChatPrompt, body: ChatRequest, index: int) -> None:
        self.index = index
        self.reply = prompt.reply()
        self.finish_reason: str | None = None
        self._pieces = service.pieces
        self._skipped = "" if prompt.thinking else prompt.markers.begin
        self._with_copied = bool(body.include_copied)
        self._with_logprobs = bool(body.logprobs)
        self._tokens: list[Token] = []
        self._runs: list[Run] = []
        self._logprobs: list[TokenLogprob] = []
        self._opened = False

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of its thinking."""
        reasoning = self.reply.reasoning
        return num_reasoning_tokens(self._pieces, self._tokens, reasoning, self._skipped)

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """What `chunk` adds, as the `choices` entries of a stream."""
        self._tokens += chunk.tokens
        self._runs += chunk.pieces
        self._logprobs += chunk.logprobs
        events = self.reply.push(chunk.text)
        if chunk.finish_reason is not None:
            events += self.reply.finish()
        deltas = [_delta(event) for event in events]
        if not deltas and ((self._with_copied and chunk.pieces) or chunk.logprobs):
            deltas = [{"content": ""}]
        if not self._opened:
            deltas.insert(0, {"role": "assistant", "content": ""})
            self._opened = True
        choices = [self._choice(delta) for delta in deltas]
        # The extras of a chunk go with its last delta, once.
        if self._with_copied and chunk.pieces:
            choices[-1]["copied"] = copied_runs(chunk.pieces)
        if self._with_logprobs and chunk.logprobs:
            choices[-1]["logprobs"] = chat_logprobs(self._pieces, chunk.logprobs)
        if chunk.finish_reason is not None:
            self.finish_reason = self._finish(chunk.finish_reason)
            choices.append({**self._choice({}), "finish_reason": self.finish_reason})
        return choices

    def whole(self) -> dict[str, Any]:
        """The entry of `choices` in a document."""
        calls = self.reply.calls
        message: dict[str, Any] = {"role": "assistant", "content": self.reply.content}
        message["refusal"] = None
        if self.reply.reasoning:
            message["reasoning_content"] = self.reply.reasoning
        if calls:
            message["content"] = self.reply.content if self.reply.content.strip() else None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        choice = {"index": self.index, "message": message, "finish_reason": self.finish_reason}
        choice["logprobs"] = (
            chat_logprobs(self._pieces, self._logprobs) if self._with_logprobs else None
        )
        if self._with_copied:
            choice["copied"] = copied_runs(self._runs)
        return choice

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _finish(self, reason: FinishReason) -> str:
        if reason is FinishReason.STOP and self.reply.calls:
            return "tool_calls"
        return str(reason)


def _delta(event: ReplyEvent) -> dict[str, Any]:
    if isinstance(event, TextDelta):
        return {"content": event.text}
    if isinstance(event, ReasoningDelta):
        return {"reasoning_content": event.text}
    if isinstance(event, ToolCallStart):
        function = {"name": event.name, "arguments": ""}
        call = {"index": event.index, "id": event.id, "type": "function", "function": function}
    else:
        call = {"index": event.index, "function": {"arguments": event.arguments}}
    return {"tool_calls": [call]}


async def _document(
    service: Service, generation: Generation, answers: Sequence[ChatAnswer]
) -> dict[str, Any]:
    async for index, chunk in generation:
        answers[index].push(chunk)
    stats = generation.stats
    return {
        **_head(service, generation, "chat.completion"),
        "choices": [answer.whole() for answer in answers],
        "usage": usage(stats, sum(answer.num_reasoning_tokens for answer in answers)),
        "timings": timings(stats),
    }


async def _frames(
    service: Service, generation: Generation, answers: Sequence[ChatAnswer], body: ChatRequest
) -> AsyncGenerator[bytes]:
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    head = _head(service, generation, "chat.completion.chunk")
    more: dict[str, Any] = {"usage": None} if with_usage else {}
    num_open = len(answers)
    async for index, chunk in generation:
        num_open -= chunk.finish_reason is not None
        choices = answers[index].push(chunk)
        if num_open == 0 and not with_usage:
            more = {"timings": timings(generation.stats)}
        last = len(choices) - 1
        for place, choice in enumerate(choices):
            extra = more if with_usage or place == last else {}
            yield frame({**head, "choices": [choice], **extra})
    if with_usage:
        stats = generation.stats
        counts = usage(stats, sum(answer.num_reasoning_tokens for answer in answers))
        yield frame({**head, "choices": [], "usage": counts, "timings": timings(stats)})
    yield DONE


def _head(service: Service, generation: Generation, kind: str) -> dict[str, Any]:
    return {
        "id": generation.id,
        "object": kind,
        "created": now(),
        "model": service.options.model_name,
        "system_fingerprint": FINGERPRINT,
    }
