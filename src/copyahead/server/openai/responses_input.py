"""What `POST /v1/responses` takes, brought into the shape of the chat route.

The server keeps no responses, so everything that refers to an earlier one is refused. Tools that
are no functions are hosted by somebody else; they are skipped, as clients list them unasked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pydantic import ConfigDict, Field

from copyahead.chat.messages import text_of
from copyahead.chat.tools.definitions import checked_function
from copyahead.chat.tools.elsewhere import (
    LeftOut,
    arguments_text,
    functions_only,
    text_elsewhere,
)
from copyahead.chat.untrusted_json import MAX_DEPTH, is_shallow
from copyahead.server.errors import ApiError
from copyahead.server.http.text_limit import texts_in
from copyahead.server.wire import (
    RENAMES,
    CommonFields,
    ResponseFormat,
    Wire,
    check_form,
    not_supported,
    text_field,
)

FIELD_NAMES = {
    **RENAMES,
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "json_schema": "text.format",
}
"""Names of the chat route and of the engine, to those of this route."""


class TextFormat(Wire):
    """The form of the answer."""

    model_config = ConfigDict(extra="allow")

    type: str = "text"
    name: str | None = None
    json_schema: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Wire):
    """How the answer is written."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(Wire):
    """How the model thinks; `effort` is handed to the chat template."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(CommonFields):
    """Body of `POST /v1/responses`."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, description="null: until the context is full.")
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    previous_response_id: str | None = Field(None, description="Refused: nothing is kept.")
    conversation: str | dict[str, Any] | None = Field(None, description="Refused, too.")
    background: bool | None = None
    top_logprobs: int | None = None
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def prompts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The input with the instructions, and what all have."""
        yield "input", texts_in([self.instructions, self.input])
        yield from super().prompts()

    def check(self) -> None:
        """Raise ApiError for what this server cannot do."""
        for name in ("previous_response_id", "conversation"):
            if getattr(self, name) is not None:
                raise not_supported(
                    name, "this server keeps no responses: send the whole conversation in input"
                )
        if self.background:
            raise not_supported("background", "responses are written while the client waits")
        if self.top_logprobs:
            raise not_supported("top_logprobs", "use /v1/chat/completions for log-probabilities")
        if self.include_copied:
            raise not_supported("include_copied", "use /v1/chat/completions to see what was copied")
        if self.n not in (None, 1):
            raise not_supported("n", "a response is one answer")
        for name in _ECHOED:
            _check_echo(name, self.model_dump(include={name}))
        if not self.input:
            raise ApiError("input is empty: give a text or items", param="input", code="empty")


_ECHOED = ("instructions", "metadata", "reasoning", "text", "tool_choice", "tools", "user")
"""Fields that a response repeats."""


def _check_echo(name: str, value: Any) -> None:
    """Raise ApiError for a field that cannot be written as JSON."""
    try:
        if is_shallow(value, 2 * MAX_DEPTH):
            msgspec.json.encode(value)
            return
        fault = "is nested too deeply: make it flatter"
    except UnicodeEncodeError:
        fault = "is not valid Unicode: it holds half of a surrogate pair"
    raise ApiError(f"{name} {fault}", param=name, code="invalid_value")


def messages_of(body: ResponsesRequest) -> list[dict[str, Any]]:
    """`instructions` and `input` as messages. ApiError or RequestError names the item."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    turn = _Turn(messages)
    for place, item in enumerate(body.input):
        turn.add(item, f"input[{place}]")
    turn.end()
    turn.left_out.log()
    return messages


_ROLES = ("user", "assistant", "system", "developer")
_CALLS = (
    "function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"
)  # fmt: skip
"""Calls that the client answers, in an item of its own."""
_OUTPUTS = tuple(f"{kind}_output" for kind in _CALLS)
_REFUSED = {
    "item_reference": "this server keeps nothing: send the whole conversation, with store false",
    "compaction": "its text is encrypted: send the conversation itself",
    "computer_call_output": "it is an image, and the model reads text only",
}
"""Items without which the conversation would mean something else."""


