"""The soak of benchmarks/soak_server.py in short, on the toy."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from copyahead.config import Limits
from copyahead.server.service import ServerOptions
from tests.server.toys import running, toy_backend

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak_server.py"


@pytest.fixture(scope="module")
def soak_server() -> Any:
    spec = importlib.util.spec_from_file_location("soak_server", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak_server"] = module
    spec.loader.exec_module(module)
    return module


def test_32_clients_of_which_a_third_leaves(soak_server: Any) -> None:
    options = ServerOptions(limits=Limits(max_queue=16))
    with running(toy_backend(num_slots=6), options, policy="fixed") as server:
        soak = soak_server.Soak(server.url, clients=32, seconds=4, max_tokens=60)
        report = asyncio.run(soak.run())
        assert report.failures(health_limit_ms=60_000, memory_limit_mb=1e9) == []
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
