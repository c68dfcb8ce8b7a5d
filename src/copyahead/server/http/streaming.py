"""Server-sent events: frames, keep-alive comments, and noticing at once that a client has left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from copyahead.server.errors import ClientGone

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"

Value = TypeVar("Value")


def frame(document: Any, event: str | None = None) -> bytes:
    """One event: `data: {json}`, after `event: name` where one is given."""
    data = b"data: " + msgspec.json.encode(document) + b"\n\n"
    return data if event is None else b"event: " + event.encode() + b"\n" + data


async def while_connected(http: HttpRequest, work: Awaitable[Value]) -> Value:
    """The result of `work`; it is cancelled, and ClientGone raised, when the client leaves.

    To be called after the body has been read: nothing but the disconnect can then be received.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(http.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        await _end(task, leaving)


class EventStream(Response):
    """A stream of frames. Comments keep it alive; the frames' source is closed whatever happens.

    The source says itself, in a frame, what went wrong: by then the status has been sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        *,
        keepalive_seconds: float,
        close: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`keepalive_seconds` 0 sends no comments. `close` is called at the end, always."""
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})}
        )
        del self.headers["content-length"]
        self._frames = frames
        self._patience = keepalive_seconds or None
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application; see `starlette.types`."""
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _end(sending, leaving)
            self._close()
            await self._frames.aclose()

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        await self._write(send, KEEPALIVE if self._patience else b"")
        following = asyncio.ensure_future(anext(self._frames, None))
        try:
            while True:
                await asyncio.wait({following}, timeout=self._patience)
                if not following.done():
                    await self._write(send, KEEPALIVE)
                    continue
                data = following.result()
                if data is None:
                    break
                await self._write(send, data)
                following = asyncio.ensure_future(anext(self._frames, None))
        finally:
            await _end(following)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks that still run, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
