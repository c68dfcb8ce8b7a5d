"""`POST /v1/completions`: one or several prompts as text or as token ids, continued."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.engine.request import MAX_CHOICES, Chunk, Request
from copyahead.engine.text import Run
from copyahead.server.engine_request import make_request
from copyahead.server.errors import ApiError
from copyahead.server.http.streaming import while_connected
from copyahead.server.openai.choices import ChoicesAnswer, copied_runs
from copyahead.server.openai.logprobs import CompletionLogprobs, join
from copyahead.server.openai.wire import CompletionRequest
from copyahead.server.service import Service
from copyahead.server.wire import RENAMES, budget, new_id, schema_of
from copyahead.types import Token


async def completions(
    service: Service, http: HttpRequest, body: CompletionRequest, tenant: str
) -> Response:
    """Answer one completion request."""
    _check(body)
    prompts = await while_connected(http, _prompts(service, body))
    requests = [await _request(service, body, prompt, tenant) for prompt in prompts]
    _check_total(requests)
    echoes = [service.text(prompt, "prompt") if body.echo else "" for prompt in prompts]
    per_prompt = requests[0].n
    choices = [
        CompletionChoice(service, body, index, echoes[index // per_prompt])
        for index in range(len(prompts) * per_prompt)
    ]
    generation = service.start(requests, answer_id=new_id("cmpl-"), route="completions")
    kinds = ("text_completion", "text_completion")
    answer = ChoicesAnswer(service, generation, choices, kinds=kinds, renames=RENAMES)
    return await answer.respond(http, body)


def _check(body: CompletionRequest) -> None:
    """Refuse what cannot be done, by name."""
    if body.suffix:
        raise ApiError(
            "suffix is not supported: leave it out", param="suffix", code="unsupported_parameter"
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(
            f"best_of must equal n ({body.n or 1}): answers are not ranked",
            param="best_of",
            code="unsupported_parameter",
        )
    if body.echo and body.logprobs is not None:
        raise ApiError(
            "echo and logprobs exclude each other: the prompt has no log-probabilities",
            param="echo",
            code="unsupported_parameter",
        )


def _check_total(requests: Sequence[Request]) -> None:
    total = sum(request.n for request in requests)
    if total > MAX_CHOICES:
        raise ApiError(
            f"prompt holds {len(requests)} prompts, with n that is {total} answers, and one "
            f"request may ask for {MAX_CHOICES}",
            param="prompt",
            code="invalid_value",
        )


async def _prompts(service: Service, body: CompletionRequest) -> list[list[Token]]:
    """The prompts as token ids; ApiError for an empty list."""
    given = body.prompt
    if isinstance(given, str):
        return [await service.encode(given)]
    if not given:
        raise ApiError("prompt is empty: give at least one", param="prompt", code="invalid_value")
    if len(given) > MAX_CHOICES and not isinstance(given[0], int):
        raise ApiError(
            f"prompt holds {len(given)} prompts, and one request may ask for {MAX_CHOICES}",
            param="prompt",
            code="invalid_value",
        )
    prompts: list[list[Token]] = []
    ids: list[Token] = []
    for item in given:
        if isinstance(item, str):
            prompts.append(await service.encode(item))
        elif isinstance(item, int):
            ids.append(item)
        else:
            prompts.append(item)
    return prompts or [ids]


async def _request(
    service: Service, body: CompletionRequest, prompt: Sequence[Token], tenant: str
) -> Request:
    schema = schema_of(body.response_format)
    return await make_request(
        service,
        body,
        prompt,
        tenant,
        prompt_field="prompt",
        sampling=body.sampling(default_temperature=1.0),
        max_tokens=budget("max_tokens", body.max_tokens),
        logprobs=body.logprobs,
        stop=body.stops,
        json_schema=None if schema is None else json.dumps(schema),
    )


class CompletionChoice:
    """One choice: takes its chunks, and keeps the whole."""

    def __init__(self, service: Service, body: CompletionRequest, index: int, echo: str) -> None:
        self._index = index
        self._text = ""
        self._echo = echo
        self._runs: list[Run] = []
        self._with_copied = bool(body.include_copied)
        self._logprobs = CompletionLogprobs(service.pieces) if body.logprobs is not None else None
        self._entries: list[dict[str, Any]] = []
        self._finish_reason: str | None = None

    num_reasoning_tokens = 0

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """The `choices` entry of a stream for `chunk`; none where it shows nothing."""
        text, self._echo = self._echo + chunk.text, ""
        self._text += text
        self._runs += chunk.pieces
        entry = None
        if self._logprobs is not None:
            entry = self._logprobs.take(chunk.logprobs)
            self._entries.append(entry)
        if chunk.finish_reason is not None:
            self._finish_reason = str(chunk.finish_reason)
        is_shown = text or entry or chunk.finish_reason is not None
        return [self._choice(text, entry, chunk.pieces)] if is_shown else []

    def whole(self) -> dict[str, Any]:
        """The entry of `choices` in a document."""
        logprobs = join(self._entries) if self._logprobs is not None else None
        return self._choice(self._text, logprobs, self._runs)

    def _choice(
        self, text: str, logprobs: dict[str, Any] | None, runs: Sequence[Run]
    ) -> dict[str, Any]:
        choice = {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": self._finish_reason,
        }
        if self._with_copied:
            choice["copied"] = copied_runs(runs)
        return choice
