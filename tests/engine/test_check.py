"""`Engine.check`: a wrong book of any part of a running engine is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from copyahead.config import SharedOptions
from copyahead.drafters.factory import drafter_factory
from copyahead.engine import Engine, Request
from copyahead.testing import FakeBackend, ToyLM

PROMPT = [1, 2, 3] * 8


def running() -> Engine:
    """Two requests that write, beside what a finished one has left."""
    backend = FakeBackend(ToyLM(seed=1), num_slots=3)
    make = drafter_factory(backend, SharedOptions(shared=True, shared_tokens=1024))
    engine = Engine(backend, make_drafter=make, policy="priced")
    engine.complete(Request(prompt=[5, *PROMPT], max_tokens=9, ignore_eos=True))
    for policy in ("priced", "window"):
        engine.submit(Request(prompt=PROMPT, policy=policy, ignore_eos=True), lambda _: None)
    for _ in range(6):
        engine.step()
        engine.check()
    return engine


def lost_token(engine: Any) -> None:
    engine.backend.truncate(0, engine.backend.length(0) - 1)


def lost_cell(engine: Any) -> None:
    engine.backend._cells[0].pop()


def shared_cell(engine: Any) -> None:
    engine.backend._cells[0][-1] = engine.backend._cells[0][0]


def open_session(engine: Any) -> None:
    engine._drafting._sessions["priced"] += 1


def lost_session(engine: Any) -> None:
    engine._scheduler.running[0].session = None


def drafters_row(engine: Any) -> None:
    engine._drafting.drafter("window")._pool.lengths[0] = 10**6


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lost_token, "slot 0 is said to hold"),
        (lost_cell, "slot 0 holds .* tokens in .* cells"),
        (shared_cell, "slot 0 holds .* tokens in .* cells"),
        (open_session, "sessions are counted as .*'priced': 2"),
        (lost_session, "and held as {'window': 1}"),
        (drafters_row, "row 0 holds 1000000"),
    ],
)
def test_a_wrong_book_is_found(plant: Callable[[Engine], None], said: str) -> None:
    engine = running()
    plant(engine)
    with pytest.raises(AssertionError, match=said):
        engine.check()


def test_a_closed_engine_agrees_with_itself() -> None:
    engine = running()
    engine.close()
    engine.check()
