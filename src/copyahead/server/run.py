"""Running the application under uvicorn, until Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from copyahead.errors import ConfigError
from copyahead.server.app import make_app
from copyahead.server.auth import is_loopback
from copyahead.server.service import Service

_LAST_WORDS_SECONDS = 5
"""Given to streams that were cut off, to send their error."""


class Server(uvicorn.Server):
    """Lets running requests end when it is told to stop, up to a limit; then ends them itself.

    The engine is closed first, so that a stream that is cut off gets an error frame and not a
    broken connection.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop taking connections, wait, close the engine."""
        cutting = asyncio.create_task(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            cutting.cancel()

    async def _cut_off(self) -> None:
        await asyncio.sleep(self._service.limits.shutdown_seconds)
        await asyncio.to_thread(self._service.close)


def make_server(service: Service, bound: socket.socket) -> Server:
    """A server to be run on the listening socket `bound`: `server.run(sockets=[bound])`."""
    config = uvicorn.Config(
        make_app(service, is_local=is_loopback(bound.getsockname()[0])),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(service.limits.shutdown_seconds) + _LAST_WORDS_SECONDS,
        timeout_keep_alive=75,
    )
    return Server(config, service)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. ConfigError when the address is not free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
        bound.listen(1024)
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"cannot listen on {host} port {port} ({reason}): give another --host or --port"
        ) from None
    return bound


def address(bound: socket.socket) -> str:
    """The URL under which clients find the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(service: Service, bound: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until interrupted. `ready` is called before the first connection is taken."""
    ready()
    try:
        make_server(service, bound).run(sockets=[bound])
    except KeyboardInterrupt:
        # uvicorn has ended in good order and passes the signal on.
        pass
    finally:
        service.close()
        bound.close()
