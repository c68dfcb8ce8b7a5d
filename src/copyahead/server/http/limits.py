"""How much one client may ask for: bytes, tokens, places in the queue, seconds in it."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope

from copyahead.config import Limits
from copyahead.server.errors import ApiError
from copyahead.server.http.layers import Layer
from copyahead.server.http.text_limit import TextLimit

DISCARDED_BYTES = 64_000_000
"""How much of a body that is too large is read and dropped, so that its client hears why."""
DISCARD_SECONDS = 1.0
"""How long the next piece of such a body is waited for."""


class Queue:
    """Counts the answers in flight, and refuses more than there is room for.

    Requests for several answers get half of the room: a few of them refuse nobody who wants one.
    """

    def __init__(self, num_slots: int, limits: Limits) -> None:
        self._limits = limits
        self._room = num_slots + limits.max_queue
        self._half = max(1, self._room // 2)
        self._num_of_several = 0
        """Answers in flight of requests for several."""
        self.num_answers = 0
        """Answers in flight, running or waiting."""
        self.num_requests = 0
        self.num_running = 0
        """Requests that hold a slot."""

    @property
    def num_waiting(self) -> int:
        """Requests that do not hold a slot yet."""
        return self.num_requests - self.num_running

    def enter(self, num_answers: int) -> None:
        """Count a request in; ApiError 429 when the queue is full."""
        several = min(self._num_of_several, self._half)
        if self.num_answers - self._num_of_several + several >= self._room:
            raise too_busy(f"the queue is full ({self._limits.max_queue} answers wait)")
        if num_answers > 1 and several == self._half:
            raise too_busy("half of the queue is taken by requests for several answers")
        self.num_answers += num_answers
        self.num_requests += 1
        self._num_of_several += num_answers if num_answers > 1 else 0

    def leave(self, num_answers: int, *, ran: bool) -> None:
        """Count a request out; `ran`: it held a slot."""
        self.num_answers -= num_answers
        self.num_requests -= 1
        self._num_of_several -= num_answers if num_answers > 1 else 0
        self.num_running -= ran


def too_busy(reason: str, retry_after: int = 5) -> ApiError:
    """A 429 that says when to come back."""
    return ApiError(
        f"{reason}: try again in {retry_after} seconds",
        status=429,
        code="server_busy",
        headers={"Retry-After": str(retry_after)},
    )


class BodyLimit(Layer):
    """Refuses a body that is too large, before it is read into memory, or that does not come."""

    def __init__(self, app: ASGIApp, limits: Limits, text_limit: TextLimit) -> None:
        """`text_limit` says what the largest body is where `limits` does not."""
        super().__init__(app)
        given, self._seconds = limits.max_body_bytes, limits.body_seconds
        self._max_bytes = text_limit.max_body_bytes if given is None else given
        self._reason = ""
        if given is None:
            self._reason = (
                f", and this model's maximum context length is {text_limit.context_size} tokens"
            )

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """413 for a body that says it is too large; the bytes of others are counted.

        What comes of such a body is dropped first, up to a limit: a client that still sends when
        the connection is closed would not see why.
        """
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        size = int(declared) if declared.isdigit() else 0
        if size > self._max_bytes + DISCARDED_BYTES:
            raise self._too_large()
        return self._counted(receive, size > self._max_bytes)

    def _counted(self, receive: Receive, is_too_large: bool) -> Receive:
        seen, is_whole = 0, False
        now = asyncio.get_running_loop().time
        end = now() + self._seconds

        async def take() -> Message:
            nonlocal seen, is_whole, is_too_large
            while not is_whole:
                until = min(end, now() + DISCARD_SECONDS) if is_too_large else end
                try:
                    async with asyncio.timeout_at(until):
                        message = await receive()
                except TimeoutError:
                    raise (self._too_large() if is_too_large else self._too_slow()) from None
                is_whole = not message.get("more_body", False)
                seen += len(message.get("body", b""))
                is_too_large = is_too_large or seen > self._max_bytes
                if not is_too_large or message["type"] == "http.disconnect":
                    return message
                if is_whole or seen > self._max_bytes + DISCARDED_BYTES:
                    raise self._too_large()
            return await receive()

        return take

    def _too_large(self) -> ApiError:
        limit = f"{self._max_bytes / 1_000_000:g} MB"
        return ApiError(
            f"the body is larger than {limit}{self._reason}: send less, or start the server with a "
            "larger --max-body-mb",
            status=413,
            code="body_too_large",
            headers=_CLOSE,
        )

    def _too_slow(self) -> ApiError:
        return ApiError(
            f"the body did not come within {self._seconds:g} seconds: send it faster, or start the "
            "server with larger --body-seconds",
            status=408,
            code="body_too_slow",
            headers=_CLOSE,
        )


_CLOSE = {"connection": "close"}
"""The rest of the body will not be read."""
