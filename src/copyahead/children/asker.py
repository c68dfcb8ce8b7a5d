"""Who waits for what children do. When nobody does any more, those that work for it are ended."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_asker = contextvars.ContextVar["Asker | None"]("asker", default=None)


class Asker:
    """Somebody who waits for a function in a thread, and may leave before it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endings: list[Callable[[], None]] = []
        self._has_left = False

    def set_here(self) -> None:
        """From now on, what runs in this context runs for this asker."""
        _asker.set(self)

    def leave(self) -> None:
        """End what works for this asker. Idempotent, and waits for nothing."""
        with self._lock:
            self._has_left = True
            # Within the lock: what works for somebody else by now must not be ended.
            for end in self._endings:
                end()
            self._endings.clear()

    @property
    def has_left(self) -> bool:
        """Whether nobody waits any more."""
        return self._has_left

    @contextmanager
    def _ends(self, end: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            if self._has_left:
                end()
            else:
                self._endings.append(end)
        try:
            yield
        finally:
            with self._lock:
                if end in self._endings:
                    self._endings.remove(end)


def has_left() -> bool:
    """Whether nobody waits any more for what runs in this context."""
    asker = _asker.get()
    return asker is not None and asker.has_left


@contextmanager
def while_asked(end: Callable[[], None]) -> Iterator[None]:
    """`end` is called, from another thread, when the asker leaves before this is over. It must not
    wait for anything."""
    asker = _asker.get()
    if asker is None:
        yield
        return
    with asker._ends(end):
        yield
