"""How many threads a pass has: one for each CPU that other programs leave.

The threads of a pass meet hundreds of times, and wait for each other by spinning. Where another
program takes one of their CPUs, all wait for the thread that does not run: two threads on two CPUs
of which one was busy wrote 2 to 70 tokens a second where one thread wrote 150. So what others use
is looked at a few times a second, and they get out of its way.

Threads divide the columns of a product among themselves and no sum is split, so a pass has the same
bits with any number of them; the probe checks that, and only where it is so are they changed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

LOOK_SECONDS = 0.2
"""Between two looks. The system counts in hundredths of a second, so a shorter time says little."""
BUSY = 0.4
"""CPUs in use by others from which threads give way: one program keeps one CPU, a little noise
does not."""
CALM = 0.2
CALM_LOOKS = 5
"""Looks in a row with fewer than `CALM` CPUs in use by others after which threads come back."""

_BUSY_FIELDS = (1, 2, 3, 6, 7, 8)
"""Of a line of /proc/stat: user, nice, system, interrupts (two kinds), and stolen by the host."""

_STAT = Path("/proc/stat")


class OtherPrograms:
    """How many CPUs other programs use, of those that this process may run on."""

    def __init__(self, cpus: Collection[int] | None = None, stat: Path = _STAT) -> None:
        """`cpus`: their numbers; those of the process when not given. OSError or ValueError where
        the system does not tell what its CPUs do."""
        self._names = {f"cpu{number}" for number in cpus or os.sched_getaffinity(0)}
        self._stat = stat
        self._tick = 1.0 / os.sysconf("SC_CLK_TCK")
        self._at, self._all, self._own = self._read()

    def since_last_look(self) -> float:
        """Their mean number since the last call; at least 0."""
        at, used, own = self._read()
        seconds = at - self._at
        others = (used - self._all) - (own - self._own)
        self._at, self._all, self._own = at, used, own
        return max(0.0, others / seconds) if seconds > 0 else 0.0

    def _read(self) -> tuple[float, float, float]:
        """When, and the CPU seconds of everybody and of this process until then."""
        used = 0
        for line in self._stat.read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name in self._names:
                used += sum(int(fields[place - 1]) for place in _BUSY_FIELDS)
        return time.monotonic(), used * self._tick, time.process_time()


class YieldingThreads:
    """Sets the threads of passes by what others use."""

    def __init__(
        self,
        most: int,
        set_threads: Callable[[int], None],
        others: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most` threads (>= 2) are set already. `others`: see `OtherPrograms.since_last_look`."""
        self.current = most
        """Threads of the next pass."""
        self._most = most
        self._set_threads = set_threads
        self._others = others
        self._clock = clock
        self._next_look = clock() + LOOK_SECONDS
        self._calm_looks = 0

    def before_pass(self) -> None:
        """Look, if it is time to."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        others = self._others()
        self._calm_looks = self._calm_looks + 1 if others < CALM else 0
        if others >= BUSY:
            self._change(min(self.current, max(1, self._most - math.ceil(others - CALM))))
        elif self._calm_looks >= CALM_LOOKS:
            self._change(self._most)

    def _change(self, threads: int) -> None:
        if threads != self.current:
            self._set_threads(threads)
            self.current = threads


def yielding_threads(most: int, set_threads: Callable[[int], None]) -> YieldingThreads | None:
    """For `most` threads; None for one, and where the system does not tell what others use."""
    if most < 2:
        return None
    try:
        others = OtherPrograms()
    except (OSError, ValueError, AttributeError):
        # No Linux: each thread keeps its CPU.
        return None
    return YieldingThreads(most, set_threads, others.since_last_look)
