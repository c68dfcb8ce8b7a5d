"""When each request is sent, and to which server.

Requests of one session follow one another, as a conversation's do. Two servers take turns, block by
block, and the one that begins changes each time: what the machine does besides falls on both.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import httpx
import msgspec

from copyahead.evaluate.bench.asking import Answer, Ask, Options, Target, ask


class Plan(msgspec.Struct, frozen=True):
    """How the requests are sent."""

    options: Options = Options()
    concurrency: int = 1
    """Sessions at once."""
    recorded_times: bool = False
    """Send each request `Ask.at` seconds after the start, whatever is still running."""
    block: int = 1
    """Requests to one server before it is the other's turn."""
    warm_up: int = 0
    """Requests at the beginning that each server gets and that do not count."""


class Result(msgspec.Struct):
    """The answers of one server, in the order of their end."""

    target: Target
    answers: list[Answer] = []
    warm_up: list[Answer] = []
    seconds: float = 0.0
    """While requests that count were under way."""


async def run(
    results: Sequence[Result],
    asks: Sequence[Ask],
    plan: Plan,
    on_answer: Callable[[], None] = lambda: None,
) -> None:
    """Send `asks` to the server of each of `results`, and put their answers there.

    Cancelled, it leaves the answers that were whole by then.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits) as client:
        runner = _Runner(client, plan, on_answer)
        for result in results:
            await runner.together(result.target, asks[: plan.warm_up], result.warm_up)
        for turn, block in enumerate(_blocks(asks[plan.warm_up :], plan)):
            for result in results if turn % 2 == 0 else reversed(results):
                began = time.perf_counter()
                try:
                    send = runner.timed if plan.recorded_times else runner.together
                    await send(result.target, block, result.answers)
                finally:
                    result.seconds += time.perf_counter() - began


def _blocks(asks: Sequence[Ask], plan: Plan) -> Iterator[Sequence[Ask]]:
    if plan.recorded_times:
        if asks:
            yield asks
        return
    for start in range(0, len(asks), plan.block):
        yield asks[start : start + plan.block]


class _Runner:
    def __init__(
        self, client: httpx.AsyncClient, plan: Plan, on_answer: Callable[[], None]
    ) -> None:
        self._client, self._plan, self._on_answer = client, plan, on_answer

    async def together(self, target: Target, asks: Sequence[Ask], into: list[Answer]) -> None:
        """So many sessions at once as the plan says, each in its order."""
        sessions: dict[str, list[Ask]] = {}
        for each in asks:
            sessions.setdefault(each.session, []).append(each)
        waiting = deque(sessions.values())

        async def work() -> None:
            while waiting:
                for each in waiting.popleft():
                    await self._send(target, each, into)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._plan.concurrency, len(waiting))):
                group.create_task(work())

    async def timed(self, target: Target, asks: Sequence[Ask], into: list[Answer]) -> None:
        """Each at its time, of which the first is now."""
        began, first = time.perf_counter(), asks[0].at

        async def send(each: Ask) -> None:
            await asyncio.sleep(each.at - first - (time.perf_counter() - began))
            await self._send(target, each, into)

        async with asyncio.TaskGroup() as group:
            for each in asks:
                group.create_task(send(each))

    async def _send(self, target: Target, each: Ask, into: list[Answer]) -> None:
        into.append(await ask(self._client, target, each, self._plan.options))
        self._on_answer()
