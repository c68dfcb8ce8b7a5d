"""What `POST /v1/messages` takes, Anthropic's shape, brought into the shape of the chat route."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from copyahead.chat.messages import text_of
from copyahead.chat.tools.definitions import checked_function
from copyahead.chat.tools.elsewhere import LeftOut, functions_only, text_elsewhere
from copyahead.chat.untrusted_json import is_shallow
from copyahead.server.errors import ApiError
from copyahead.server.http.text_limit import texts_in
from copyahead.server.wire import (
    RENAMES,
    CommonFields,
    ResponseFormat,
    Wire,
    check_stop_lengths,
    not_supported,
    text_field,
)

FIELD_NAMES = {
    **RENAMES,
    "prompt": "messages",
    "response_format": "output_config.format",
    "json_schema": "output_config.format",
}
"""Names of the chat route and of the engine, to those of this route."""

MAX_STOPS = 64
"""Stop sequences a request may give."""


class AnthropicMessage(Wire):
    """One message: text, or a list of blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class AnthropicToolChoice(Wire):
    """Which tool is to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Wire):
    """Whether the model is to think first; handed to the chat template."""

    type: str


class OutputConfig(Wire):
    """The form of the answer."""

    model_config = ConfigDict(extra="allow")

    format: dict[str, Any] | None = None
    effort: str | None = None


class AnthropicConversation(CommonFields):
    """What a count and an answer have in common."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = Field(None, description="As the beta called it.")
    chat_template_kwargs: dict[str, Any] | None = None

    def prompts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The messages with the system prompt, and what all have."""
        contents = [self.system, *(message.content for message in self.messages)]
        yield "messages", (text for content in contents for text in texts_in(content))
        yield from super().prompts()


class CountTokensRequest(AnthropicConversation):
    """Body of `POST /v1/messages/count_tokens`."""


class MessagesRequest(AnthropicConversation):
    """Body of `POST /v1/messages`."""

    max_tokens: int
    stop_sequences: list[str] | None = None

    def check(self) -> None:
        """Raise ApiError for what this route cannot do."""
        if self.n not in (None, 1):
            raise not_supported("n", "a message is one answer")
        if self.include_copied:
            raise not_supported("include_copied", "use /v1/chat/completions for that")

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop sequences, and the stop strings; ApiError for an empty one or too many."""
        sequences = tuple(self.stop_sequences or ())
        if "" in sequences or len(sequences) > MAX_STOPS:
            raise ApiError(
                f"stop_sequences must be at most {MAX_STOPS} texts, none of them empty",
                param="stop_sequences",
                code="invalid_value",
            )
        check_stop_lengths(sequences, "stop_sequences")
        return (*sequences, *super().stops)


def messages_of(body: AnthropicConversation) -> tuple[list[dict[str, Any]], str]:
    """Messages as the chat route has them, and the beginning of the answer, if it is given.

    ApiError or RequestError names the block that is not text, a call, or a result.
    """
    messages: list[dict[str, Any]] = []
    left_out = LeftOut()
    system = text_of(body.system, "system")
    if system:
        messages.append({"role": "system", "content": system})
    for place, turn in enumerate(body.messages):
        where = f"messages[{place}].content"
        blocks = turn.content
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if turn.role == "assistant":
            messages.append(_assistant(blocks, where, left_out))
        else:
            messages += _user(turn.role, blocks, where, left_out)
    left_out.log()
    if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        if len(messages) == 1:
            raise ApiError(
                "messages holds nothing but the beginning of the answer: what is to be answered?",
                param="messages",
                code="invalid_value",
            )
        return messages[:-1], messages[-1]["content"]
    return messages, ""


