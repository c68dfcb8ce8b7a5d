"""`POST /v1/completions`: one or several prompts as text or as token ids, continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.engine.request import MAX_CHOICES, Chunk, Request
from copyahead.engine.text import Run
from copyahead.errors import CopyaheadError
from copyahead.server.constraints import constraint_of
from copyahead.server.engine_request import make_request
from copyahead.server.errors import ApiError, api_error
from copyahead.server.http.streaming import while_connected
from copyahead.server.http.work import check_wanted
from copyahead.server.infill.gap import Gap
from copyahead.server.infill.route import gap_writer, with_ends
from copyahead.server.openai.choices import ChoicesAnswer, copied_runs
from copyahead.server.openai.logprobs import CompletionLogprobs, join
from copyahead.server.openai.wire import CompletionRequest
from copyahead.server.service import Service
from copyahead.server.wire import RENAMES, budget, new_id
from copyahead.types import Token


async def completions(
    service: Service, http: HttpRequest, body: CompletionRequest, tenant: str
) -> Response:
    """Answer one completion request."""
    _check(body)
    prompts, echoes = await while_connected(http, service.work.run(_prompts, service, body))
    for prompt in prompts:
        service.check_length(len(prompt), "prompt")
    first = await while_connected(http, _request(service, body, prompts[0], tenant))
    requests = [msgspec.structs.replace(first, prompt=prompt) for prompt in prompts]
    per_prompt = first.n
    _check_total(len(prompts) * per_prompt, len(prompts))
    _check_echoes(sum(map(len, echoes)) * per_prompt, service)
    choices = [
        CompletionChoice(
            service,
            body,
            index,
            echoes[index // per_prompt] if body.echo else "",
            first=prompts[index // per_prompt][0] if body.echo else None,
        )
        for index in range(len(prompts) * per_prompt)
    ]
    generation = service.start(requests, answer_id=new_id("cmpl-"), route="completions")
    kinds = ("text_completion", "text_completion")
    field = constraint_of(body, "response_format", body.response_format).field
    renames = {**RENAMES, "grammar": field, "json_schema": field}
    answer = ChoicesAnswer(service, generation, choices, kinds=kinds, renames=renames)
    try:
        return await answer.respond(http, body)
    except CopyaheadError as error:
        raise api_error(error, renames) from error


def _check(body: CompletionRequest) -> None:
    """Refuse what cannot be done, by name."""
    if body.suffix and body.echo:
        raise ApiError(
            "echo and suffix exclude each other: leave one out", param="echo", code="invalid_value"
        )
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(
            f"best_of must equal n ({body.n or 1}): answers are not ranked",
            param="best_of",
            code="unsupported_parameter",
        )


def _check_total(num_answers: int, num_prompts: int) -> None:
    if num_answers > MAX_CHOICES:
        raise ApiError(
            f"prompt holds {num_prompts} prompts, with n that is {num_answers} answers, and one "
            f"request may ask for {MAX_CHOICES}",
            param="prompt",
            code="invalid_value",
        )


def _check_echoes(num_characters: int, service: Service) -> None:
    """Refuse to repeat more than a client may send."""
    limit = service.max_body_bytes
    if num_characters > limit:
        raise ApiError(
            f"echo would repeat {num_characters} characters, and at most {limit} are allowed: ask "
            "for fewer answers",
            param="echo",
            code="invalid_value",
        )


def _prompts(service: Service, body: CompletionRequest) -> tuple[list[list[Token]], list[str]]:
    """The prompts as token ids, and the text of each where it is echoed; ApiError for an empty
    list."""
    if body.suffix:
        return _gaps(service, _given(body.prompt), body.suffix), []
    prompts = [_tokens(service, prompt) for prompt in _given(body.prompt)]
    if not body.echo:
        return prompts, []
    return prompts, [service.text(prompt, "prompt") for prompt in prompts]


def _given(prompt: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[Token]]:
    """Each of the prompts, as a text or as token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError("prompt is empty: give at least one", param="prompt", code="invalid_value")
    if isinstance(prompt[0], int):
        return [prompt]
    if len(prompt) > MAX_CHOICES:
        raise ApiError(
            f"prompt holds {len(prompt)} prompts, and one request may ask for {MAX_CHOICES}",
            param="prompt",
            code="invalid_value",
        )
    return cast(list[str], prompt)


def _tokens(service: Service, prompt: str | list[Token]) -> list[Token]:
    check_wanted()
    return service.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


def _gaps(service: Service, prompts: Sequence[str | list[Token]], suffix: str) -> list[list[Token]]:
    """A prompt for what stands between each of `prompts` and `suffix`."""
    writer = gap_writer(service, param="suffix")
    found = []
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ApiError(
                "suffix needs prompt to be a text, not token ids",
                param="prompt",
                code="invalid_value",
            )
        found.append(writer.prompt(Gap(before=prompt, behind=suffix)).tokens)
    return found


async def _request(
    service: Service, body: CompletionRequest, prompt: Sequence[Token], tenant: str
) -> Request:
    constraint = constraint_of(body, "response_format", body.response_format)
    request = await make_request(
        service,
        body,
        prompt,
        tenant,
        prompt_field="prompt",
        sampling=body.sampling(default_temperature=1.0),
        max_tokens=budget("max_tokens", body.max_tokens),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        stop=body.stops,
        **constraint.for_engine(),
    )
    return with_ends(service, request) if body.suffix else request


class CompletionChoice:
    """One choice: takes its chunks, and keeps the whole."""

    def __init__(
        self,
        service: Service,
        body: CompletionRequest,
        index: int,
        echo: str,
        *,
        first: Token | None,
    ) -> None:
        """`echo`: the prompt, where it is to be repeated, and then `first` is its first token."""
        self._index = index
        self._first = first
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
            entry = self._take_logprobs(self._logprobs, chunk)
            self._entries.append(entry)
        if chunk.finish_reason is not None:
            self._finish_reason = str(chunk.finish_reason)
        is_shown = text or entry or chunk.finish_reason is not None
        return [self._choice(text, entry, chunk.pieces)] if is_shown else []

    def _take_logprobs(self, logprobs: CompletionLogprobs, chunk: Chunk) -> dict[str, Any]:
        """The entries of a chunk: the prompt's first."""
        first, self._first = self._first, None
        parts = [logprobs.first(first)] if first is not None else []
        return join([*parts, logprobs.take((*chunk.prompt_logprobs, *chunk.logprobs))])

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
