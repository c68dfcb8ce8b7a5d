"""`/tokenize`, `/detokenize` and `/tokenizer_info`: a text or messages to token ids, and back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from copyahead.server.answers import json_response
from copyahead.server.errors import ApiError
from copyahead.server.http.streaming import while_connected
from copyahead.server.http.work import check_wanted
from copyahead.server.openai.wire import DetokenizeRequest, TokenizeRequest
from copyahead.server.service import Service
from copyahead.types import Token

_PART = 4096
"""Tokens."""


async def tokenize(service: Service, http: HttpRequest, body: TokenizeRequest) -> Response:
    """The token ids, how many they are, and how many the model takes."""

    async def answer() -> Response:
        tokens = await _tokens(service, body)
        return await service.work.run(_tokenized, service, tokens, body.with_pieces)

    return await while_connected(http, answer())


def _tokenized(service: Service, tokens: list[Token], with_pieces: bool) -> Response:
    head = {"count": len(tokens), "max_model_len": service.capabilities.context_size}
    parts = [
        msgspec.json.encode(head)[:-1],
        b',"tokens":[',
        *_joined(tokens, lambda t: b"%d" % t),
        b"]",
    ]
    if with_pieces:
        pieces = _joined(
            tokens, lambda t: msgspec.json.encode({"id": t, "piece": service.text([t])})
        )
        parts += (b',"pieces":[', *pieces, b"]")
    return Parts([*parts, b"}"])


def _joined(tokens: Sequence[Token], entry: Callable[[Token], bytes]) -> Iterator[bytes]:
    """The entries of a JSON array, part by part, as nothing else runs in the process while one is
    made; the entry of each token once."""
    entries: dict[Token, bytes] = {}
    for start in range(0, len(tokens), _PART):
        check_wanted()
        part = tokens[start : start + _PART]
        entries |= {token: entry(token) for token in set(part) - entries.keys()}
        yield (b"," if start else b"") + b",".join([entries[token] for token in part])


class Parts(StreamingResponse):
    """A JSON document of which no more is written than the client reads."""

    media_type = "application/json"

    def __init__(self, parts: Sequence[bytes]) -> None:
        async def written() -> AsyncIterator[bytes]:
            for part in parts:
                yield part

        super().__init__(written(), headers={"content-length": str(sum(map(len, parts)))})


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