def _assistant(
    blocks: Sequence[Mapping[str, Any]], where: str, left_out: LeftOut
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    texts: list[str] = []
    for place, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "thinking":
            message["reasoning_content"] = text_field(block, "thinking", f"{where}[{place}]")
        elif kind == "tool_use":
            message.setdefault("tool_calls", []).append(_call(block, f"{where}[{place}]"))
        elif kind != "redacted_thinking":
            texts.append(_block_text(block, f"{where}[{place}]", left_out))
    return {**message, "content": "".join(texts)}


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    if not isinstance(arguments, Mapping) or not is_shallow(arguments):
        what = "nested less deeply" if isinstance(arguments, Mapping) else "an object"
        raise ApiError(
            f"{where}.input must be {what}", param=f"{where}.input", code="invalid_value"
        )
    function = {
        "name": text_field(block, "name", where),
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }
    return {"id": text_field(block, "id", where), "type": "function", "function": function}


def _user(
    role: str, blocks: Sequence[Mapping[str, Any]], where: str, left_out: LeftOut
) -> list[dict[str, Any]]:
    """Results of tools come first, whatever stands between them."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for place, block in enumerate(blocks):
        at = f"{where}[{place}]"
        if block.get("type") == "tool_result":
            content = _result_text(block.get("content"), f"{at}.content", left_out)
            if block.get("is_error"):
                content = f"Error: {content}"
            call_id = text_field(block, "tool_use_id", at)
            results.append({"role": "tool", "tool_call_id": call_id, "content": content})
        else:
            texts.append(_block_text(block, at, left_out))
    if texts or not results:
        results.append({"role": role, "content": "\n\n".join(filter(None, texts))})
    return results


def _result_text(content: Any, where: str, left_out: LeftOut) -> str:
    """What a tool gave back: a text, or a list of blocks."""
    if not isinstance(content, list) or not all(isinstance(part, Mapping) for part in content):
        return text_of(content, where)
    return "".join(
        _block_text(part, f"{where}[{place}]", left_out) for place, part in enumerate(content)
    )


_NEEDED = ("image", "document", "audio", "video", "file")
"""Blocks without which the conversation would mean something else."""


def _block_text(block: Mapping[str, Any], where: str, left_out: LeftOut) -> str:
    """The text of a block; empty for one that has none and is left out."""
    source = block.get("source")
    if (
        block.get("type") == "document"
        and isinstance(source, Mapping)
        and source.get("type") == "text"
        and isinstance(source.get("data"), str)
    ):
        return str(source["data"])
    kind = block.get("type")
    if kind == "text":
        return text_field(block, "text", where)
    if not isinstance(kind, str) or kind in _NEEDED:
        raise ApiError(
            f"{where} is a block of type {kind!r}, and the model reads text only",
            param=where,
            code="invalid_value",
        )
    text = text_elsewhere(block)
    if not text:
        left_out.add(kind)
    return f"{text}\n" if text else ""


def functions_of(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The tools of a request, checked, in the chat route's shape; those without a schema are
    skipped. Raises RequestError.

    Such tools (web search and others) are known by their type alone, to a model that was trained
    on them.
    """
    return [
        checked_function(tool, f"tools[{place}]", "input_schema")
        for place, tool in functions_only(tools, (None, "custom"))
    ]


def choice_of(choice: AnthropicToolChoice | None) -> str | dict[str, Any] | None:
    """`tool_choice` in the chat route's shape."""
    if choice is None:
        return None
    if choice.type == "tool" and choice.name is None:
        raise ApiError(
            "tool_choice of type 'tool' needs the name of one",
            param="tool_choice.name",
            code="invalid_value",
        )
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return {"auto": "auto", "any": "required", "none": "none"}[choice.type]


def format_of(body: AnthropicConversation) -> tuple[str, ResponseFormat | None]:
    """The field for the form of the answer, and what it holds in the chat route's shape.

    `output_format` is what `output_config.format` was called before.
    """
    config = body.output_config
    more = (config.model_extra if config is not None else None) or {}
    for key in sorted(_MISPLACED & set(more)):
        raise not_supported(f"output_config.{key}", "give the schema in output_config.format")
    newer = config.format if config is not None else None
    if newer is not None and body.output_format is not None:
        message = "output_config.format and output_format exclude each other: give one"
        raise ApiError(message, param="output_format", code="invalid_value")
    field = "output_config.format" if body.output_format is None else "output_format"
    given = newer if body.output_format is None else body.output_format
    if given is None:
        return field, None
    if given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict | bool):
        raise ApiError(
            f"{field} must be of type json_schema, with a schema", param=field, code="invalid_value"
        )
    return field, ResponseFormat.model_validate(given)


_MISPLACED = frozenset({"type", "schema", "json_schema"})
"""What belongs into the format."""
