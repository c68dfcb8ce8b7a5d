"""Plain messages: runs of them are joined at once, and to the same text as one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from copyahead.chat import messages as module
from copyahead.chat.messages import Messages, checked, folded_systems, relaxed, results_as_text


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


RUN = [system("a"), system(""), system("b"), user("c"), system("d"), user(""), system("e")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (checked, [system("a\n\nb"), user("c"), system("d"), user(""), system("e")]),
        (folded_systems, [user("a\n\nb\n\nc"), user("d"), user("e")]),
        (relaxed, [system("a"), user("b\n\nc\n\nd\n\ne")]),
    ],
)
def test_runs_are_joined(change: Callable[[Messages], Messages], expected: Messages) -> None:
    assert change(RUN) == expected


def test_results_in_a_row_are_one_message() -> None:
    results = [{"role": "tool", "name": n, "content": n.upper()} for n in ("r", "s")]
    shown = results_as_text([user("c"), *results, user("d"), results[0]])
    both = "Result of r:\nR\n\nResult of s:\nS"
    assert shown == [user("c"), user(both), user("d"), user("Result of r:\nR")]


@pytest.mark.parametrize("change", [checked, folded_systems, relaxed])
def test_no_text_is_copied_more_often_for_more_messages(
    change: Callable[[Messages], Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    join = module._paragraphs

    def counted(*texts: str) -> str:
        copied.append(len(join(*texts)))
        return join(*texts)

    monkeypatch.setattr(module, "_paragraphs", counted)
    texts = [system("x" * 100) if change is not relaxed else user("x" * 100) for _ in range(200)]
    change([*texts, user("y")])
    assert sum(copied) < 3 * 200 * 102
