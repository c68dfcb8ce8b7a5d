"""What clients of OpenAI's two kinds of completions send, and of the tokenizer, as models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from copyahead.server.errors import ApiError
from copyahead.server.http.text_limit import texts_in
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


def contents_of(messages: Iterable[ChatMessage]) -> Iterator[str]:
    """Every text in the contents of messages."""
    return (text for message in messages for text in texts_in(message.content))


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
    include_sources: bool | None = Field(
        None, description="Say in a field `copyahead` where each part of the text was drafted from."
    )

    def prompts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The messages, and what all have."""
        yield "messages", contents_of(self.messages)
        yield from super().prompts()

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

    def prompts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """Each prompt by itself, and what all have."""
        texts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        yield from (("prompt", [text]) for text in texts if isinstance(text, str))
        if self.suffix is not None:
            yield "suffix", [self.suffix]
        yield from super().prompts()


class TokenizeRequest(Wire):
    """Body of `POST /tokenize`: a text, or messages as the chat route would see them."""

    content: str | None = None
    prompt: str | None = Field(None, description="Another name for content.")
    messages: list[ChatMessage] | None = None
    add_special: bool = Field(True, description="Read control tokens, add the leading one.")
    add_special_tokens: bool | None = Field(
        None, description="As vLLM has it: false leaves out the leading token, and no other."
    )
    with_pieces: bool = Field(False, description="Also the text of every token.")

    def prompts(self) -> Iterator[tuple[str, Iterable[str]]]:
        """The messages; a text is no prompt yet."""
        if self.messages is not None:
            yield "messages", contents_of(self.messages)


class DetokenizeRequest(Wire):
    """Body of `POST /detokenize`."""

    tokens: list[int]
