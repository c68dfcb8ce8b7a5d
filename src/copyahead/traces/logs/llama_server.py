"""The log of llama.cpp's `llama-server`, in the forms that it has had.

A request's figures stand in several lines, which name its slot and task, or follow one that does:
the time of its prompt, that of its answer, what was drafted, and, when the slot is released, how
many tokens it holds then. What a line is about is told by its words and not by its place, since
prefixes (clocks, levels, containers' dates, a router's `[port]`) differ.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from copyahead.traces.logs.bands import UNKNOWN, Seen, Take

_MARKS = (
    *(b" time ", b"draft acceptance", b"stop processing", b"slot released"),
    *(b"done, n_", b"print_timing", b"statistics"),
)
"""Every line that is of use has one of them."""
_IDS = re.compile(
    rb"id +(\d+) \| task +(-?\d+) \||(?:id_slot|slot_id)\"?[=:](\d+),? ?\"?"
    rb"(?:id_task|task_id)\"?[=:](-?\d+)"
)
_CHILD = re.compile(rb"\[(\d+)\] ")
_TIMES = re.compile(
    rb"(prompt )?(?:generation )?eval time += +([\d.]+) ms / +(\d+) (?:tokens|runs)"
)
_DRAFTED = re.compile(
    rb"draft acceptance(?: rate)? += +[\d.]+ +\( *(\d+) accepted / +(\d+) generated\)"
)
_RELEASED = re.compile(
    rb"stop processing: n_(?:past|tokens) = (\d+)(?:, truncated = (\d))?"
    rb"|slot released.*n_past\"?[=:](\d+)"
)
_READ = re.compile(rb"prompt (?:processing )?done, n_(?:past|tokens) = (\d+)")
_DRAFTER = re.compile(rb"statistics +([\w-]+): ")
_CALLS = re.compile(rb"#gen drafts = *(\d+)")
_DAY = re.compile(rb"\d{4}-\d\d-\d\d")
_STAMP = re.compile(rb"timestamp\"?[=:](\d{10})\b")
_MAX_OPEN = 4096
"""Tasks that have begun and not ended; a slot has one, so a real server has far fewer."""

_Key = tuple[bytes, bytes, bytes]
"""The router's child, the slot, and the task."""


class _Task(msgspec.Struct):
    prompt_ms: float | None = None
    num_prompt: int = 0
    """Tokens of the prompt that were not cached."""
    eval_ms: float | None = None
    num_written: int = 0
    drafted: int = 0
    accepted: int = 0
    whole_prompt: int | None = None
    drafters: list[str] = []


def is_llama_server(line: bytes) -> bool:
    """Whether llama.cpp's server wrote the line."""
    return (
        b"print_timing" in line
        or (b" | task " in line and b"slot " in line)
        or (b"eval time" in line and b" ms / " in line)
    )


