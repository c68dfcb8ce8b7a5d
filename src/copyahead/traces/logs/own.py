"""The lines that `copyahead serve` writes about its requests (`server/service.py`).

Fields are found by name, so that a line with more of them, or without those that came later
(`prompts`, `policy`), is read as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from copyahead.traces.logs.bands import UNKNOWN, Seen, Take

_MARK = b"request id="
_FIELD = re.compile(rb"(\w+)=(\S+)")
_DAY = re.compile(rb"\d{4}-\d\d-\d\d")
_RECORD = re.compile(
    rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: "
)
_BANNER = re.compile(
    rb"loading |(?:model|context|slots|exactness|lookup|draft model|shared store|chat template|keys"
    rb"|address): |\s*$"
)
_DONE = frozenset({b"stop", b"length"})
_FAILED = (b"cancelled", b"error", b"refused")
_NAMES = (
    *(b"finish", b"read", b"cached", b"written", b"first_token_ms", b"tok_s", b"rounds"),
    *(b"drafted", b"accepted", b"prompts", b"policy"),
)
_EARLIER = {b"prompts": b"1", b"policy": UNKNOWN.encode()}
"""What lines stand for that were written before they had these fields."""
_USUAL = re.compile(
    rb"request id=\S+ route=\S+ tenant=\S+ finish=(\S+) read=(\d+) cached=(\d+) written=(\d+) "
    rb"queue_ms=\S+ first_token_ms=(\S+) total_ms=\S+ tok_s=(\S+) rounds=(\d+) drafted=(\d+) "
    rb"accepted=(\d+) prompts=(\d+) policy=(\S+)"
)
"""A line as it is written now: read at once, in half of the time."""


def is_own(line: bytes) -> bool:
    """Whether `copyahead serve` wrote the line."""
    return (_MARK in line and b" route=" in line) or b" copyahead.server." in line


class OwnReader:
    """Reads one line after another."""

    note = "time to first token counts from when the request came, its wait for a slot included"

    def __init__(self, take: Take, wrong: Callable[[bytes], None]) -> None:
        self._take, self._wrong = take, wrong

    def line(self, line: bytes) -> None:
        """Take the request of a line, if it has one."""
        at = line.find(_MARK)
        if at < 0:
            if not (_RECORD.search(line) or _BANNER.match(line)):
                self._wrong(line)
            return
        try:
            usual = _USUAL.match(line, at)
            if usual is not None:
                seen = _seen(*usual.groups())
            else:
                fields = dict(_FIELD.findall(line, at))
                seen = _seen(*(fields.get(name, _EARLIER.get(name)) for name in _NAMES))
        except (AttributeError, TypeError, ValueError):
            self._wrong(line)
            return
        day = _DAY.search(line, 0, at)
        if day is not None:
            seen.day = day[0].decode()
        self._take(seen)

    def new_file(self) -> None:
        """Lines stand alone."""

    def finish(self) -> None:
        """Nothing is held back."""


def _seen(
    finish: Any,
    read: Any,
    cached: Any,
    written: Any,
    first_token: Any,
    speed: Any,
    rounds: Any,
    drafted: Any,
    accepted: Any,
    prompts: Any,
    policy: Any,
) -> Seen:
    """The request of these fields, which are bytes. Raises AttributeError or TypeError where one
    is missing, and ValueError where one is no number."""
    seen = Seen(
        0.0,
        int(read),
        int(written),
        int(cached),
        int(drafted),
        int(accepted),
        int(rounds),
        float(speed),
        None if first_token == b"-" else float(first_token) / 1000,
        finish not in _DONE and any(reason in finish for reason in _FAILED),
        policy.decode(),
    )
    num_prompts = int(prompts)
    if num_prompts < 1 or b"-" in read + written + cached + rounds + drafted + accepted + speed:
        raise ValueError("a count is negative")
    seen.context = seen.read / num_prompts + seen.written / (finish.count(b",") + 1)
    return seen