class _Turn:
    """Puts the model's items back together: thinking, text and calls of one turn are a message."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self._message: dict[str, Any] | None = None
        self.left_out = LeftOut()

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """Take an item of the input."""
        kind = item.get("type", "message")
        if not isinstance(kind, str):
            field = f"{where}.type"
            raise ApiError(f"{field} must be a text", param=field, code="invalid_value")
        if kind == "message":
            self._add_message(item, where)
        elif kind == "reasoning":
            text = _joined(item.get("content")) or _joined(item.get("summary"))
            if text:
                self._open()["reasoning_content"] = text
        elif kind in _CALLS:
            self._add_call(item, where)
        elif kind in _OUTPUTS:
            self.end()
            content = _output_text(item, where)
            call_id = text_field({"call_id": _call_id(item)}, "call_id", where)
            self._messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind in _REFUSED:
            raise ApiError(
                f"{where} is of type {kind!r}, and {_REFUSED[kind]}",
                param=f"{where}.type",
                code="invalid_value",
            )
        else:
            self._add_elsewhere(item)

    def end(self) -> None:
        """The model's turn is over."""
        self._message = None

    def _add_elsewhere(self, item: Mapping[str, Any]) -> None:
        """An item of a tool that ran elsewhere: the model told of it, in its own turn."""
        text = text_elsewhere(item)
        if text:
            message = self._open()
            message["content"] = "\n\n".join(filter(None, (message.get("content"), text)))
        else:
            self.left_out.add(item.get("type"))

    def _add_message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise ApiError(
                f"{where}.role must be one of {', '.join(_ROLES)}",
                param=f"{where}.role",
                code="invalid_value",
            )
        content = text_of(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.end()
            self._messages.append({"role": role, "content": content})
            return
        if self._message is not None and self._message.get("content"):
            self.end()
        self._open()["content"] = content

    def _add_call(self, item: Mapping[str, Any], where: str) -> None:
        kind = item["type"]
        if kind in ("function_call", "custom_tool_call"):
            name = text_field(item, "name", where)
        else:
            name = kind.removesuffix("_call")
        if kind == "function_call":
            given = {"arguments": item.get("arguments") or ""}
            arguments = text_field(given, "arguments", where)
        elif kind == "custom_tool_call":
            arguments = json.dumps({"input": text_field(item, "input", where)}, ensure_ascii=False)
        else:
            given = item.get("action", item.get("operation")) or {}
            if not is_shallow(given):
                field = f"{where}.action"
                raise ApiError(f"{field} is nested too deeply", param=field, code="invalid_value")
            arguments = arguments_text(given)
        call = {
            "id": text_field({"call_id": _call_id(item)}, "call_id", where),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self._open().setdefault("tool_calls", []).append(call)

    def _open(self) -> dict[str, Any]:
        if self._message is None:
            self._message = {"role": "assistant"}
            self._messages.append(self._message)
        return self._message


def _call_id(item: Mapping[str, Any]) -> Any:
    """The id that joins a call and its output; those of local shells have one name for all."""
    return item.get("call_id", item.get("id"))


def _output_text(item: Mapping[str, Any], where: str) -> str:
    """The text of a call's output. Shells give theirs as objects."""
    output = item.get("output")
    parts = output if isinstance(output, list) else [output]
    objects = [part for part in parts if isinstance(part, Mapping)]
    if item["type"] == "shell_call_output" and len(objects) == len(parts):
        return "\n".join(text_elsewhere(part).partition("\n")[2] for part in objects)
    return text_of(output, f"{where}.output")


def _joined(parts: Any) -> str:
    """The text of a thinking item's parts; what is encrypted has none."""
    if not isinstance(parts, Sequence):
        return ""
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def functions_of(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The function tools of a request, checked, in the chat route's shape; the others are skipped.
    Raises RequestError."""
    return [
        checked_function(tool, f"tools[{place}]")
        for place, tool in functions_only(tools, ("function",))
    ]


def format_of(text: TextOptions | None) -> ResponseFormat | None:
    """`text.format` in the chat route's shape."""
    given = text.format if text is not None else None
    if given is None:
        return None
    check_form(given, "text.format")
    if given.type in ("text", "json_object"):
        schema = given.json_schema
        return ResponseFormat.model_validate({"type": given.type, "schema": schema})
    if given.type != "json_schema" or given.json_schema is None:
        raise ApiError(
            "text.format must be of type text, json_object, or json_schema with a schema",
            param="text.format",
            code="invalid_value",
        )
    schema = {"name": given.name, "schema": given.json_schema, "strict": given.strict}
    return ResponseFormat.model_validate({"type": "json_schema", "json_schema": schema})
