"""A server on a real socket that answers as it is told to: for the faults that a real one has."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    reply: Reply
    bodies: list[dict[str, Any]]
    keys: list[str]

    def do_GET(self) -> None:
        self.whole(200, {"data": [{"id": "listed"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append({**body, "path": self.path})
        self.keys.append(self.headers.get("authorization", ""))
        type(self).reply(self, body)

    def whole(
        self, status: int, document: object, headers: Mapping[str, str] | None = None
    ) -> None:
        """An answer in one piece."""
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "content-length": str(len(data)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self) -> None:
        """The head of a stream."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send(self, *events: object) -> None:
        """Events of the stream; text is sent as it is."""
        for event in events:
            text = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            self.raw(f"data: {text}\n\n".encode())

    def raw(self, data: bytes) -> None:
        """Bytes of the stream, as a chunk of HTTP."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def end(self) -> None:
        """The end of the stream."""
        self.raw(b"")

    def cut(self) -> None:
        """Break the connection off."""
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


class Scripted:
    """A server that is up."""

    def __init__(self, url: str, handler: type[Handler]) -> None:
        self.url = url
        self.bodies = handler.bodies
        self.keys = handler.keys


@contextmanager
def scripted(reply: Reply) -> Iterator[Scripted]:
    """A server that answers every request by `reply`."""
    handler = type("_Handler", (Handler,), {"reply": reply, "bodies": [], "keys": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Scripted(f"http://127.0.0.1:{server.server_port}", handler)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def piece(text: str, reason: str | None = None) -> dict[str, Any]:
    """An event of a chat's stream."""
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


def usage(read: int, written: int) -> dict[str, Any]:
    """The event that says how many tokens there were."""
    return {"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": written}}


def stream(*events: object) -> Reply:
    """Answers with these events, whole."""

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.send(*events)
        handler.end()

    return reply


def in_turn(*replies: Reply) -> Reply:
    """The first request gets the first reply, and so on; the last one is for all others."""
    left = list(replies)
    lock = threading.Lock()

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        with lock:
            chosen = left.pop(0) if len(left) > 1 else left[0]
        chosen(handler, body)

    return reply
