"""`GET /copyahead/status`: what a key may know of its own requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from copyahead.server.service import ServerOptions
from tests.server.toys import Running, running, toy_backend

SAID = "the and the and ab the and the and ab the and the and ab"
OF = {key: {"authorization": f"Bearer {key}"} for key in ("mine", "other")}
SUMS = ("tokens", "rounds", "drafted", "accepted", "by_source", "running", "waiting")


@pytest.fixture
def shared() -> Iterator[Running]:
    options = ServerOptions(api_keys=tuple(OF), policy="fixed")
    with running(toy_backend(num_slots=1), options, policy="fixed") as server:
        yield server


def status(server: Running, key: str) -> dict[str, Any]:
    answer = httpx.get(f"{server.url}/copyahead/status", headers=OF[key])
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


def ask(server: Running, key: str, text: str = SAID, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"say:{text}"}]
    body = {"messages": messages, "temperature": 0, **fields}
    answer = httpx.post(f"{server.api}/chat/completions", json=body, headers=OF[key], timeout=60)
    found: dict[str, Any] = answer.json()
    return found


def test_it_adds_up_what_answers_say_of_themselves(shared: Running) -> None:
    answers = [ask(shared, "mine"), ask(shared, "mine")]
    found = status(shared, "mine")
    assert found["tokens"] == sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert found["rounds"] == sum(answer["timings"]["rounds"] for answer in answers)
    assert found["accepted"] == sum(answer["timings"]["draft_n_accepted"] for answer in answers)
    for source, count in found["by_source"].items():
        each = [answer["timings"]["by_source"].get(source, {}) for answer in answers]
        assert count["accepted"] == sum(one.get("accepted", 0) for one in each)
    assert found["accepted"] == sum(c["accepted"] for c in found["by_source"].values()) > 0
    assert (found["running"], found["waiting"]) == (0, 0)
    assert (found["slots"], found["policy"], found["max_draft_tokens"]) == (1, "fixed", 64)
    assert {"priced", "fixed"} <= set(found["policies"])


def test_it_says_nothing_of_another_key(shared: Running) -> None:
    before = {name: status(shared, "other")[name] for name in SUMS}
    ask(shared, "mine")
    assert {name: status(shared, "other")[name] for name in SUMS} == before
    assert not any(before.values())


def test_running_and_waiting_requests_are_seen_while_they_are(shared: Running) -> None:
    shared.backend.seconds = 0.1  # type: ignore[attr-defined]
    plain = {"speculative": {"enabled": False}}
    asking = [
        threading.Thread(target=ask, args=(shared, "mine", SAID), kwargs=plain) for _ in range(2)
    ]
    for one in asking:
        one.start()
    seen: list[dict[str, Any]] = []
    until = time.monotonic() + 30
    while time.monotonic() < until:
        seen.append(status(shared, "mine"))
        assert not any(status(shared, "other")[name] for name in SUMS)
        if (seen[-1]["running"], seen[-1]["waiting"]) == (1, 1) and seen[-1]["tokens"] > 2:
            break
        time.sleep(0.02)
    else:
        pytest.fail(f"never seen: {seen[-1]}")
    shared.backend.seconds = 0.0  # type: ignore[attr-defined]
    for one in asking:
        one.join(timeout=60)
    assert shared.is_idle()
    last = status(shared, "mine")
    assert (last["running"], last["waiting"]) == (0, 0)
    sums = [one["tokens"] for one in [*seen, last]]
    assert sums == sorted(sums)
