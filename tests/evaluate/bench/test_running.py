"""When requests are sent, and to which of two servers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from copyahead.evaluate.bench.asking import Ask, Options, Target
from copyahead.evaluate.bench.running import Plan, Result, run
from tests.evaluate.bench.servers import Handler, piece, scripted, stream, usage

WHOLE = stream(piece("a"), piece("b", "stop"), usage(3, 9), "[DONE]")


def asks(*sessions: str, at: float = 0.0) -> list[Ask]:
    return [
        Ask(number=n, session=session, max_tokens=5, prompt=f"{n}", at=n * at)
        for n, session in enumerate(sessions)
    ]


def numbers(bodies: list[dict[str, Any]]) -> list[int]:
    return [int(body["prompt"]) for body in bodies]


class Counting:
    """Answers slowly, and knows how many it answers at once."""

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds = seconds
        self.now = self.most = 0
        self.order: list[tuple[str, int]] = []
        self.times: list[float] = []
        self._lock = threading.Lock()

    def __call__(self, handler: Handler, body: dict[str, Any]) -> None:
        number = int(body["prompt"])
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.order.append(("begin", number))
            self.times.append(time.perf_counter())
        time.sleep(self.seconds)
        with self._lock:
            self.now -= 1
            self.order.append(("end", number))
        WHOLE(handler, body)


def run_one(reply: Any, requests: list[Ask], plan: Plan) -> Result:
    with scripted(reply) as server:
        result = Result(Target(f"{server.url}/v1", "m"))
        asyncio.run(run([result], requests, plan))
    return result


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_at_once_as_asked_for(concurrency: int) -> None:
    counting = Counting()
    plan = Plan(concurrency=concurrency, block=100)
    result = run_one(counting, asks(*"abcdefgh"), plan)
    assert counting.most == concurrency
    assert sorted(answer.number for answer in result.answers) == list(range(8))
    assert all(answer.error is None for answer in result.answers)


def test_requests_of_a_session_follow_one_another() -> None:
    counting = Counting()
    run_one(counting, asks(*"aabbaa"), Plan(concurrency=4, block=100))
    assert counting.most == 2
    for session in ([0, 1, 4, 5], [2, 3]):
        events = [event for event in counting.order if event[1] in session]
        assert events == [(what, n) for n in session for what in ("begin", "end")]


def test_warm_up_is_sent_first_and_does_not_count() -> None:
    counting = Counting(0.0)
    result = run_one(counting, asks(*"abcd"), Plan(warm_up=2, block=100))
    assert [number for what, number in counting.order if what == "begin"] == [0, 1, 2, 3]
    assert [answer.number for answer in result.warm_up] == [0, 1]
    assert [answer.number for answer in result.answers] == [2, 3]


def test_recorded_times_are_kept_whatever_is_still_running() -> None:
    counting = Counting(1.0)
    began = time.perf_counter()
    result = run_one(counting, asks(*"aaaa", at=0.1), Plan(recorded_times=True))
    assert counting.most == 4
    assert all(at - began >= 0.1 * number for number, at in enumerate(counting.times))
    assert len(result.answers) == 4


@pytest.mark.parametrize(
    ("block", "order"),
    [(1, "abbaabba"), (2, "aabbbbaa"), (100, "aaaabbbb")],
)
def test_two_servers_take_turns(block: int, order: str) -> None:
    seen: list[str] = []

    def noting(name: str) -> Any:
        def reply(handler: Handler, body: dict[str, Any]) -> None:
            seen.append(name)
            WHOLE(handler, body)

        return reply

    with scripted(noting("a")) as one, scripted(noting("b")) as other:
        results = [Result(Target(f"{server.url}/v1", "m")) for server in (one, other)]
        asyncio.run(run(results, asks(*"wxyz"), Plan(block=block)))
        assert numbers(one.bodies) == numbers(other.bodies) == [0, 1, 2, 3]
    assert "".join(seen) == order
    assert all(result.seconds > 0 for result in results)


def test_a_request_that_fails_does_not_end_the_run() -> None:
    over = threading.Event()

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        if body["prompt"] == "1":
            handler.whole(500, {"error": {"message": "oops"}})
        elif body["prompt"] == "2":
            over.wait(20)
        else:
            WHOLE(handler, body)

    plan = Plan(options=Options(timeout=1.5), block=100)
    with scripted(reply) as server:
        result = Result(Target(f"{server.url}/v1", "m"))
        asyncio.run(run([result], asks(*"abcde"), plan))
        over.set()
    assert [a.error for a in result.answers] == [None, "HTTP 500", "timeout", None, None]


def test_cancelled_it_leaves_what_was_whole() -> None:
    over = threading.Event()

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        if body["prompt"] == "2":
            over.wait(20)
        WHOLE(handler, body)

    async def cancelled(result: Result) -> None:
        task = asyncio.create_task(run([result], asks(*"abcd"), Plan(block=100)))
        while len(result.answers) < 2:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        with scripted(reply) as server:
            result = Result(Target(f"{server.url}/v1", "m"))
            asyncio.run(cancelled(result))
            over.set()
    finally:
        over.set()
    assert [answer.number for answer in result.answers] == [0, 1]
    assert result.seconds > 0
