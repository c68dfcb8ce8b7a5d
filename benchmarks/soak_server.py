"""Many clients at once on one server, some of them rude: does it stay right, and stay up?

    python benchmarks/soak_server.py --seconds 60 --clients 32

starts `copyahead serve` (with `--url` it takes a server that runs) and sends it valid and broken
requests, whole and streamed; a third of the clients leave at a random moment. Checked are:

- every reply is one that its request may get, in a stream too: its answer, the right refusal, or
  that the server is busy;
- every answer that came to its end equals the same request's answer when it was alone, with its
  log-probabilities and its usage, and so does the answer to each when it is asked after the storm;
- `/health` below 100 ms throughout, and memory flat;
- no slot, no cell and no row of history left taken.

    python benchmarks/soak_server.py --attack nulls stops --seconds 60
    python benchmarks/soak_server.py --attack all

sends what `soak_attacks.py` has under these names instead, each to a server of its own, with a
neighbour who must not notice; `soak_siege.py` says what is checked. With `--python-path DIR` the
server is that of another tree (`git worktree add DIR COMMIT`, and then `DIR/src`), to compare.

The last line is one JSON document, and the exit status is 1 when a check fails. Replies are judged
in `soak_replies.py`, which can also spoil them (`--plant`), to see that this is noticed.

What it cannot show: how fast the server is. Use bench_llama_server.py for that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from soak_attacks import ATTACKS
from soak_replies import Planting, Reply, read_broken, read_stream, read_whole
from soak_serve import served, wait_until_up
from soak_siege import HEAD, Besieger, SiegeLimits
from soak_watch import HELD, Watcher, gauges

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "looks",
    "at",
    "the",
    "moon",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "colour": {"enum": ["red", "blue"]}},
    "required": ["ok", "colour"],
    "additionalProperties": False,
}

STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
Body = dict[str, Any]


@dataclass
class Report:
    """What was seen."""

    statuses: Counter[int] = field(default_factory=Counter)
    completed: int = 0
    left: int = 0
    wrong_answers: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    health_ms: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    left_over: dict[str, float] = field(default_factory=dict)

    @property
    def memory_growth_mb(self) -> float:
        """From the first third to the last, by their means; the start is warming up."""
        third = len(self.memory_mb) // 3
        if third == 0:
            return 0.0
        middle = self.memory_mb[third : 2 * third] or self.memory_mb
        return sum(self.memory_mb[-third:]) / third - sum(middle) / len(middle)

    def failures(self, *, health_limit_ms: float, memory_limit_mb: float) -> list[str]:
        """Every check that failed, in words."""
        found = list(self.faults[:20])
        if len(self.faults) > 20:
            found.append(f"{len(self.faults) - 20} faults more")
        found += [f"status {s}: {n} times" for s, n in self.statuses.items() if s >= 500]
        found += [f"not as when alone: {name}" for name in self.wrong_answers[:5]]
        if self.health_ms and max(self.health_ms) > health_limit_ms:
            found.append(f"/health took {max(self.health_ms):.0f} ms")
        if self.memory_growth_mb > memory_limit_mb:
            found.append(f"memory grew by {self.memory_growth_mb:.1f} MB")
        found += [f"{name} is {value:g} at the end" for name, value in self.left_over.items()]
        if not self.completed:
            found.append("no request was completed")
        return found


def valid_requests(num: int, max_tokens: int) -> list[tuple[str, Body]]:
    """(path, body) of requests whose answers are the same every time."""
    made: list[tuple[str, Body]] = []
    for number in range(num):
        rng = random.Random(number)
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 20)))
        body: Body = {
            "messages": [{"role": "user", "content": f"Repeat twice: {text}"}],
            "seed": number,
            "temperature": rng.choice([0, 0.7, 1.0]),
            "max_tokens": rng.randint(1, max_tokens),
        }
        kind = number % 5
        if kind == 1:
            body |= {"tools": TOOLS}
        elif kind == 2:
            schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
            body |= {"response_format": schema, "max_tokens": 80}
        elif kind == 3:
            body |= {"n": 2, "logprobs": True, "stop": [" moon"]}
        if kind == 4:
            body |= {"prompt": body.pop("messages")[0]["content"], "logprobs": number % 3}
            made.append(("/v1/completions", body))
        else:
            made.append(("/v1/chat/completions", body))
    return made


BROKEN: list[tuple[str, bytes, int]] = [
    ("/v1/chat/completions", b"{", 400),
    ("/v1/chat/completions", b'{"messages": []}', 400),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "x"}], "top_p": 7}', 400),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": {"a": 1}}]}', 400),
    (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{}]}',
        400,
    ),
    (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "x"}], "stream": true, "response_format": '
        b'{"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}',
        400,
    ),
    ("/v1/completions", b'{"prompt": [99999999]}', 400),
    ("/v1/completions", b'{"prompt": "' + b"word " * 40_000 + b'"}', 400),
    ("/v1/nothing", b"{}", 404),
    ("/tokenize", b'{"content": 3}', 400),
]
"""Path, body, and the status that it has to get."""


class Soak:
    """The clients of one run."""

    def __init__(
        self,
        url: str,
        *,
        clients: int,
        seconds: float,
        max_tokens: int,
        requests: int = 25,
        patience: float = 10.0,
        metrics_key: str | None = None,
        plant: str | None = None,
    ) -> None:
        """`requests`: how many valid ones there are. `patience`: seconds that the server has to
        give back what it holds. `plant`: a fault for replies; see `soak_replies.Planting`."""
        self._patience = patience
        self.url = url
        self.report = Report()
        self._num_clients = clients
        self._seconds = seconds
        self._valid = valid_requests(requests, max_tokens)
        self._alone: list[Any] = []
        self._random = random.Random(1)
        self._planting = Planting(plant) if plant else None
        self._metrics_headers = {"authorization": f"Bearer {metrics_key}"} if metrics_key else {}

    async def run(self) -> Report:
        """Ask every request alone, then all at once until the time is over, then alone again."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        async with httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(120),
            limits=limits,
            transport=self._planting,
        ) as http:
            if not await self._ask_all(http):
                return self.report
            self._enter("storm")
            until = time.monotonic() + self._seconds
            watching = asyncio.create_task(self._watch(http, until))
            await asyncio.gather(*(self._client(http, until) for _ in range(self._num_clients)))
            await watching
            await self._look_at_the_end(http)
            self._enter("again")
            for place in range(len(self._valid)):
                await self._polite(http, place, "again, alone")
            await self._look_at_the_end(http)
        return self.report

    def _enter(self, phase: str) -> None:
        if self._planting is not None:
            self._planting.phase = phase

    async def _ask_all(self, http: httpx.AsyncClient) -> bool:
        """Every request alone; whether each was answered."""
        for path, body in self._valid:
            answer = await http.post(path, json=body)
            reply = read_whole(answer.status_code, answer.text)
            if reply.essence is None:
                self.report.faults.append(f"alone: {reply.fault or 'busy'}")
                return False
            self._alone.append(reply.essence)
        return True

    async def _client(self, http: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            dice = self._random.random()
            try:
                if dice < 0.15:
                    await self._broken(http)
                elif dice < 0.5:
                    await self._leaving(http)
                else:
                    await self._polite(http, self._random.randrange(len(self._valid)))
            except httpx.HTTPError as error:
                self.report.faults.append(f"connection: {error!r}")

    async def _note(self, status: int) -> None:
        """Count a status; a client that is told that the server is busy waits a little."""
        self.report.statuses[status] += 1
        if status == 429:
            await asyncio.sleep(self._random.uniform(0.2, 1.0))

    def _judge(self, reply: Reply, place: int, how: str = "") -> None:
        """Compare what a valid request got with what it got when it was alone."""
        path, _ = self._valid[place]
        if reply.fault is not None:
            self.report.faults.append(f"{path} {place}: {reply.fault}")
        if reply.essence is None:
            return
        self.report.completed += 1
        if reply.essence != self._alone[place]:
            self.report.wrong_answers.append(
                f"{path} {place} {how}: {reply.essence} instead of {self._alone[place]}"
            )

    async def _broken(self, http: httpx.AsyncClient) -> None:
        path, content, expected = self._random.choice(BROKEN)
        headers = {"content-type": "application/json"}
        answer = await http.post(path, content=content, headers=headers)
        await self._note(answer.status_code)
        reply = read_broken(answer.status_code, answer.text, expected)
        if reply.fault is not None:
            self.report.faults.append(f"{reply.fault} to {content[:60]!r}")

    async def _leaving(self, http: httpx.AsyncClient) -> None:
        place = self._random.randrange(len(self._valid))
        path, body = self._valid[place]
        if self._random.random() < 0.5:
            try:
                seconds = self._random.uniform(0.001, 0.5)
                answer = await asyncio.wait_for(http.post(path, json=body), seconds)
            except (TimeoutError, httpx.ReadTimeout):
                self.report.left += 1
            else:
                await self._note(answer.status_code)
                self._judge(read_whole(answer.status_code, answer.text), place)
            return
        async with http.stream("POST", path, json={**body, **STREAMED}) as stream:
            await self._note(stream.status_code)
            left, seen = self._random.randint(0, 3), b""
            has_left = False
            async for data in stream.aiter_bytes():
                seen += data
                left -= 1
                if left < 0:
                    self.report.left += 1
                    has_left = True
                    break
        if has_left and stream.status_code != 200:
            return
        text = seen.decode("utf-8", "ignore")
        self._judge(read_stream(stream.status_code, text, left=has_left), place)

    async def _polite(self, http: httpx.AsyncClient, place: int, how: str = "") -> None:
        path, body = self._valid[place]
        is_streamed = self._random.random() < 0.5
        answer = await http.post(path, json={**body, **STREAMED} if is_streamed else body)
        await self._note(answer.status_code)
        read = read_stream if is_streamed else read_whole
        self._judge(read(answer.status_code, answer.text), place, how)

    async def _watch(self, http: httpx.AsyncClient, until: float) -> None:
        """Memory, and `/health` by a process of its own: this one has clients to run."""
        watcher = await Watcher.start("health", self.url, until - time.monotonic())
        while time.monotonic() < until:
            memory = (await self._gauges(http)).get("process_resident_memory_bytes")
            if memory:
                self.report.memory_mb.append(memory / 2**20)
            await asyncio.sleep(0.25)
        seen = await watcher.seen()
        self.report.health_ms = seen.get("ms", [])
        self.report.faults += seen["faults"]

    async def _gauges(self, http: httpx.AsyncClient) -> dict[str, float]:
        answer = await http.get("/metrics", headers=self._metrics_headers)
        if answer.status_code != 200:
            fault = f"/metrics answers with {answer.status_code}: give --metrics-key"
            if fault not in self.report.faults:
                self.report.faults.append(fault)
        return gauges(answer.text)

    async def _look_at_the_end(self, http: httpx.AsyncClient) -> None:
        """Nothing may run, wait or be held any more; what was cancelled last gets a moment."""
        for _ in range(1 + int(self._patience / 0.25)):
            values = await self._gauges(http)
            missing = [name for name in HELD if name not in values]
            self.report.left_over = {name: values[name] for name in HELD if values.get(name)}
            if missing:
                self.report.faults.append(f"/metrics does not say {', '.join(missing)}")
                return
            if not self.report.left_over:
                return
            await asyncio.sleep(0.25)
        self.report.faults += [f"{name} was {v:g}" for name, v in self.report.left_over.items()]


def main() -> int:
    """Run it; the exit status."""
    given = parsed_arguments()
    if given.attack:
        return under_attack(given)
    with running_server(given, given.serve) as (url, _):
        soak = Soak(
            url,
            clients=given.clients,
            seconds=given.seconds,
            max_tokens=given.max_tokens,
            metrics_key=given.metrics_key,
            plant=given.plant,
        )
        report = asyncio.run(soak.run())
    failures = report.failures(health_limit_ms=given.health_ms or 100, memory_limit_mb=32)
    print_card(report, failures)
    return 1 if failures else 0


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a server that runs; by default one is started")
    parser.add_argument("--pid", type=int, help="the process of --url, whose memory is read")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=40)
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--metrics-key", help="the key of a server's /metrics that needs one")
    parser.add_argument("--plant", choices=Planting.KINDS, help="spoil replies: for its tests")
    parser.add_argument(
        "--attack", nargs="+", choices=[*ATTACKS, "all"], help="besiege it, instead of the storm"
    )
    parser.add_argument(
        "--health-ms", type=float, help="longest /health; 100 in the storm, 200 under attack"
    )
    parser.add_argument("--neighbour-times", type=float, default=SiegeLimits.neighbour_times)
    parser.add_argument("--memory-percent", type=float, default=SiegeLimits.memory_percent)
    parser.add_argument("--quiet-seconds", type=float, default=10, help="before an attack")
    parser.add_argument("--patience", type=float, default=30, help="seconds to recover from one")
    parser.add_argument(
        "--python-path",
        type=Path,
        metavar="DIR",
        help="the package of another tree, such as an older one, is served: DIR holds copyahead/",
    )
    parser.add_argument("serve", nargs="*", help="arguments of `copyahead serve`, after `--`")
    return parser.parse_args()


