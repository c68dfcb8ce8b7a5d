"""How a route gets its body: in a thread, once, and in a process of its own where it is large.

The framework would read it on the event loop. It still knows of the models, for the OpenAPI
document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, get_type_hints

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.server.errors import ClientGone
from copyahead.server.http import bodies
from copyahead.server.http.streaming import while_connected
from copyahead.server.http.text_limit import TextLimit
from copyahead.server.http.work import LARGE_BYTES, Work, set_size
from copyahead.server.wire import Wire

Body = TypeVar("Body", bound=Wire)


class BodyRoute(APIRoute):
    """A route whose function takes `body`, which is read here, and `http`."""

    def get_route_handler(self) -> Callable[[HttpRequest], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        if self.body_field is None:
            return super().get_route_handler()
        model = get_type_hints(self.endpoint)["body"]

        async def answer(http: HttpRequest) -> Response:
            state = http.app.state
            body = await receive_body(http, model, state.work, state.text_limit)
            response: Response = await self.endpoint(body=body, http=http)
            return response

        return answer


async def receive_body(http: HttpRequest, model: type[Body], work: Work, limit: TextLimit) -> Body:
    """The body of a request as a `model`; ApiError where it is none, ClientGone where the client
    left before its end."""
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (kind == "application/json" or re.fullmatch(r"application/.+\+json", kind)):
        raise bodies.no_object()
    try:
        data = await http.body()
    except ClientDisconnect:
        raise ClientGone from None
    size = bodies.weight(data)
    set_size(size)
    read = work.reader.read if size > LARGE_BYTES else bodies.read_body
    return await while_connected(http, work.run(read, data, model, limit))
