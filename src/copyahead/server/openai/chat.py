"""`POST /v1/chat/completions`: from messages to a request, and from chunks to deltas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.engine.request import Chunk, Request, TokenLogprob
from copyahead.engine.text import Run
from copyahead.errors import CopyaheadError
from copyahead.server.answers import make_request
from copyahead.server.errors import ApiError, api_error
from copyahead.server.http.streaming import while_connected
from copyahead.server.openai.choices import ChoicesAnswer, copied_runs
from copyahead.server.openai.logprobs import chat_logprobs
from copyahead.server.prompting import ChatPrompt, chat_prompt
from copyahead.server.reply import ReasoningDelta, ReplyEvent
from copyahead.server.service import Service
from copyahead.server.tool_parser import TextDelta, ToolCallStart
from copyahead.server.transcript import Transcript
from copyahead.server.wire import RENAMES, ChatRequest, budget, new_id
from copyahead.types import FinishReason

FIELD_NAMES = {**RENAMES, "prompt": "messages", "logprobs": "top_logprobs"}


async def chat(service: Service, http: HttpRequest, body: ChatRequest, tenant: str) -> Response:
    """Answer one chat request."""
    names: Mapping[str, str] = FIELD_NAMES
    try:
        prompt = await while_connected(http, _prompt(service, body))
        names = prompt.field_names(names)
        request = await _request(service, body, prompt, tenant)
        choices = [ChatChoice(service, prompt, body, index) for index in range(request.n)]
        generation = service.start([request], answer_id=new_id("chatcmpl-"), route="chat")
        kinds = ("chat.completion", "chat.completion.chunk")
        answer = ChoicesAnswer(service, generation, choices, kinds=kinds, renames=names)
        return await answer.respond(http, body)
    except CopyaheadError as error:
        raise api_error(error, names) from error


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
        prompt_field="messages",
        stop=(*body.stops, *service.template.end_texts),
        sampling=body.sampling(default_temperature=1.0),
        max_tokens=budget(name, getattr(body, name)),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        **prompt.constraint,
    )


class ChatChoice:
    """One choice: takes its chunks, gives deltas, and keeps what the whole answer needs."""

    def __init__(self, service: Service, prompt: ChatPrompt, body: ChatRequest, index: int) -> None:
        self._index = index
        self._transcript = Transcript(prompt, service.pieces)
        self._pieces = service.pieces
        self._with_copied = bool(body.include_copied)
        self._with_logprobs = bool(body.logprobs)
        self._runs: list[Run] = []
        self._logprobs: list[TokenLogprob] = []
        self._opened = False

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of its thinking."""
        return self._transcript.num_reasoning_tokens

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """What `chunk` adds, as the `choices` entries of a stream."""
        self._runs += chunk.pieces
        self._logprobs += chunk.logprobs
        deltas = [_delta(event) for event in self._transcript.push(chunk)]
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
            choices.append({**self._choice({}), "finish_reason": self._finish_reason()})
        return choices

    def whole(self) -> dict[str, Any]:
        """The entry of `choices` in a document."""
        reply = self._transcript.reply
        message: dict[str, Any] = {"role": "assistant", "content": reply.content}
        message["refusal"] = None
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["content"] = reply.content if reply.content.strip() else None
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in reply.calls
            ]
        reason = self._finish_reason()
        choice = {"index": self._index, "message": message, "finish_reason": reason}
        choice["logprobs"] = (
            chat_logprobs(self._pieces, self._logprobs) if self._with_logprobs else None
        )
        if self._with_copied:
            choice["copied"] = copied_runs(self._runs)
        return choice

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _finish_reason(self) -> str:
        reason = self._transcript.finish_reason
        if reason is FinishReason.STOP and self._transcript.reply.calls:
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
