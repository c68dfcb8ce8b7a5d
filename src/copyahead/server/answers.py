"""How a route answers: a whole document or a stream of frames, for a client that may leave."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.engine.request import MAX_CHOICES, Request
from copyahead.errors import ConfigError
from copyahead.server.errors import ApiError
from copyahead.server.generation import Generation
from copyahead.server.http.streaming import EventStream, while_connected
from copyahead.server.service import Service
from copyahead.server.wire import RENAMES, CommonFields, joined
from copyahead.types import Token


async def answer_whole(
    http: HttpRequest, generation: Generation, work: Awaitable[Mapping[str, Any]]
) -> Response:
    """The document that `work` makes of `generation`, which is closed whatever happens."""
    try:
        document = await while_connected(http, work)
    finally:
        generation.close()
    return json_response(document, headers=_named(generation))


async def answer_stream(
    http: HttpRequest, service: Service, generation: Generation, frames: AsyncGenerator[bytes]
) -> Response:
    """A stream of `frames`, once a slot is held: until then a refusal still has its own status.

    A request that waits longer than the keep-alive's interval gets its status before.
    """
    keepalive = service.limits.keepalive_seconds
    try:
        await while_connected(http, generation.started(keepalive or None))
    except BaseException:
        generation.close()
        raise
    return EventStream(
        frames,
        keepalive_seconds=keepalive,
        close=generation.close,
        headers=_named(generation),
    )


def _named(generation: Generation) -> dict[str, str]:
    """The answer's id in OpenAI's header and in Anthropic's."""
    return dict.fromkeys(("x-request-id", "request-id"), generation.id)


def json_response(
    document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """`document` as JSON."""
    body = msgspec.json.encode(document)
    return Response(body, status, headers=headers, media_type="application/json")


async def make_request(
    service: Service,
    body: CommonFields,
    prompt: Sequence[Token],
    tenant: str,
    *,
    prompt_field: str,
    **more: Any,
) -> Request:
    """The engine's request for what all routes share; `more` for the rest. ApiError for a prompt
    that is too long, by the name of its field."""
    service.check_length(len(prompt), prompt_field)
    speculative = body.speculative
    lookup = speculative is None or speculative.enabled is not False
    if speculative is not None and speculative.policy is not None:
        check_policy(speculative.policy)
    prediction: Sequence[Token] = ()
    if body.prediction is not None:
        text = joined(body.prediction.content, "prediction") or ""
        prediction = await service.encode_part(text)
    return Request(
        prompt=prompt,
        min_tokens=body.min_tokens or 0,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        n=num_choices(body.n),
        lookup=lookup,
        policy=speculative.policy if speculative is not None else None,
        max_draft_tokens=speculative.max_draft_tokens if speculative is not None else None,
        tenant=tenant,
        prediction=tuple(prediction),
        **more,
    )


def num_choices(n: int | None) -> int:
    """How many answers are asked for; ApiError for too many or too few."""
    if n is None:
        return 1
    if not 1 <= n <= MAX_CHOICES:
        message = f"n must be from 1 to {MAX_CHOICES}, not {n}"
        raise ApiError(message, param="n", code="invalid_value")
    return n


def check_policy(text: str) -> None:
    """Raise ApiError where a request's length policy is not one."""
    from copyahead.policies import parse_policy

    try:
        parse_policy(text)
    except ConfigError as error:
        param = RENAMES["policy"]
        raise ApiError(str(error), param=param, code="invalid_value") from None
