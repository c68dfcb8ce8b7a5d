"""`POST /v1/messages`: one answer as a list of blocks, and the events of their making."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from copyahead.chat.untrusted_json import parsed
from copyahead.server.anthropic.messages_input import (
    FIELD_NAMES,
    AnthropicConversation,
    MessagesRequest,
    choice_of,
    format_of,
    functions_of,
    messages_of,
)
from copyahead.server.constraints import constraint_of
from copyahead.server.errors import MESSAGES_PATH, ApiError
from copyahead.server.events import Event, Section, Sections, TypedAnswer
from copyahead.server.route import ChatRoute, Exchange
from copyahead.server.usage import timings
from copyahead.types import FinishReason


class MessagesRoute(ChatRoute[MessagesRequest]):
    """Anthropic's messages."""

    name = "messages"
    id_prefix = "msg_"
    prompt_field = "messages"
    field_names: ClassVar = FIELD_NAMES

    def conversation(self, body: AnthropicConversation) -> dict[str, Any]:
        """The blocks put together; also for a count."""
        messages, prefill = messages_of(body)
        options = dict(body.chat_template_kwargs or {})
        if body.thinking is not None:
            options.setdefault("enable_thinking", body.thinking.type != "disabled")
        choice = body.tool_choice
        return {
            "messages": messages,
            "tools": functions_of(body.tools),
            "tool_choice": choice_of(choice),
            "parallel_tool_calls": not (choice is not None and choice.disable_parallel_tool_use),
            **constraint_of(body, *format_of(body)).for_prompt(),
            "template_options": options,
            "prefill": prefill,
        }

    def budget(self, body: MessagesRequest) -> tuple[str, int | None]:
        """It has to be given."""
        return "max_tokens", body.max_tokens

    def answer(self, exchange: Exchange[MessagesRequest]) -> MessagesAnswer:
        """The one message."""
        return MessagesAnswer(exchange)


class Blocks(Sections):
    """The content of one message."""

    def begun(self, section: Section) -> list[Event]:
        """A call's arguments are an empty object until it ends."""
        block = {**_block(section), **({"input": {}} if section.kind == "call" else {})}
        return [{"type": "content_block_start", "index": section.index, "content_block": block}]

    def grown(self, section: Section, text: str) -> Event:
        """The text under the name that the kind of block has for it."""
        kind, name = _DELTAS[section.kind]
        delta = {"type": kind, name: text}
        return {"type": "content_block_delta", "index": section.index, "delta": delta}

    def ended(self, section: Section, document: Mapping[str, Any]) -> list[Event]:
        """Its number is enough."""
        return [{"type": "content_block_stop", "index": section.index}]

    def document(self, section: Section, complete: bool) -> dict[str, Any]:
        """The block with what was written."""
        return _block(section)


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _block(section: Section) -> dict[str, Any]:
    if section.kind == "text":
        return {"type": "text", "text": section.text}
    if section.kind == "thinking":
        return {"type": "thinking", "thinking": section.text, "signature": ""}
    call_id = section.call_id.replace("call_", "toolu_", 1)
    return {
        "type": "tool_use",
        "id": call_id,
        "name": section.name,
        "input": _input(section.text),
    }


def _input(arguments: str) -> dict[str, Any]:
    """The object that a call's arguments are; under `arguments`, as text, what is none."""
    if not arguments.strip():
        return {}
    value = parsed(arguments)
    return value if isinstance(value, dict) else {"arguments": arguments}


class MessagesAnswer(TypedAnswer):
    """A message."""

    def __init__(self, exchange: Exchange[MessagesRequest]) -> None:
        super().__init__(exchange, Blocks())
        self._num_prompt_tokens = len(exchange.prompt.tokens)
        self._sequences = exchange.body.stops

    def begin(self) -> list[Event]:
        """The message without content."""
        usage = {**self._usage(), "output_tokens": 0}
        message = {**self._head(), "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def end(self) -> list[Event]:
        """Why there is no more, and what it cost."""
        counts = {"usage": self._usage(), "timings": timings(self.generation.stats)}
        ending = {"type": "message_delta", "delta": self._stop(), **counts}
        return [ending, {"type": "message_stop"}]

    def fail(self, fault: ApiError) -> list[Event]:
        """The error's own object is an event."""
        return [fault.body(MESSAGES_PATH)]

    def whole(self) -> dict[str, Any]:
        """The message."""
        return {
            **self._head(),
            "content": self.sections.documents,
            **self._stop(),
            "usage": self._usage(),
            "timings": timings(self.generation.stats),
        }

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.generation.id,
            "type": "message",
            "role": "assistant",
            "model": self.service.options.model_name,
            "content": [],
        }

    def _stop(self) -> dict[str, Any]:
        sequence = self._sequence()
        if not self.is_complete:
            reason = "max_tokens"
        elif sequence is not None:
            reason = "stop_sequence"
        else:
            reason = "tool_use" if self.transcript.reply.calls else "end_turn"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _sequence(self) -> str | None:
        """The stop sequence that ended the answer: the one that its tokens go on with."""
        transcript = self.transcript
        if transcript.finish_reason is not FinishReason.STOP or not self._sequences:
            return None
        rest = self.service.text(transcript.tokens)[transcript.num_shown :]
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