class LlamaServerReader:
    """Reads one line after another; a request is taken when its slot is released."""

    note = (
        "time to first token is the time of the prompt, without the wait for a slot, which "
        "llama.cpp does not log; tokens a round count every accepted token as a round saved"
    )

    def __init__(self, take: Take, wrong: Callable[[bytes], None]) -> None:
        self._take, self._wrong = take, wrong
        self._open: OrderedDict[_Key, _Task] = OrderedDict()
        self._current: dict[bytes, _Key] = {}
        self._day = UNKNOWN

    def line(self, line: bytes) -> None:
        """Learn what a line says."""
        if not any(mark in line for mark in _MARKS):
            if b"\0" in line:
                self._wrong(line)
            return
        child = _CHILD.match(line)
        router = child[1] if child is not None else b""
        ids = _IDS.search(line)
        if ids is not None:
            slot, task = (ids[1], ids[2]) if ids[1] is not None else (ids[3], ids[4])
            key = router, slot, task
            if b"print_timing" in line:
                self._current[router] = key
        else:
            key = self._current.get(router, (router, b"", b""))
        if not self._learn(key, line):
            self._wrong(line)

    def new_file(self) -> None:
        """A request does not go on in another file."""
        self.finish()

    def finish(self) -> None:
        """Take those of which the log does not tell the end."""
        while self._open:
            self._end(next(iter(self._open)), None)
        self._current.clear()

    def _learn(self, key: _Key, line: bytes) -> bool:
        """False where a line should tell something that cannot be read."""
        if b"eval time" in line:
            found = _TIMES.search(line)
            return found is not None and self._times(key, found)
        if b"draft acceptance" in line:
            found = _DRAFTED.search(line)
            if found is not None:
                task = self._task(key)
                task.accepted, task.drafted = int(found[1]), int(found[2])
            return found is not None
        if b"stop processing" in line or b"slot released" in line:
            found = _RELEASED.search(line)
            if found is not None:
                self._date(line)
                whole = found[1] or found[3]
                self._end(key, None if found[2] == b"1" else int(whole))
            return found is not None
        self._remark(key, line)
        return True

    def _times(self, key: _Key, found: re.Match[bytes]) -> bool:
        try:
            milliseconds, count = float(found[2]), int(found[3])
        except ValueError:
            return False
        is_prompt = found[1] is not None
        if is_prompt and key in self._open and self._open[key].eval_ms is not None:
            # The same task again: the server was started anew.
            self._end(key, None)
        task = self._task(key)
        if is_prompt:
            task.prompt_ms, task.num_prompt = milliseconds, count
        else:
            task.eval_ms, task.num_written = milliseconds, count
            self._date(found.string)
        return True

    def _remark(self, key: _Key, line: bytes) -> None:
        """How long a prompt is, and what drafts."""
        read = _READ.search(line)
        if read is not None:
            self._task(key).whole_prompt = int(read[1])
            return
        drafter = _DRAFTER.search(line)
        if drafter is not None and key in self._open:
            calls = _CALLS.search(line)
            if calls is None or int(calls[1]):
                self._open[key].drafters.append(drafter[1].decode())

    def _date(self, line: bytes) -> None:
        """Which day it is, where the line says so; otherwise the day of the last that did."""
        found = _DAY.search(line, 0, 64)
        if found is not None:
            self._day = found[0].decode()
            return
        stamp = _STAMP.search(line)
        if stamp is not None:
            self._day = datetime.fromtimestamp(int(stamp[1]), UTC).date().isoformat()

    def _task(self, key: _Key) -> _Task:
        task = self._open.get(key)
        if task is None:
            if len(self._open) >= _MAX_OPEN:
                self._end(next(iter(self._open)), None)
            task = self._open[key] = _Task()
        return task

    def _end(self, key: _Key, context: int | None) -> None:
        """Take the request; `context`: tokens that its slot holds, None where that is not known."""
        task = self._open.pop(key, None)
        if task is None or (task.eval_ms is None and task.prompt_ms is None):
            return
        # The last token was not read any more.
        after_prompt = max(0, task.num_written - 1)
        whole = task.whole_prompt
        if context is not None:
            whole = max(context - after_prompt, task.num_prompt)
        read = task.num_prompt if whole is None else max(whole, task.num_prompt)
        seconds = (task.eval_ms or 0.0) / 1000
        self._take(
            Seen(
                context=read + task.num_written,
                read=read,
                written=task.num_written,
                cached=None if whole is None else read - task.num_prompt,
                drafted=task.drafted,
                accepted=task.accepted,
                rounds=max(task.num_written - task.accepted, 0),
                speed=after_prompt / seconds if seconds > 0 else 0.0,
                first_token=None if task.prompt_ms is None else task.prompt_ms / 1000,
                failed=task.eval_ms is None,
                policy="+".join(dict.fromkeys(task.drafters)) or UNKNOWN,
                day=self._day,
            )
        )
