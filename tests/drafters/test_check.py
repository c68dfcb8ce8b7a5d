"""A drafter's books: that they agree in use, and that a wrong one is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from copyahead.contracts import Drafter
from copyahead.drafters import HybridDrafter, LookupDrafter
from copyahead.drafters.priced import PricedDrafter
from copyahead.history.pool import HistoryPool
from copyahead.history.store import SharedStore
from copyahead.kernels import features
from copyahead.policies import parse_policy
from copyahead.step_cost import StepCost
from copyahead.testing import ForcedDrafter, ScriptedChainDrafter
from copyahead.training.train import follow

VOCAB = 100
TEXT = list(range(30)) * 2


def pool() -> HistoryPool:
    return HistoryPool(3, 500, VOCAB, SharedStore(2, 1024, VOCAB))


def lookup() -> LookupDrafter:
    return LookupDrafter(pool(), parse_policy("hysteresis:min_match=4,min_match_running=4"))


def priced() -> PricedDrafter:
    return PricedDrafter(pool(), StepCost.linear(0.1))


def hybrid() -> HybridDrafter:
    return HybridDrafter(lookup(), ScriptedChainDrafter(lambda _: None), "agree")


DRAFTERS: list[Callable[[], Drafter]] = [lookup, priced, hybrid, lambda: ForcedDrafter({})]


@pytest.mark.parametrize("make", DRAFTERS)
def test_the_books_agree_between_any_two_calls(make: Callable[[], Drafter]) -> None:
    drafter = make()
    for turn, tenant in enumerate("abcab"):
        session = drafter.open(TEXT[turn:], slot=turn % 3, tenant=tenant, prediction=[90, 91, 92])
        drafter.check()
        follow(session, TEXT[:20])
        drafter.check()
        session.truncate(len(TEXT) - turn)
        drafter.check()
        session.close()
        drafter.check()
    drafter.forget()
    drafter.check()


def wrong_pool(drafter: Any) -> None:
    drafter._pool.lengths[2] = 501


def wrong_row(drafter: Any) -> None:
    drafter._open[1].row = 0


def wrong_copy(drafter: Any) -> None:
    drafter._open[1]._following = 200


def wrong_scope(drafter: Any) -> None:
    drafter.states[1, features.SCOPE] += 1


def wrong_tenant(drafter: Any) -> None:
    drafter._tenants.clear()


def wrong_place(drafter: Any) -> None:
    drafter._tenants["b"] = drafter._tenants["a"]


def wrong_statistics(drafter: Any) -> None:
    drafter._tenants["b"] = 7


def wrong_credit(drafter: Any) -> None:
    drafter.credits[1] = -16.5


@pytest.mark.parametrize(
    ("make", "plant", "said"),
    [
        (lookup, wrong_pool, "row 2 holds 501"),
        (lookup, wrong_row, "row 1 has the session of row 0"),
        (lookup, wrong_copy, "row 1 follows a copy at 200"),
        (priced, wrong_pool, "row 2 holds 501"),
        (priced, wrong_row, "row 1 has the session of row 0"),
        (priced, wrong_scope, "row 1 copies from another's scope"),
        (priced, wrong_tenant, "a tenant that was forgotten"),
        (priced, wrong_place, "two tenants"),
        (priced, wrong_statistics, "no place"),
        (priced, wrong_credit, "has lost 16.50 steps of 16"),
    ],
)
def test_a_wrong_book_is_found(
    make: Callable[[], Drafter], plant: Callable[[Drafter], None], said: str
) -> None:
    drafter = make()
    drafter.open(TEXT, slot=1, tenant="a")
    drafter.check()
    plant(drafter)
    with pytest.raises(AssertionError, match=said):
        drafter.check()


@pytest.mark.parametrize("side", ["copies", "other"])
def test_a_wrong_book_of_either_side_is_found(side: str) -> None:
    copies, other = lookup(), ScriptedChainDrafter(lambda _: None)
    drafter = HybridDrafter(copies, other, "agree")
    drafter.open(TEXT, slot=1)
    drafter.check()
    if side == "copies":
        wrong_pool(copies)
    else:
        other.open(TEXT, slot=1)
    with pytest.raises(AssertionError, match=r"row 2 holds 501|two sessions"):
        drafter.check()


def test_two_sessions_in_one_row_are_found() -> None:
    drafter = ForcedDrafter({})
    first = drafter.open(TEXT, slot=1)
    drafter.open(TEXT, slot=1)
    with pytest.raises(AssertionError, match="two sessions"):
        drafter.check()
    first.close()
    drafter.check()
