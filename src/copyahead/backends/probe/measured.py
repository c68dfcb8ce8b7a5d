"""What a backend must offer beside its contract, for a probe to measure it."""

from __future__ import annotations

from typing import Any, Protocol

from copyahead.contracts import Backend


class MeasuredBackend(Backend, Protocol):
    """A backend whose passes can be measured."""

    @property
    def settings(self) -> Any:
        """What it was loaded with; at least `threads`."""
        ...

    def set_threads(self, threads: int) -> None:
        """Have passes run on so many threads from now on."""
        ...

    def pack(self) -> None:
        """Have the next pass move what slots hold, as it does when it must."""
        ...
