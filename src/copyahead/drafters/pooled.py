"""What drafters over a pool of rows share: they know which rows have an open session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar, Unpack

from copyahead.contracts import Opening
from copyahead.history.pool import HistoryPool, Tokens


class RowSession(Protocol):
    """A session that drafts from one row of a pool."""

    @property
    def row(self) -> int:
        """The row."""
        ...


S = TypeVar("S", bound=RowSession)


class PooledDrafter(ABC, Generic[S]):
    """Opens at most one session a row, and releases it; a subclass makes the sessions."""

    def __init__(self, pool: HistoryPool) -> None:
        self._pool = pool
        self._open: dict[int, S] = {}

    def open(self, prompt: Tokens, *, slot: int, **asked: Unpack[Opening]) -> S:
        """See `contracts.Drafter.open`. Raises ValueError where a session is open in `slot`."""
        if slot in self._open:
            raise ValueError(f"row {slot} has an open session: close it first")
        tenant, prediction = asked.get("tenant", ""), asked.get("prediction", ())
        self._pool.attach(slot, prompt, prediction, tenant)
        session = self._begin(slot, tenant, bool(len(prediction)))
        self._open[slot] = session
        return session

    def release(self, session: S) -> None:
        """Let another session open in this session's row. Idempotent."""
        if self._open.get(session.row) is session:
            del self._open[session.row]
            self._pool.release(session.row)

    def forget(self) -> None:
        """See `contracts.Drafter.forget`. What was learnt stays: it is no text."""
        self._pool.forget()

    def check(self) -> None:
        """See `contracts.Drafter.check`."""
        self._pool.check()
        for row, session in self._open.items():
            assert session.row == row, f"row {row} has the session of row {session.row}"

    @abstractmethod
    def _begin(self, row: int, tenant: str, predicted: bool) -> S:
        """A session in `row`, which holds the request's text; `predicted`: a prediction too."""
