"""Which row of the pool holds the text of which of the host's rows.

The host moves its rows as it likes, and its hook names no request. A row is what it holds: where
a row of the host does not hold what it held in the step before, its text is looked for among those
that are kept, token by token, and only one that is the same to its end goes on. Any other is new:
it takes the free row that shares the longest beginning, so that only the rest is indexed. Where the
host names its requests (`hook`), the names decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from copyahead.contracts import DraftSession
from copyahead.history.pool import HistoryPool
from copyahead.kernels import hosted
from copyahead.kernels.compiled import entry_point
from copyahead.kernels.index import Ints
from copyahead.plugins.vllm.steps import Steps

AWAY = 256
"""Steps after which a text that no row of the host holds any more has left for good."""
SHARED_START = 16
"""A shorter beginning in common is not worth looking at."""

_prefixes = entry_point(hosted.prefixes)


@dataclass(slots=True)
class Seat:
    """A row of the pool with a request's text in it."""

    row: int
    session: DraftSession
    name: str | None = None
    """The request's name, where the host says it."""
    place: int = -1
    """The host's row in the last step; -1: none."""
    seen: int = 0
    """The last step in which it was there."""


class RowBook:
    """The seats. Every row of the pool has one, or is free and keeps the text of its last one."""

    def __init__(self, pool: HistoryPool, steps: Steps) -> None:
        self.seats: dict[int, Seat] = {}
        self.sessions: dict[int, DraftSession] = {}
        self._pool = pool
        self._steps = steps
        # Free rows, the one that was left first at the beginning.
        self._free = list(range(pool.num_rows))
        self._names: dict[str, int] = {}

    def row_of(self, name: str) -> int:
        """The row of the request called `name`; -1 where it has none."""
        return self._names.get(name, -1)

    def find(
        self,
        host: hosted.Host,
        step: int,
        names: Sequence[str] | None = None,
        tenants: Sequence[str] | None = None,
    ) -> None:
        """Give every unknown row of the host its row of the pool, and settle what came to it."""
        unknown = np.flatnonzero(host.status != hosted.FINE).tolist()
        host.rows[unknown] = -1
        taken = set(host.rows.tolist())
        loose = [seat for seat in self.seats.values() if seat.row not in taken]
        new = []
        for i in unknown:
            name = names[i] if names else None
            seat = self._continued(loose, host, i, name)
            if seat is None:
                new.append(i)
                continue
            loose.remove(seat)
            self._go_on(seat, host, i)
        self._park(loose, step)
        for i in new:
            name = names[i] if names else None
            self._begin(host, i, name, tenants[i] if tenants else "")
        self.note(host, step)

    def note(self, host: hosted.Host, step: int) -> None:
        """Remember where everybody is; who is nowhere for long has left."""
        here = set()
        for i, row in enumerate(host.rows.tolist()):
            if row >= 0:
                seat = self.seats[row]
                seat.place, seat.seen = i, step
                here.add(row)
        self._park([seat for seat in self.seats.values() if seat.row not in here], step)
        for seat in [s for s in self.seats.values() if s.place < 0 and step - s.seen > AWAY]:
            self.close(seat)

    def finish(self, names: Sequence[str]) -> None:
        """These requests have ended: their text may be copied from by others now."""
        for name in names:
            row = self._names.get(name)
            if row is not None:
                self.close(self.seats[row])

    def close(self, seat: Seat) -> None:
        """Give the row back. Its text stays, for a next turn."""
        seat.session.close()
        del self.seats[seat.row], self.sessions[seat.row]
        if seat.name is not None:
            self._names.pop(seat.name, None)
        self._steps.rounds.drafted[seat.row] = 0
        self._steps.rounds.marks[seat.row] = -1
        self._free.append(seat.row)

    def reset(self) -> None:
        """Close every seat."""
        for seat in list(self.seats.values()):
            self.close(seat)

    def check(self, host: hosted.Host) -> None:
        """Raise AssertionError unless every seat of the host's rows holds their text. For tests."""
        self._steps.drafter.check()
        rows = [row for row in host.rows.tolist() if row >= 0]
        assert len(set(rows)) == len(rows), "two rows of the host share a row of the pool"
        assert set(rows) <= set(self.seats), "a row of the host has no seat"
        assert not set(self._free) & set(self.seats), "a row is free and taken"
        assert len(self._free) + len(self.seats) == self._pool.num_rows, "a row is lost"
        for i, row in enumerate(host.rows.tolist()):
            if row >= 0:
                text = host.tokens[i, : host.lengths[i]]
                assert self._shared(text, [row]) == [len(text)], f"row {i} is not what it holds"

    def _shared(self, text: Ints, rows: Sequence[int]) -> list[int]:
        """How many tokens at the beginning of `text` each of `rows` holds."""
        found = np.zeros(len(rows), dtype=np.int32)
        if rows:
            asked = np.array(rows, dtype=np.int32)
            _prefixes(self._pool.arrays, asked, self._pool.vocab_size, text, found)
        counts: list[int] = found.tolist()
        return counts

    def _continued(
        self, loose: Sequence[Seat], host: hosted.Host, i: int, name: str | None
    ) -> Seat | None:
        """The seat whose whole text is what the host's row held before its new tokens."""
        length = int(host.lengths[i])
        held = length - int(host.counts[i])
        # In its old place a text may have grown while nobody asked for drafts.
        asked = [
            seat
            for seat in loose
            if (seat.name is None or seat.name == name)
            and (
                self._pool.length(seat.row) == held
                or (self._pool.length(seat.row) < held and (seat.place == i or name is not None))
            )
        ]
        shared = self._shared(host.tokens[i, :length], [seat.row for seat in asked])
        whole = [
            seat
            for seat, count in zip(asked, shared, strict=True)
            if count == self._pool.length(seat.row) and count > 0
        ]
        # One that says its name is it, then the longest, then the one that was here.
        return max(
            whole,
            key=lambda s: (s.name is not None, self._pool.length(s.row), s.place == i, -s.row),
            default=None,
        )

    def _go_on(self, seat: Seat, host: hosted.Host, i: int) -> None:
        row, length = seat.row, int(host.lengths[i])
        held = self._pool.length(row)
        emitted = host.tokens[i, held:length]
        rounds = self._steps.rounds
        drafted = int(rounds.drafted[row])
        kept = emitted[: len(emitted) - 1]
        if len(kept) > drafted or (kept != rounds.drafts[row, : len(kept)]).any():
            drafted = 0
        if len(emitted):
            rounds.counters[rounds.sources[row], hosted.ACCEPTED] += min(len(kept), drafted)
            copied = drafted if rounds.sources[row] != hosted.FROM_MODEL else 0
            self._steps.settle(row, seat.session, emitted, copied)
        rounds.drafted[row] = 0
        host.rows[i] = row
        seat.place = i

    def _begin(self, host: hosted.Host, i: int, name: str | None, tenant: str) -> None:
        """Open a seat for a text that is new."""
        length, count = int(host.lengths[i]), int(host.counts[i])
        text = host.tokens[i, :length]
        if name is not None and name in self._names:
            # The host has changed the request's text.
            self.close(self.seats[self._names[name]])
        row = self._row_for(text)
        prompt = text[: length - count]
        session = self._steps.drafter.open(prompt, slot=row, tenant=tenant)  # type: ignore[arg-type]
        self._free.remove(row)
        self.seats[row] = Seat(row, session, name, place=i)
        self.sessions[row] = session
        if name is not None:
            self._names[name] = row
        rounds = self._steps.rounds
        rounds.prompts[row] = len(prompt)
        rounds.drafted[row] = 0
        self._mark(row, text, host)
        if count:
            self._steps.settle(row, session, text[length - count :], 0)
        host.rows[i] = row

    def _row_for(self, text: Ints) -> int:
        """A free row, the one whose text begins most like `text`."""
        away = [seat for seat in self.seats.values() if seat.place < 0]
        for seat, place in zip(away, self._shared(text, [s.row for s in away]), strict=True):
            # The turn before: it has ended.
            if SHARED_START <= place == self._pool.length(seat.row) and seat.name is None:
                self.close(seat)
        if not self._free:
            self.close(min(away, key=lambda seat: (seat.seen, seat.row)))
        shared = self._shared(text, self._free)
        best = max(range(len(shared)), key=lambda k: (shared[k], -k))
        if shared[best] >= SHARED_START:
            return self._free[best]
        empty = next((row for row in self._free if self._pool.length(row) == 0), None)
        return self._free[0] if empty is None else empty

    def _mark(self, row: int, text: Ints, host: hosted.Host) -> None:
        """Note where the text differs from others that begin like it."""
        marks = self._steps.rounds.marks
        marks[row] = -1
        others = [other for other in self.seats if other != row]
        for other, place in zip(others, self._shared(text, others), strict=True):
            if place >= SHARED_START // 2:
                for one in (row, other):
                    if place not in marks[one]:
                        marks[one] = [*marks[one, 1:], place]

    def _park(self, seats: Sequence[Seat], step: int) -> None:
        for seat in seats:
            if seat.place >= 0:
                seat.place, seat.seen = -1, step
            self._steps.rounds.drafted[seat.row] = 0
