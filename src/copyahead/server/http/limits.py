"""How much one client may ask for: bytes, tokens, places in the queue, seconds in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope

from copyahead.errors import ConfigError
from copyahead.server.errors import ApiError
from copyahead.server.http.layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a server."""

    max_body_mb: float = 16.0
    """Largest body of a request, in megabytes."""
    max_prompt_tokens: int | None = None
    """Longest prompt in tokens; by default whatever the context holds."""
    max_queue: int = 64
    """Answers that may wait for a slot; with more, a request is refused with status 429."""
    queue_seconds: float = 60.0
    """Longest wait for a slot; after it the request is refused with status 429."""
    keepalive_seconds: float = 10.0
    """A comment is sent on a stream that was silent for this long; 0 sends none."""
    shutdown_seconds: float = 30.0
    """How long running streams may go on after Ctrl-C."""

    def __post_init__(self) -> None:
        for name in ("max_body_mb", "queue_seconds", "keepalive_seconds", "shutdown_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be 0 or more, not {value}")
        if self.queue_seconds == 0 or self.max_body_mb == 0:
            raise ConfigError("queue_seconds and max_body_mb must be more than 0")
        if self.max_queue < 0:
            raise ConfigError(f"max_queue must be 0 or more, not {self.max_queue}")
        if self.max_prompt_tokens is not None and self.max_prompt_tokens < 1:
            raise ConfigError(f"max_prompt_tokens must be 1 or more, not {self.max_prompt_tokens}")

    @property
    def max_body_bytes(self) -> int:
        """`max_body_mb` in bytes."""
        return int(self.max_body_mb * 1_000_000)


class Queue:
    """Counts the answers in flight, and refuses more than there is room for."""

    def __init__(self, num_slots: int, limits: Limits) -> None:
        self._num_slots = num_slots
        self._limits = limits
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
        if self.num_answers >= self._num_slots + self._limits.max_queue:
            raise too_busy(f"the queue is full ({self._limits.max_queue} answers wait)")
        self.num_answers += num_answers
        self.num_requests += 1

    def leave(self, num_answers: int, *, ran: bool) -> None:
        """Count a request out; `ran`: it held a slot."""
        self.num_answers -= num_answers
        self.num_requests -= 1
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
    """Refuses a body that is too large, before it is read into memory."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        super().__init__(app)
        self._max_bytes = max_bytes

    def admit(self, scope: Scope, receive: Receive) -> Receive:
        """413 for a body that says it is too large; the bytes of others are counted."""
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise self._error()
        return self._counted(receive)

    def _counted(self, receive: Receive) -> Receive:
        seen = 0

        async def take() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise self._error()
            return message

        return take

    def _error(self) -> ApiError:
        limit = f"{self._max_bytes / 1_000_000:g} MB"
        return ApiError(
            f"the body is larger than {limit}: send less, or start the server with a larger "
            "--max-body-mb",
            status=413,
            code="body_too_large",
        )
