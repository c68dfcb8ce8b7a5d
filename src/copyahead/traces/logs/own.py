"""The lines that `copyahead serve` writes about its requests (`server/service.py`).

Fields are found by name, so that a line with more of them, or without those that came later
(`prompts`, `policy`), is read as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable

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
_FAILED = (b"cancelled", b"error", b"refused")


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
        day = _DAY.search(line, 0, at)
        try:
            seen = _seen(dict(_FIELD.findall(line, at)))
        except (KeyError, ValueError):
            self._wrong(line)
            return
        if day is not None:
            seen.day = day[0].decode()
        self._take(seen)

    def new_file(self) -> None:
        """Lines stand alone."""

    def finish(self) -> None:
        """Nothing is held back."""


def _seen(fields: dict[bytes, bytes]) -> Seen:
    """The request. Raises KeyError or ValueError where a field is missing or is no number."""
    read, written, cached = int(fields[b"read"]), int(fields[b"written"]), int(fields[b"cached"])
    rounds, drafted = int(fields[b"rounds"]), int(fields[b"drafted"])
    accepted, prompts = int(fields[b"accepted"]), int(fields.get(b"prompts", 1))
    speed, first = float(fields[b"tok_s"]), fields[b"first_token_ms"]
    first_token = None if first == b"-" else float(first) / 1000
    if min(read, written, cached, rounds, drafted, accepted, speed) < 0 or prompts < 1:
        raise ValueError("a count is negative")
    finish = fields[b"finish"]
    return Seen(
        context=read / prompts + written / (finish.count(b",") + 1),
        read=read,
        written=written,
        cached=cached,
        drafted=drafted,
        accepted=accepted,
        rounds=rounds,
        speed=speed,
        first_token=first_token,
        failed=any(reason in finish for reason in _FAILED),
        policy=fields[b"policy"].decode() if b"policy" in fields else UNKNOWN,
    )
