"""`POST /v1/chat/completions`: from messages to a request, and from chunks to deltas."""

from __future__ import annotations

from typing import Any, ClassVar

from copyahead.chat.prompt import ChatPrompt
from copyahead.chat.reply import ReasoningDelta, ReplyEvent
from copyahead.chat.tools.stream import TextDelta, ToolCallStart
from copyahead.chat.transcript import Transcript
from copyahead.engine.origin import Stretch
from copyahead.engine.request import Chunk, TokenLogprob
from copyahead.engine.text import Run
from copyahead.server.constraints import constraint_of
from copyahead.server.openai.choices import ChoicesAnswer, copied_runs, sources
from copyahead.server.openai.legacy import is_legacy, messages_of, tools_of
from copyahead.server.openai.logprobs import chat_logprobs
from copyahead.server.openai.wire import ChatRequest
from copyahead.server.route import ChatRoute, Exchange
from copyahead.server.service import Service
from copyahead.server.wire import RENAMES
from copyahead.types import FinishReason


class ChatCompletionsRoute(ChatRoute[ChatRequest]):
    """OpenAI's chat completions."""

    name = "chat"
    id_prefix = "chatcmpl-"
    prompt_field = "messages"
    field_names: ClassVar = {**RENAMES, "prompt": "messages", "logprobs": "top_logprobs"}

    def conversation(self, body: ChatRequest) -> dict[str, Any]:
        """As it is: the others are brought into this shape."""
        return {
            "messages": messages_of(body),
            **tools_of(body),
            **constraint_of(body, "response_format", body.response_format).for_prompt(),
            "template_options": body.chat_template_kwargs,
        }

    def budget(self, body: ChatRequest) -> tuple[str, int | None]:
        """The newer of two fields wins."""
        if body.max_completion_tokens is None:
            return "max_tokens", body.max_tokens
        return "max_completion_tokens", body.max_completion_tokens

    def options(self, body: ChatRequest) -> dict[str, Any]:
        """Only here, log-probabilities may be asked for."""
        return {"logprobs": (body.top_logprobs or 0) if body.logprobs else None}

    def answer(self, exchange: Exchange[ChatRequest]) -> ChoicesAnswer:
        """All choices of the request."""
        service, generation = exchange.service, exchange.generation
        choices = [
            ChatChoice(service, exchange.prompt, exchange.body, index)
            for index in range(generation.requests[0].n)
        ]
        kinds = ("chat.completion", "chat.completion.chunk")
        return ChoicesAnswer(service, generation, choices, kinds=kinds, renames=exchange.names)


class ChatChoice:
    """One choice: takes its chunks, gives deltas, and keeps what the whole answer needs."""

    def __init__(self, service: Service, prompt: ChatPrompt, body: ChatRequest, index: int) -> None:
        self._index = index
        self._transcript = Transcript(prompt, service.pieces)
        self._pieces = service.pieces
        self._legacy = is_legacy(body)
        self._with_copied = bool(body.include_copied)
        self._with_sources = bool(body.include_sources)
        self._with_logprobs = bool(body.logprobs)
        self._runs: list[Run] = []
        self._stretches: list[Stretch] = []
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
        if self._with_sources:
            self._stretches += chunk.stretches
        deltas = [_delta(event, self._legacy) for event in self._transcript.push(chunk)]
        marks_text = self._with_copied or self._with_sources
        if not deltas and ((marks_text and chunk.pieces) or chunk.logprobs):
            deltas = [{"content": ""}]
        if not self._opened:
            deltas.insert(0, {"role": "assistant", "content": ""})
            self._opened = True
        choices = [self._choice(delta) for delta in deltas]
        # The extras of a chunk go with its last delta, once.
        if self._with_copied and chunk.pieces:
            choices[-1]["copied"] = copied_runs(chunk.pieces)
        if self._with_sources and chunk.stretches:
            choices[-1]["copyahead"] = sources(chunk.stretches)
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
            functions = [{"name": call.name, "arguments": call.arguments} for call in reply.calls]
            if self._legacy:
                message["function_call"] = functions[0]
            else:
                message["tool_calls"] = [
                    {"id": call.id, "type": "function", "function": function}
                    for call, function in zip(reply.calls, functions, strict=True)
                ]
        reason = self._finish_reason()
        choice = {"index": self._index, "message": message, "finish_reason": reason}
        choice["logprobs"] = (
            chat_logprobs(self._pieces, self._logprobs) if self._with_logprobs else None
        )
        if self._with_copied:
            choice["copied"] = copied_runs(self._runs)
        if self._with_sources:
            choice["copyahead"] = sources(self._stretches)
        return choice

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _finish_reason(self) -> str:
        reason = self._transcript.finish_reason
        if reason is FinishReason.STOP and self._transcript.reply.calls:
            return "function_call" if self._legacy else "tool_calls"
        return str(reason)


def _delta(event: ReplyEvent, legacy: bool) -> dict[str, Any]:
    if isinstance(event, TextDelta):
        return {"content": event.text}
    if isinstance(event, ReasoningDelta):
        return {"reasoning_content": event.text}
    if legacy:
        return {
            "function_call": {"name": event.name, "arguments": ""}
            if isinstance(event, ToolCallStart)
            else {"arguments": event.arguments}
        }
    if isinstance(event, ToolCallStart):
        function = {"name": event.name, "arguments": ""}
        call = {"index": event.index, "id": event.id, "type": "function", "function": function}
    else:
        call = {"index": event.index, "function": {"arguments": event.arguments}}
    return {"tool_calls": [call]}
