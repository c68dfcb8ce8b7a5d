"""What watches the server of a soak: `/health`, a neighbour, its memory, and what it holds.

`/health` and the neighbour are asked by processes of their own (`python soak_watch.py health URL
SECONDS`): the soak's process has clients to run, and its delays are none of the server's.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

HELD = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "copyahead:requests_held",
    "copyahead:slots_held",
    "copyahead:cells_held",
    "copyahead:history_rows_held",
)
"""Gauges that must be 0 when nobody asks: of the queue, and of the engine itself."""

NEIGHBOUR = {
    "messages": [{"role": "user", "content": "Repeat twice: the quick brown fox"}],
    "temperature": 0,
    "max_tokens": 24,
}
"""What the neighbour asks, again and again."""
_PATIENCE = 30.0
"""Seconds for one reply."""
_PAUSE = 0.1
"""Seconds between two requests of the neighbour."""

Seen = dict[str, list[Any]]


def watch_health(url: str, seconds: float) -> Seen:
    """`ms`: how long `/health` took, four times a second. `faults`: what else than 200 came."""
    seen: Seen = {"ms": [], "faults": []}
    with _client(url) as http:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            try:
                status = http.get("/health").status_code
                if status != 200:
                    seen["faults"].append(f"/health answered with {status}")
            except httpx.HTTPError as error:
                seen["faults"].append(f"/health: {error!r}")
            seen["ms"].append(1000 * (time.perf_counter() - began))
            time.sleep(0.25)
    return seen


def ask_as_neighbour(url: str, seconds: float) -> Seen:
    """`seconds` of each answer, the different `texts`, and in `faults` what is no answer."""
    seen: Seen = {"seconds": [], "texts": [], "faults": []}
    with _client(url) as http:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.perf_counter()
            try:
                reply = http.post("/v1/chat/completions", json=NEIGHBOUR)
                if reply.status_code == 200:
                    text = reply.json()["choices"][0]["message"]["content"]
                    seen["texts"] += [] if text in seen["texts"] else [text]
                else:
                    seen["faults"].append(f"status {reply.status_code}: {reply.text[:200]}")
            except httpx.HTTPError as error:
                seen["faults"].append(repr(error))
            seen["seconds"].append(time.perf_counter() - began)
            time.sleep(_PAUSE)
    return seen


def _client(url: str) -> httpx.Client:
    """One that connects anew for each request, as somebody who comes along does."""
    return httpx.Client(
        base_url=url, timeout=_PATIENCE, limits=httpx.Limits(max_keepalive_connections=0)
    )


_WATCHERS = {"health": watch_health, "neighbour": ask_as_neighbour}


class Watcher:
    """A process that watches for a number of seconds."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, kind: str, url: str, seconds: float) -> Watcher:
        """`kind`: `health` or `neighbour`."""
        command = sys.executable, __file__, kind, url, str(seconds)
        return cls(await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE))

    async def seen(self) -> Seen:
        """What it has seen, when its time is over."""
        output, _ = await self._process.communicate()
        seen: Seen = json.loads(output) if output else {"faults": ["a watcher ended early"]}
        return seen


def gauges(page: str) -> dict[str, float]:
    """The values of a page of metrics by their names, those with several labels left out."""
    found = re.findall(r"^([\w:]+)(?:\{[^,}]*\})? (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def resident_mb(pid: int) -> float:
    """Megabytes of memory that a process and its children hold, pages that they share counted
    once for each."""
    return sum(_own_resident_mb(each) for each in _family(pid))


def _own_resident_mb(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def _family(pid: int) -> list[int]:
    """The process and all below it."""
    found, pending = [], [pid]
    while pending:
        found.append(pending.pop())
        for task in Path(f"/proc/{found[-1]}/task").glob("*/children"):
            try:
                pending += map(int, task.read_text().split())
            except OSError:
                continue
    return found


if __name__ == "__main__":
    print(json.dumps(_WATCHERS[sys.argv[1]](sys.argv[2], float(sys.argv[3]))))
