"""What clients of OpenAI's two kinds of completions send, as models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from copyahead.server.errors import ApiError
from copyahead.server.wire import CommonFields, ResponseFormat, Wire


class FunctionCall(Wire):
    """A function and its arguments, as JSON text."""

    name: str
    arguments: str | dict[str, Any] | None = Field(
        None, description="Nothing, and an empty text, are no arguments."
    )


class CustomCall(Wire):
    """A call of a tool that takes any text."""

    name: str
    input: str = ""


class ToolCall(Wire):
    """A call that the model made earlier."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class ChatMessage(Wire):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = Field(None, description="As it was before tool_calls.")
    reasoning_content: str | None = None


class ChatRequest(CommonFields):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = Field(None, description="Wins over max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = Field(
        None, description="none, auto, required, or an object that names a function."
    )
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = Field(None, description="As it was before tools.")
    function_call: str | dict[str, Any] | None = Field(
        None, description="As it was before tool_choice: none, auto, or an object with a name."
    )
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Raise ApiError for what this route cannot do."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(
                "top_logprobs needs logprobs to be true", param="top_logprobs", code="invalid_value"
            )
        for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
            if getattr(self, old) is not None and getattr(self, new) is not None:
                raise ApiError(
                    f"{old} and {new} exclude each other: give {new}",
                    param=old,
                    code="invalid_value",
                )


class CompletionRequest(CommonFields):
    """Body of `POST /v1/completions`."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = Field(16, description="-1 or null: until the context is full.")
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    response_format: ResponseFormat | None = None
