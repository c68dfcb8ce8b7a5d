"""What was read from a log, added up by context band, and by policy and day where that is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from copyahead.traces.logs.quantiles import Sketch

By = Literal["policy", "day"]

BANDS = ("0-8k", "8-16k", "16-32k", "32k+")
"""Bands of context: what a request had read and written at its end, in 1,024 tokens. A band begins
with its first number and ends before its second."""
ALL = "all"
"""The name of all bands together."""
UNKNOWN = "-"
"""A policy or a day that the log does not tell."""
OTHERS = "others"
"""Policies and days beyond the first `MAX_KEYS`."""
MAX_KEYS = 1000
"""Pairs of policy and day that are kept apart."""

_FIRST, _SECOND, _THIRD = 8 * 1024, 16 * 1024, 32 * 1024


class Seen(msgspec.Struct, gc=False):
    """One request, as a log tells of it. Times in seconds."""

    context: float
    """Tokens read and written at its end."""
    read: int
    """Tokens of its prompt."""
    written: int
    cached: int | None = None
    """Tokens of its prompt that were kept from an earlier one; None: not known."""
    drafted: int = 0
    accepted: int = 0
    rounds: int = 0
    """Passes that it took part in after its prompt."""
    speed: float = 0.0
    """Tokens after the first, by the second; 0: fewer than two."""
    first_token: float | None = None
    failed: bool = False
    """Whether it was refused, cancelled, or ended with an error."""
    policy: str = UNKNOWN
    day: str = UNKNOWN


class Key(NamedTuple):
    """What requests are kept apart by, besides their band."""

    policy: str = ""
    """Empty: not kept apart."""
    day: str = ""


class Group:
    """Requests added up."""

    __slots__ = (
        "accepted", "cached", "drafted", "failed", "first_token", "read", "read_known", "requests",
        "rounds", "speed", "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.requests = self.failed = self.read = self.written = 0
        self.cached = self.read_known = 0
        self.drafted = self.accepted = self.rounds = 0
        self.speed, self.first_token = Sketch(), Sketch()

    def add(self, seen: Seen) -> None:
        """Add a request."""
        self.requests += 1
        self.failed += seen.failed
        self.read += seen.read
        self.written += seen.written
        self.drafted += seen.drafted
        self.accepted += seen.accepted
        self.rounds += seen.rounds
        if seen.cached is not None:
            self.cached += seen.cached
            self.read_known += seen.read
        if seen.speed > 0:
            self.speed.add(seen.speed)
        if seen.first_token is not None:
            self.first_token.add(seen.first_token)

    def merge(self, other: Group) -> None:
        """Add all requests of another group."""
        for name in self.__slots__:
            if name not in ("speed", "first_token"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.speed.merge(other.speed)
        self.first_token.merge(other.first_token)


class Groups:
    """Requests by band and key. Its memory has a bound, whatever names a log holds."""

    def __init__(self, by: Sequence[By] = ()) -> None:
        self._by_policy, self._by_day = "policy" in by, "day" in by
        self._groups: dict[Key, tuple[Group, ...]] = {}

    def add(self, seen: Seen) -> None:
        """Add a request."""
        policy = seen.policy if self._by_policy else ""
        key = Key(policy, seen.day if self._by_day else "")
        bands = self._groups.get(key) or self._made(key)
        context = seen.context
        if context < _FIRST:
            bands[0].add(seen)
        elif context < _SECOND:
            bands[1].add(seen)
        else:
            bands[2 if context < _THIRD else 3].add(seen)

    @property
    def num_keys(self) -> int:
        """How many pairs of policy and day there are."""
        return len(self._groups)

    def __iter__(self) -> Iterator[tuple[Key, str, Group]]:
        """Every group in which there is a request, bands in order; then those of all bands."""
        for key, bands in sorted(self._groups.items()):
            whole = Group()
            for name, group in zip(BANDS, bands, strict=True):
                if group.requests:
                    yield key, name, group
                    whole.merge(group)
            yield key, ALL, whole

    def _made(self, key: Key) -> tuple[Group, ...]:
        if len(self._groups) >= MAX_KEYS:
            key = Key(OTHERS if key.policy else "", OTHERS if key.day else "")
            if key in self._groups:
                return self._groups[key]
        return self._groups.setdefault(key, tuple(Group() for _ in BANDS))


Take = Callable[[Seen], None]
"""Takes each request that a reader finds."""
