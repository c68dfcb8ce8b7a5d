"""A layer around the application that may turn a request away, outside the framework."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from copyahead.server.errors import ApiError


class Layer(ABC):
    """Lets requests in or turns them away before anything of their body is read."""

    def __init__(self, app: ASGIApp) -> None:
        """`app`: what lies inside."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application; see `starlette.types`."""
        if scope["type"] == "http":
            try:
                receive = self.admit(scope, receive)
            except ApiError as error:
                await send_error(error, scope, send)
                return
        await self._app(scope, receive, send)

    @abstractmethod
    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """Let a request in: what its body is read from. ApiError turns it away."""


async def send_error(error: ApiError, scope: Scope, send: Send) -> None:
    """Answer with `error`; the connection is closed after it, whatever the body still holds."""
    body = msgspec.json.encode(error.body(scope["path"]))
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error.headers,
    }
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
