"""The soak of benchmarks/soak_server.py in short, on the toy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from copyahead.config import Limits
from copyahead.contracts import Part
from copyahead.server.service import ServerOptions
from tests.server.toys import running, toy_backend

PLANTED = {
    "error-frame": "generation_failed",
    "status": "status 500",
    "text": "not as when alone",
    "logprob": "not as when alone",
    "usage": "not as when alone",
    "cut": "ended early",
    "twice": "does not belong there",
    "refusal": "a broken request got 200",
    "later": "again, alone",
    "slots": "slots_held",
    "cells": "cells_held",
    "history_rows": "history_rows_held",
    "memory": "memory grew",
}
"""What is planted in replies, and what the soak says of it."""


def test_32_clients_of_which_a_third_leaves(soak_server: Any) -> None:
    options = ServerOptions(limits=Limits(max_queue=16))
    with running(toy_backend(num_slots=6), options, policy="fixed") as server:
        soak = soak_server.Soak(server.url, clients=32, seconds=4, max_tokens=60)
        report = asyncio.run(soak.run())
        assert report.failures(health_limit_ms=60_000, memory_limit_mb=1e9) == []
        assert report.memory_mb
        assert report.left > 0
        assert {200, 400, 404, 429} >= set(report.statuses) >= {200, 400}
        assert server.is_idle()


def test_the_soak_notices_what_is_wrong(soak_server: Any) -> None:
    report = soak_server.Report()
    report.statuses[500] += 1
    report.health_ms.append(101)
    report.wrong_answers.append("x")
    report.left_over["num_requests_running"] = 1
    report.memory_mb += [10, 20, 30, 40, 90, 90]
    words = " ".join(report.failures(health_limit_ms=100, memory_limit_mb=10))
    for part in ("status 500", "/health took 101", "when alone", "running is 1", "memory grew",
                 "no request"):  # fmt: skip
        assert part in words


@pytest.mark.parametrize("plant", PLANTED)
def test_the_soak_fails_on_what_is_planted(soak_server: Any, plant: str) -> None:
    with running(toy_backend(num_slots=6), policy="fixed") as server:
        soak = soak_server.Soak(
            server.url,
            clients=12,
            seconds=1.5,
            max_tokens=30,
            requests=10,
            patience=0.5 if plant in ("slots", "cells", "history_rows") else 10.0,
            plant=plant,
        )
        report = asyncio.run(soak.run())
    words = " ".join(report.failures(health_limit_ms=60_000, memory_limit_mb=32))
    assert PLANTED[plant] in words


def test_every_plant_is_tried(soak_server: Any) -> None:
    assert set(PLANTED) == set(soak_server.Planting.KINDS)


def test_a_pass_that_fails_in_the_server_fails_the_soak(soak_server: Any) -> None:
    count = 0

    def fails(_number: int, parts: Sequence[Part]) -> bool:
        """Once several run together, four passes in a row of twelve: a pass is repeated once, and
        then each of its requests has one of its own."""
        nonlocal count
        count += count > 0 or len(parts) > 2
        return count % 12 in (1, 2, 3, 4)

    backend = toy_backend(num_slots=6, seconds=0.002, fail_on=fails)
    with running(backend, policy="fixed") as server:
        soak = soak_server.Soak(server.url, clients=12, seconds=2, max_tokens=30, requests=10)
        report = asyncio.run(soak.run())
    words = " ".join(report.failures(health_limit_ms=1e9, memory_limit_mb=1e9))
    assert "generation_failed" in words
