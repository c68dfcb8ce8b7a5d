"""One attack on one server: quiet, attack, end; and what each of them must show.

- *Quiet*: a neighbour asks a short request again and again, beside another client's plain requests.
- *Attack*: the attack instead of that client; the neighbour goes on.
- *End*: the server gives back what it held, and answers as before.

Memory is what the server's process and its children hold in RAM (VmRSS), or, where the server was
not started here, its gauge `process_resident_memory_bytes`, which is that of its own process.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
from soak_target import Attack, Target
from soak_watch import HELD, Watcher, gauges, resident_mb

_PLAIN = {
    "messages": [{"role": "user", "content": "Tell me of the fox and of the lazy dog. " * 20}],
    "temperature": 0,
    "max_tokens": 64,
}
"""The request of the other client, while it is quiet."""
_POLL_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class SiegeLimits:
    """What must hold under attack."""

    health_ms: float = 200.0
    neighbour_times: float = 2.0
    """The neighbour's median, in those beside a plain request."""
    memory_percent: float = 10.0
    """How much more than before is held after the attack."""


@dataclass
class Siege:
    """What was seen of one attack. Seconds, milliseconds and megabytes."""

    attack: str
    num_sent: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    """How often each status came; `left`, `closed` and `held` are what became of the others."""
    health_ms: list[float] = field(default_factory=list)
    quiet_seconds: list[float] = field(default_factory=list)
    attack_seconds: list[float] = field(default_factory=list)
    """Of the neighbour's answers."""
    memory_before_mb: float = 0.0
    memory_peak_mb: float = 0.0
    memory_after_mb: float = 0.0
    missing_gauges: list[str] = field(default_factory=list)
    """Of what the server could hold, and does not tell."""
    faults: list[str] = field(default_factory=list)

    @property
    def neighbour_times(self) -> float:
        """The neighbour's median under attack, in those beside a plain request."""
        quiet, attack = _median(self.quiet_seconds), _median(self.attack_seconds)
        return attack / quiet if quiet else 0.0

    def failures(self, limits: SiegeLimits) -> list[str]:
        """Every check that failed, in words."""
        found = list(self.faults[:20])
        if self.health_ms and max(self.health_ms) > limits.health_ms:
            found.append(f"/health took {max(self.health_ms):.0f} ms")
        if self.neighbour_times > limits.neighbour_times:
            found.append(f"the neighbour took {self.neighbour_times:.1f} times as long")
        grown = self.memory_after_mb - self.memory_before_mb
        if grown > self.memory_before_mb * limits.memory_percent / 100:
            found.append(f"memory grew by {grown:.0f} MB")
        if not (self.health_ms and self.quiet_seconds and self.attack_seconds):
            found.append("nobody watched")
        if not self.num_sent:
            found.append("no request was sent")
        return found

    def document(self, limits: SiegeLimits) -> dict[str, Any]:
        """For scripts."""
        times = {
            name: [round(_median(values), 4), round(max(values, default=0.0), 4)]
            for name, values in (
                ("health_ms", self.health_ms),
                ("quiet_seconds", self.quiet_seconds),
                ("attack_seconds", self.attack_seconds),
            )
        }
        document = {**asdict(self), **times, "failures": self.failures(limits)}
        del document["faults"]
        return document

    def row(self, limits: SiegeLimits) -> str:
        """For people; see `HEAD`."""
        failures = self.failures(limits)
        return _ROW.format(
            self.attack,
            self.num_sent,
            f"{_median(self.health_ms):.0f} / {max(self.health_ms, default=0):.0f}",
            f"{_median(self.quiet_seconds):.2f}",
            f"{_median(self.attack_seconds):.2f} / {max(self.attack_seconds, default=0):.2f}",
            f"{self.neighbour_times:.1f}",
            f"{self.memory_before_mb:.0f} / {self.memory_peak_mb:.0f} / {self.memory_after_mb:.0f}",
            f"FAILED ({len(failures)})" if failures else "ok",
        )