@contextmanager
def running_server(
    given: argparse.Namespace, arguments: Sequence[str], num_files: int | None = None
) -> Iterator[tuple[str, int | None]]:
    """The server that was given, or one that is started: its address, and its process."""
    if given.url is not None:
        wait_until_up(given.url, None)
        yield given.url, given.pid
        return
    with served(given.port, arguments, num_files=num_files, python_path=given.python_path) as (
        url,
        pid,
    ):
        yield url, pid


def under_attack(given: argparse.Namespace) -> int:
    """One attack after the other, each on a server of its own; the exit status."""
    health_ms = given.health_ms or SiegeLimits.health_ms
    limits = SiegeLimits(
        health_ms=health_ms,
        neighbour_times=given.neighbour_times,
        memory_percent=given.memory_percent,
    )
    sieges = []
    print(HEAD, flush=True)
    for name in ATTACKS if "all" in given.attack else given.attack:
        attack = ATTACKS[name]()
        arguments = [*attack.serve, *given.serve]
        with running_server(given, arguments, attack.num_files) as (url, pid):
            key = {"authorization": f"Bearer {given.metrics_key}"} if given.metrics_key else {}
            metrics = httpx.AsyncClient(base_url=url, timeout=60, headers=key)
            besieger = Besieger(
                url,
                attack,
                seconds=given.seconds,
                quiet_seconds=given.quiet_seconds,
                patience=given.patience,
                pid=pid,
                metrics=metrics,
                needs_gauges=given.python_path is None,
            )
            sieges.append(asyncio.run(besieger.run()))
        print(sieges[-1].row(limits), flush=True)
    failures = [f"{siege.attack}: {each}" for siege in sieges for each in siege.failures(limits)]
    print("\n".join(failures) or "every check passed")
    print(json.dumps({"attacks": [siege.document(limits) for siege in sieges]}))
    return 1 if failures else 0


def print_card(report: Report, failures: list[str]) -> None:
    """For people, and one JSON document last."""
    health = sorted(report.health_ms) or [0.0]
    print(f"completed {report.completed}, left {report.left}, {dict(report.statuses)}")
    print(f"/health: median {health[len(health) // 2]:.1f} ms, longest {health[-1]:.1f} ms")
    print(f"memory: {report.memory_growth_mb:+.1f} MB from the middle third to the last")
    print("\n".join(failures) or "every check passed")
    document = {
        "completed": report.completed,
        "left": report.left,
        "statuses": {str(status): count for status, count in report.statuses.items()},
        "wrong_answers": len(report.wrong_answers),
        "health_ms_max": round(health[-1], 2),
        "memory_growth_mb": round(report.memory_growth_mb, 2),
        "failures": failures,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    sys.exit(main())
