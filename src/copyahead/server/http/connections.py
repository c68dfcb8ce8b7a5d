"""Connections: how many there may be, and how long a client may let the server wait.

uvicorn waits for ever for the headers of a first request, for a body, and for a client that reads
nothing, and it takes connections until the process can open no more files. Here each of these ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from copyahead.config import Limits

logger = logging.getLogger(__name__)

_RESERVED_FILES = 64
"""What the process opens besides connections."""
_GRACE_SECONDS = 5.0
"""After the time for a body: the refusal is on its way."""


_MAX_HEAD_BYTES = 2**16
"""Of a request's line and headers."""
_MAX_CRUMBS = 2_000
_CRUMB_BYTES = 64
"""After `_MAX_CRUMBS` pieces of a body, they must have this many bytes on average."""


class Connections:
    """The connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.limit = max_connections(limits)
        self._open: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Count a connection in. Where there are too many, one that the server waits for is closed:
        the one for longest."""
        self._open[connection] = None
        if len(self._open) > self.limit:
            for longest in self._waiting()[:1] or [connection]:
                self._abort(longest)

    def make_room(self) -> None:
        """Close half of those that the server waits for: the process can open no more files."""
        waiting = self._waiting()
        for connection in waiting[: (len(waiting) + 1) // 2]:
            self._abort(connection)

    def _waiting(self) -> list[Connection]:
        """Those that the server waits for, longest first."""
        waits = [(since, c) for c in self._open if (since := c.waits_since) is not None]
        return [connection for _, connection in sorted(waits, key=lambda wait: wait[0])]

    def _abort(self, connection: Connection) -> None:
        connection.transport.abort()
        self.discard(connection)

    def discard(self, connection: Connection) -> None:
        """Count a connection out. Idempotent."""
        self._open.pop(connection, None)

    def close_overdue(self) -> None:
        """Close those whose clients have let the server wait for too long. To be called often."""
        for connection in list(self._open):
            if connection.is_overdue():
                connection.transport.abort()


class _Parser(h11.Connection):
    """Refuses bodies in crumbs: each of them costs as much as a whole packet."""

    def __init__(self, **options: Any) -> None:
        super().__init__(h11.SERVER, **options)
        self._num_chunks = self._num_bytes = 0

    def next_event(self) -> Any:
        """See `h11.Connection`."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._num_chunks = self._num_bytes = 0
        elif isinstance(event, h11.Data):
            self._num_chunks += 1
            self._num_bytes += len(event.data)
            if self._num_chunks > _MAX_CRUMBS + self._num_bytes // _CRUMB_BYTES:
                raise h11.RemoteProtocolError("the body comes in too small pieces")
        return event


class Connection(H11Protocol):
    """A connection that knows since when it waits for its client, and for what."""

    def __init__(self, *arguments: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = _Parser(max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._all = connections
        self._written = _Written(None)
        self._head_since: float | None = None
        """When the client began with a request of which not all headers have come."""
        self._cycle_since = 0.0
        """When the headers of the newest request were complete."""
        self._num_read = 0
        """Bytes that have gone out."""
        self._read_at = 0.0
        """When bytes last went out, or there were none to send."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        self._written = _Written(transport)
        super().connection_made(cast(asyncio.Transport, self._written))
        self._head_since = self._read_at = time.monotonic()
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._all.discard(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        cycle = self.cycle
        if self._head_since is None and self.conn.their_state is h11.IDLE:
            self._head_since = time.monotonic()
        super().data_received(data)
        if self.cycle is not cycle:
            self._head_since, self._cycle_since = None, time.monotonic()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; where an answer has begun, there is no other."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    @property
    def waits_since(self) -> float | None:
        """Since when the server waits for its client to send something; None: the client waits."""
        if self._head_since is not None:
            return self._head_since
        if self.conn.their_state is h11.SEND_BODY or self.cycle.response_complete:
            return self._cycle_since
        return None

    def is_overdue(self) -> bool:
        """Whether its client has taken too long to send or to read."""
        now, limits = time.monotonic(), self._all.limits
        num_unread = self.transport.get_write_buffer_size()
        num_read = self._written.num_bytes - num_unread
        if num_read > self._num_read or not num_unread:
            self._num_read, self._read_at = num_read, now
        if now - self._read_at > limits.unread_seconds:
            return True
        if self._head_since is not None:
            return now - self._head_since > limits.header_seconds
        body_seconds = limits.body_seconds + _GRACE_SECONDS
        return self.conn.their_state is h11.SEND_BODY and now - self._cycle_since > body_seconds


class _Written:
    """A transport that counts what is written to it."""

    def __init__(self, transport: asyncio.Transport | None) -> None:
        self._transport = transport
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        self.num_bytes += len(data)
        assert self._transport is not None
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class AcceptErrors:
    """The event loop's handler of errors: where no connection can be taken, it closes some, and
    logs one line a second."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._logged_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """See `asyncio.loop.set_exception_handler`."""
        if not str(context.get("message")).startswith("socket.accept()"):
            loop.default_exception_handler(context)
            return
        self._connections.make_room()
        if time.monotonic() - self._logged_at >= 1:
            self._logged_at = time.monotonic()
            logger.warning("no connection can be taken: %s", context.get("exception"))


def max_connections(limits: Limits) -> int:
    """`limits.max_connections`, or as many as the files that the process may open leave."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return limits.max_connections
    num_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if num_files == resource.RLIM_INFINITY:
        return limits.max_connections
    return max(1, min(limits.max_connections, max(num_files - _RESERVED_FILES, num_files // 2)))
