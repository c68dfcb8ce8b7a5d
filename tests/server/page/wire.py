"""A wire between a browser and a server that a test can cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Wire:
    """Passes on what comes, both ways, while it is whole."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._is_whole = True
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]

    def cut(self) -> None:
        """Break every connection, and each new one."""
        with self._lock:
            self._is_whole = False
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
            self._ends.clear()

    def mend(self) -> None:
        """Let new connections through."""
        with self._lock:
            self._is_whole = True

    def __enter__(self) -> Wire:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                if not self._is_whole:
                    near.close()
                    continue
                far = socket.create_connection(self._address)
                self._ends += [near, far]
            for source, target in ((near, far), (far, near)):
                thread = threading.Thread(target=_pass_on, args=(source, target))
                self._threads.append(thread)
                thread.start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
