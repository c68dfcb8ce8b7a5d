"""Threads give way to other programs, come back when these have gone, and change no bit."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.backends.llama_cpp.threads import (
    BUSY,
    CALM,
    CALM_LOOKS,
    LOOK_SECONDS,
    OtherPrograms,
    YieldingThreads,
    yielding_threads,
)
from copyahead.config import ModelOptions, usable_cpus
from copyahead.contracts import Logits, Part
from copyahead.loading import load


class Machine:
    """A clock, what others use, and the threads that were set."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.others = 0.0
        self.looks = 0
        self.set: list[int] = []
        self.threads = YieldingThreads(most, self.set.append, self._look, lambda: self.now)

    def _look(self) -> float:
        self.looks += 1
        return self.others

    def run(self, others: float, looks: int = 1) -> int:
        self.others = others
        for _ in range(looks):
            self.now += LOOK_SECONDS
            self.threads.before_pass()
        return self.threads.current


@pytest.mark.parametrize(
    ("most", "others", "left"),
    [
        (2, BUSY, 1),
        (2, BUSY - 0.01, 2),
        (2, 1.0, 1),
        (2, 2.0, 1),
        (2, 40.0, 1),
        (8, 1.0, 7),
        (8, 1.0 + CALM, 7),
        (8, 1.5, 6),
        (8, 2.9, 5),
        (8, 7.0, 1),
        (8, 8.0, 1),
    ],
)
def test_as_many_threads_as_others_leave_cpus(most: int, others: float, left: int) -> None:
    assert Machine(most).run(others) == left


def test_it_looks_no_more_often_than_a_look_tells_something() -> None:
    machine = Machine(4)
    for _ in range(100):
        machine.now += LOOK_SECONDS / 10
        machine.threads.before_pass()
    assert machine.looks == pytest.approx(10, abs=1)


def test_threads_come_back_after_a_while_of_calm_and_not_before() -> None:
    machine = Machine(4)
    assert machine.run(2.0) == 2
    # More others, fewer threads; fewer others are no calm yet.
    assert machine.run(3.0) == 1
    assert machine.run(1.0, looks=20) == 1
    assert machine.run(CALM, looks=20) == 1
    assert machine.run(0.0, looks=CALM_LOOKS - 1) == 1
    assert machine.run(CALM) == 1
    assert machine.run(0.0, looks=CALM_LOOKS - 1) == 1
    assert machine.run(0.0) == 4
    assert machine.set == [2, 1, 4]


def stat(path: Path, *busy: int) -> Path:
    lines = [f"cpu{n} {ticks} 0 0 900 7 0 0 0 0 0" for n, ticks in enumerate(busy)]
    path.write_text("\n".join([f"cpu  {sum(busy)} 0 0 0 0 0 0 0 0 0", *lines, "intr 5"]))
    return path


def test_only_the_cpus_of_the_process_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([10.0, 12.0])
    own = iter([1.0, 1.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    path = stat(tmp_path / "stat", 1000, 1000, 1000)
    others = OtherPrograms({0, 2}, path)
    # CPU 0 was busy for 1.5 of two seconds, of which half a second was this process; CPU 2 for 1.
    stat(path, 1150, 9000, 1100)
    assert others.since_last_look() == pytest.approx(1.0)


def test_where_the_system_does_not_tell_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert yielding_threads(1, lambda _: None) is None

    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(OtherPrograms, "_read", refuse)
    assert yielding_threads(2, lambda _: None) is None


def logits_of(path: Path, others: Sequence[float]) -> Logits:
    """Of the last 100 tokens of a text, in passes on threads that change with `others`."""
    backend = LlamaBackend(path, LlamaSettings(threads=2, ctx=1024, parallel=1))
    seen, clock = itertools.cycle(others), itertools.count()
    backend._yielding = YieldingThreads(
        2, backend.set_threads, lambda: next(seen), lambda: float(next(clock))
    )
    tokens = [3 + place % 20 for place in range(700)]
    for at in range(0, 600, 100):
        backend.forward([Part(0, at, tokens[at : at + 100], 0)])
    rows = [
        backend.forward([Part(0, at, tokens[at : at + 1], 1)])[0].copy() for at in range(600, 700)
    ]
    backend.close()
    return np.concatenate(rows)


@pytest.mark.parametrize("name", ["plain", "sliding_window"])
def test_changing_threads_changes_no_bit(name: str, tiny_models: dict[str, Path]) -> None:
    steady = logits_of(tiny_models[name], [0.0])
    changing = logits_of(tiny_models[name], [1.0, *[0.0] * CALM_LOOKS, 1.0])
    assert np.array_equal(steady, changing)


def test_a_number_of_threads_that_is_asked_for_is_kept(tiny_models: dict[str, Path]) -> None:
    for threads, yields in ((None, usable_cpus() > 1), (2, False)):
        options = ModelOptions(threads=threads, ctx=300)
        with load(tiny_models["plain"], model=options) as engine:
            assert isinstance(engine.backend, LlamaBackend)
            assert (engine.backend._yielding is not None) == yields


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or usable_cpus() < 2, reason="needs two CPUs on Linux")
def test_a_real_neighbour_gets_its_cpu(tiny_models: dict[str, Path]) -> None:
    others = OtherPrograms()
    time.sleep(1.0)
    if others.since_last_look() >= CALM:
        pytest.skip("something else uses the machine")
    backend = LlamaBackend(
        tiny_models["plain"], LlamaSettings(threads=2, ctx=300, parallel=1), yields=True
    )
    assert backend._yielding is not None

    def runs_until(threads: int) -> bool:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert backend._yielding is not None
            if backend._yielding.current == threads:
                return True
            backend.truncate(0, 0)
            backend.forward([Part(0, 0, [4, 5, 6], 1)])
        return False

    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert runs_until(1)
    finally:
        process.kill()
        process.wait()
    assert runs_until(2)
    backend.close()
