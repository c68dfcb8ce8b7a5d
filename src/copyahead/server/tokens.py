"""`/tokenize`, `/detokenize` and `/tokenizer_info`: a text or messages to token ids, and back."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.server.answers import json_response
from copyahead.server.errors import ApiError
from copyahead.server.http.streaming import while_connected
from copyahead.server.openai.wire import ChatMessage
from copyahead.server.service import Service
from copyahead.server.wire import Wire
from copyahead.types import Token


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


class DetokenizeRequest(Wire):
    """Body of `POST /detokenize`."""

    tokens: list[int]


async def tokenize(service: Service, http: HttpRequest, body: TokenizeRequest) -> Response:
    """The token ids, how many they are, and how many the model takes."""

    async def answer() -> Response:
        tokens = await _tokens(service, body)
        return await service.work.run(_tokenized, service, tokens, body.with_pieces)

    return await while_connected(http, answer())


def _tokenized(service: Service, tokens: list[Token], with_pieces: bool) -> Response:
    document: dict[str, Any] = {"tokens": tokens, "count": len(tokens)}
    document["max_model_len"] = service.capabilities.context_size
    if with_pieces:
        document["pieces"] = [{"id": t, "piece": service.text([t])} for t in tokens]
    return json_response(document)


async def detokenize(service: Service, http: HttpRequest, body: DetokenizeRequest) -> Response:
    """The text, under both names that clients know it by."""
    return await while_connected(http, service.work.run(_detokenized, service, body.tokens))


def _detokenized(service: Service, tokens: list[Token]) -> Response:
    text = service.text(tokens)
    return json_response({"content": text, "prompt": text})


async def _tokens(service: Service, body: TokenizeRequest) -> list[Token]:
    if body.messages is not None:
        messages = body.messages
        prompt = await service.chat_prompt(
            lambda: {"messages": [message.model_dump(exclude_none=True) for message in messages]}
        )
        return prompt.tokens
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise ApiError("content is missing: give a text, or messages", param="content")
    if body.add_special_tokens is None:
        return await service.work.run(service.tokenizer.encode, text, special=body.add_special)
    tokens = await service.work.run(service.tokenizer.encode, text)
    lead = 0 if body.add_special_tokens else len(service.tokenizer.encode(""))
    return tokens[lead:]


def tokenizer_info(service: Service) -> Response:
    """What evaluation harnesses ask of a tokenizer that they reach over HTTP, as vLLM tells it."""
    tokenizer = service.tokenizer
    return json_response(
        {
            "tokenizer_class": "copyahead",
            "bos_token": tokenizer.bos_text or None,
            "eos_token": tokenizer.eos_text or None,
            "chat_template": service.template.source,
        }
    )
