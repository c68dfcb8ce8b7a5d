"""What an attack is, and how it reaches the server: by requests whose replies are judged, and by
sockets that are rude."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import httpx
from soak_replies import BUSY, Allowed, read_attacked

_KEPT_BYTES = 200_000
"""Of a reply: an error is shorter, and what an answer of megabytes holds is not looked at."""
_JSON = {"content-type": "application/json"}

Body = Mapping[str, Any]

ANSWER: Allowed = (200, None)
WRONG: list[Allowed] = [(400, "invalid_value"), (400, "invalid_json"), (413, "body_too_large")]
UNSUPPORTED: list[Allowed] = [(400, "unsupported_value"), (400, "unsupported_parameter")]
TOO_LONG: list[Allowed] = [(400, "context_length_exceeded"), (413, "body_too_large")]
BUSY_OR_ANSWER: list[Allowed] = [ANSWER, (429, BUSY)]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_BODY = 16_000_000
"""Bytes that the server takes unless it is told otherwise."""


class Target:
    """A server under one attack, and the books of it."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url = url
        self.num_sent = 0
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []
        self._http = http
        self._address = httpx.URL(url).host, httpx.URL(url).port

    async def ask(
        self,
        path: str,
        body: Body | bytes,
        allowed: Collection[Allowed],
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """Send, and judge the reply: one of `allowed`. Its document; None for one that is wrong or
        too long to be kept."""
        self.num_sent += 1
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            async with self._http.stream(
                "POST", path, content=content, headers={**_JSON, **(headers or {})}
            ) as reply:
                return await self._judged(reply, path, content, allowed)
        except httpx.HTTPError as error:
            self._note(f"{path} {_shown(content)}: {error!r}")
            return None

    async def _judged(
        self, reply: httpx.Response, path: str, content: bytes, allowed: Collection[Allowed]
    ) -> Any:
        kept, is_whole = b"", True
        async for data in reply.aiter_raw():
            is_whole = is_whole and len(kept) + len(data) <= _KEPT_BYTES
            kept = kept if not is_whole else kept + data
        self.outcomes[str(reply.status_code)] += 1
        if not is_whole:
            if (reply.status_code, None) not in allowed:
                self._note(f"{path} {_shown(content)}: a long reply {reply.status_code}")
            return None
        judged = read_attacked(reply.status_code, kept.decode("utf-8", "replace"), allowed)
        if judged.fault is not None:
            self._note(f"{path} {_shown(content)}: {judged.fault}")
        return judged.essence

    async def leave(
        self, path: str, body: Body | bytes, seconds: float, allowed: Collection[Allowed]
    ) -> None:
        """Send, and leave after `seconds`; a reply that comes before is judged."""
        try:
            await asyncio.wait_for(self.ask(path, body, allowed), seconds)
        except TimeoutError:
            self.outcomes["left"] += 1

    @contextmanager
    def unconnected(self, receive_bytes: int | None = None) -> Iterator[socket.socket]:
        """A socket, not yet connected (see `connect`). `receive_bytes`: what the system may hold
        of what the client does not read."""
        with socket.socket() as client:
            if receive_bytes is not None:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            client.setblocking(False)
            yield client

    async def connect(self, client: socket.socket, data: bytes) -> None:
        """Connect, and send `data`. A server that closes the connection does no wrong."""
        self.num_sent += 1
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(client, self._address)
            await loop.sock_sendall(client, data)
        except OSError:
            self.outcomes["closed"] += 1
        else:
            self.outcomes["held"] += 1

    def _note(self, fault: str) -> None:
        if len(self.faults) < 20 and fault not in self.faults:
            self.faults.append(fault)

    def must(self, is_right: bool, fault: str) -> None:
        """Note `fault` unless `is_right`."""
        if not is_right:
            self._note(fault)


class Attack(ABC):
    """One way of troubling a server."""

    name: ClassVar[str]
    num_clients: ClassVar[int] = 3
    pause: ClassVar[float] = 0.0
    """Seconds between two strikes of a client."""
    serve: ClassVar[Sequence[str]] = ()
    """Arguments that the attacked server is started with."""
    num_files: ClassVar[int | None] = None
    """Files that it may open."""

    def __init__(self, max_body: int = MAX_BODY) -> None:
        """`max_body`: bytes of its largest body."""
        self.max_body = max_body

    async def prepare(self, target: Target) -> None:  # noqa: B027
        """Look at the server before the attack."""

    @abstractmethod
    async def strike(self, target: Target, rng: random.Random) -> None:
        """What one client does once."""

    async def end(self) -> None:  # noqa: B027
        """Leave what is still open."""


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def chat(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [user(content)], "max_tokens": 2, **fields}


def filled(head: bytes, item: bytes, tail: bytes, size: int) -> bytes:
    """A body of about `size` bytes: `item` as often as fits, between commas."""
    return head + b",".join([item] * ((size - len(head) - len(tail)) // (len(item) + 1))) + tail


def _shown(content: bytes) -> str:
    """Both ends of a body."""
    return repr(content if len(content) < 130 else content[:60] + b" ... " + content[-60:])


def post_bytes(path: str, body: Body) -> bytes:
    """A whole request, as it goes over a socket."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data
