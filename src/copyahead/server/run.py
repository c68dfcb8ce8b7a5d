"""Running the application under uvicorn, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn

from copyahead.errors import ConfigError, EngineFailed
from copyahead.server.app import make_app
from copyahead.server.http.auth import is_loopback
from copyahead.server.http.connections import AcceptErrors, Connection, Connections
from copyahead.server.service import Service

_LAST_WORDS_SECONDS = 5
"""Given to streams that were cut off, to send their error."""
_POLL_SECONDS = 0.1
_SEND_BYTES = 128 * 1024
"""What the system holds of an answer that its client has not read. It says that a client reads only
when much of that has gone: of the megabytes that it would hold, a slow one takes minutes."""
_BACKLOG = 1024
"""Connections that the system keeps until they are taken."""


_TURN_SECONDS = 0.0005
"""How long a thread may keep the interpreter while another waits; Python's own 0.005 is as long as
a pass of a small model, and the engine's thread asks for it several times a pass."""


class Server(uvicorn.Server):
    """Lets running requests end when it is told to stop, up to a limit; then ends them itself.

    A second signal ends them at once. The engine is closed first, so that a stream that is cut off
    gets an error frame and not a broken connection.
    """

    def __init__(self, config: uvicorn.Config, service: Service, connections: Connections) -> None:
        super().__init__(config)
        self._service, self._connections = service, connections
        self._hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop, or hurry. uvicorn would raise the signal once more when it has ended."""
        self._hurried = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        asyncio.get_running_loop().set_exception_handler(AcceptErrors(self._connections))
        await super().startup(sockets)
        for listening in sockets or ():
            # asyncio listens with the backlog by which it also takes connections: one at a time.
            listening.listen(_BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server. Without an engine it has no use."""
        self._connections.close_overdue()
        self._service.work.give_back()
        self._service.template.rest()
        self.should_exit |= self._service.engine.failure is not None
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop taking connections, wait, close the engine."""
        cutting = asyncio.create_task(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut_off(self) -> None:
        end = time.monotonic() + self._service.limits.shutdown_seconds
        while time.monotonic() < end and not self._hurried:
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.to_thread(self._service.close)
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        # Who still sends or does not read. A request whose task is cancelled logs a traceback, and
        # one whose client is gone ends quietly.
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def make_server(service: Service, bound: socket.socket) -> Server:
    """A server to be run on the socket `bound`, which listens from now on:
    `server.run(sockets=[bound])`."""
    connections = Connections(service.limits)
    # What is left of its connections must not keep the next server from the address.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.listen(_BACKLOG)
    config = uvicorn.Config(
        make_app(service, is_local=is_loopback(bound.getsockname()[0])),
        # How these two take connections and hold what is unread is what `connections` knows.
        http=partial(Connection, connections=connections),  # type: ignore[arg-type]
        loop="asyncio",
        ws="none",
        # When no file can be opened, asyncio tries, fails and plans to try again once for each of
        # the backlog.
        backlog=1,
        log_config=None,
        access_log=False,
        server_header=False,
        # Longer than `Server` takes itself.
        timeout_graceful_shutdown=int(service.limits.shutdown_seconds) + 3 * _LAST_WORDS_SECONDS,
        timeout_keep_alive=75,
    )
    return Server(config, service, connections)


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address to itself; port 0 takes a free one. ConfigError when the
    address is not free.

    It does not listen yet: until `make_server`, connections are refused and nobody waits.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
    try:
        _reserve(bound, host, port)
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {host} port {port} ({reason}): give another --host or --port"
        ) from None
    return bound


def _reserve(bound: socket.socket, host: str, port: int) -> None:
    """Bind. Sockets that may share an address share it until one listens, so that is allowed only
    where old connections are all that holds the address."""
    try:
        bound.bind((host.strip("[]"), port))
    except OSError:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))


def address(bound: socket.socket) -> str:
    """The URL under which clients find the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(service: Service, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until told to stop. `ready` is called when connections are no longer refused.

    Raises EngineFailed when the engine has failed, which ends the server.
    """
    sys.setswitchinterval(_TURN_SECONDS)
    # What is there by now stays, and need not be looked at by each collection.
    gc.collect()
    gc.freeze()
    try:
        server = make_server(service, bound)
        ready()
        server.run(sockets=[bound])
    finally:
        service.close()
        bound.close()
    failure = service.engine.failure
    if failure is not None:
        raise EngineFailed(
            f"the engine has failed ({failure!r}), so the server ends: start it again"
        )