_ROW = "| {:8} | {:>6} | {:>14} | {:>5} | {:>14} | {:>5} | {:>18} | {} |"
HEAD = "\n".join(
    (
        "`/health` in ms, neighbour in s: median / longest; memory in MB: before / peak / after",
        "",
        _ROW.format(
            "attack", "sent", "`/health`", "quiet", "attacked", "times", "memory", "verdict"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    )
)


class Besieger:
    """Runs one attack."""

    def __init__(
        self,
        url: str,
        attack: Attack,
        *,
        seconds: float,
        quiet_seconds: float = 10.0,
        patience: float = 30.0,
        pid: int | None = None,
        metrics: httpx.AsyncClient | None = None,
        needs_gauges: bool = True,
    ) -> None:
        """`patience`: seconds that the server has to answer the last requests, and then to give
        back what it holds. `pid`: its process. `needs_gauges`: it fails where it does not tell
        all that it holds.
        `metrics`: by which its counters are read."""
        self._url, self._attack, self._pid = url, attack, pid
        self._needs_gauges = needs_gauges
        self._seconds, self._quiet_seconds, self._patience = seconds, quiet_seconds, patience
        self._metrics = metrics or httpx.AsyncClient(base_url=url, timeout=60)
        self._siege = Siege(attack.name)
        self._texts: list[str] = []

    async def run(self) -> Siege:
        """All three phases."""
        http = httpx.AsyncClient(
            base_url=self._url,
            timeout=2 * self._patience,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        async with http, self._metrics:
            target = Target(self._url, http)
            await self._attack.prepare(target)
            await self._quiet(http)
            await self._under_attack(target)
            await self._end()
        self._siege.num_sent, self._siege.outcomes = target.num_sent, dict(target.outcomes)
        self._siege.faults += target.faults
        return self._siege

    async def _quiet(self, http: httpx.AsyncClient) -> None:
        plain = asyncio.create_task(self._ask_plainly(http))
        watching = asyncio.create_task(self._neighbour(self._quiet_seconds, "before"))
        memory = []
        while not watching.done():
            memory.append(await self._memory_mb())
            await asyncio.sleep(_POLL_SECONDS)
        self._siege.quiet_seconds = watching.result()
        plain.cancel()
        await asyncio.gather(plain, return_exceptions=True)
        self._siege.memory_before_mb = _median(memory[-len(memory) // 2 :])

    async def _ask_plainly(self, http: httpx.AsyncClient) -> None:
        while True:
            reply = await http.post("/v1/chat/completions", json=_PLAIN)
            if reply.status_code != 200:
                self._siege.faults.append(f"a plain request got {reply.status_code}")
            await asyncio.sleep(0)

    async def _under_attack(self, target: Target) -> None:
        until = time.monotonic() + self._seconds
        neighbour = asyncio.create_task(self._neighbour(self._seconds, "under attack"))
        health = await Watcher.start("health", self._url, self._seconds)
        clients = [
            asyncio.create_task(self._client(target, number, until))
            for number in range(self._attack.num_clients)
        ]
        while time.monotonic() < until:
            self._siege.memory_peak_mb = max(self._siege.memory_peak_mb, await self._memory_mb())
            await asyncio.sleep(_POLL_SECONDS)
        _, late = await asyncio.wait(clients, timeout=self._patience)
        for client in late:
            client.cancel()
        ended = await asyncio.gather(*clients, return_exceptions=True)
        self._siege.faults += [f"a client of the attack: {e!r}" for e in ended if e is not None]
        await self._attack.end()
        self._siege.attack_seconds = await neighbour
        seen = await health.seen()
        self._siege.health_ms = seen.get("ms", [])
        self._siege.faults += seen["faults"][:5]

    async def _client(self, target: Target, number: int, until: float) -> None:
        rng = random.Random(number)
        while time.monotonic() < until:
            await self._attack.strike(target, rng)
            await asyncio.sleep(self._attack.pause * rng.uniform(0.8, 1.2))

    async def _neighbour(self, seconds: float, when: str) -> list[float]:
        """Seconds of the neighbour's answers, whose text is the same at all times."""
        seen = await (await Watcher.start("neighbour", self._url, seconds)).seen()
        self._siege.faults += [f"the neighbour, {when}: {fault}" for fault in seen["faults"][:5]]
        self._texts = self._texts or seen.get("texts", [])[:1]
        if any(text not in self._texts for text in seen.get("texts", ())):
            self._siege.faults.append(f"the neighbour got another text, {when}")
        return [float(each) for each in seen.get("seconds", ())]

    async def _end(self) -> None:
        until = time.monotonic() + self._patience
        left = await self._held()
        while left and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)
            left = await self._held()
        self._siege.faults += [f"{name} is {value:g} at the end" for name, value in left.items()]
        before = self._siege.memory_before_mb
        self._siege.memory_after_mb = await self._memory_mb()
        while self._siege.memory_after_mb > 1.05 * before and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)
            self._siege.memory_after_mb = await self._memory_mb()
        await self._neighbour(min(1.0, self._quiet_seconds), "after the attack")

    async def _held(self) -> dict[str, float]:
        values = await self._gauges()
        missing = [name for name in HELD if name not in values]
        self._siege.missing_gauges = missing
        if missing and self._needs_gauges:
            return dict.fromkeys(missing, float("nan"))
        return {name: values[name] for name in HELD if values.get(name)}

    async def _memory_mb(self) -> float:
        if self._pid is not None:
            return resident_mb(self._pid)
        return (await self._gauges()).get("process_resident_memory_bytes", 0.0) / 2**20

    async def _gauges(self) -> dict[str, float]:
        try:
            return gauges((await self._metrics.get("/metrics")).text)
        except httpx.HTTPError as error:
            self._siege.faults.append(f"/metrics: {error!r}")
            return {}


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else 0.0
