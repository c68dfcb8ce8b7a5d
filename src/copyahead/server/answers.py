"""How a route answers: a whole document or a stream of frames, for a client that may leave.

What a document or a frame holds is not its business.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.server.generation import Generation
from copyahead.server.http.streaming import EventStream, while_connected
from copyahead.server.service import Service


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
