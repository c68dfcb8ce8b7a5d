"""Twice the input is at most about twice the work, on every route and for every list and text.

Work is counted as calls of functions, in Python and in C, in all threads of the server. Texts that
are copied over and over make no calls; what joins them is measured apart (`tests/chat`).
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.server.toys import Running, running, toy_backend

SIZE = 60
"""Items in the smaller of two inputs."""


class Calls:
    """Counts calls in every thread that began while it was installed."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def note(self, _frame: object, event: str, _argument: object) -> None:
        if event in ("call", "c_call"):
            next(self._count)

    @property
    def total(self) -> int:
        return next(self._count)


@contextmanager
def counted() -> Iterator[tuple[Running, Calls]]:
    """A server, and the calls that its threads make. It knows no tenant and keeps no prefix."""
    calls = Calls()
    before = sys.getprofile()
    threading.setprofile(calls.note)
    try:
        with running(toy_backend(context_size=20_000, num_slots=1)) as server:
            yield server, calls
    finally:
        threading.setprofile(before)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def tool(n: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"t{n}", "parameters": {"type": "object"}}}


def call(n: int) -> dict[str, Any]:
    return {"id": str(n), "type": "function", "function": {"name": "t", "arguments": '{"a": 1}'}}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [user("x")], "max_tokens": 2, **fields}


Make = Callable[[int], dict[str, Any]]
CASES: dict[str, tuple[str, Make]] = {
    "systems": ("/v1/chat/completions",
                lambda n: chat(messages=[{"role": "system", "content": "a"}] * n + [user("x")])),
    "messages": ("/v1/chat/completions", lambda n: chat(messages=[user("a")] * n)),
    "parts": ("/v1/chat/completions",
              lambda n: chat(messages=[user([{"type": "text", "text": "a"}] * n)])),
    "tools": ("/v1/chat/completions", lambda n: chat(tools=[tool(i) for i in range(n)])),
    "calls": ("/v1/chat/completions",
              lambda n: chat(messages=[user("x"),
                                       {"role": "assistant", "tool_calls": [*map(call, range(n))]},
                                       *({"role": "tool", "tool_call_id": str(i), "content": "r"}
                                         for i in range(n)), user("y")])),
    "spelled": ("/v1/chat/completions", lambda n: chat(messages=[user("<|end|>a" * n)])),
    "bias": ("/v1/chat/completions",
             lambda n: chat(logit_bias={str(i): 1 for i in range(n)})),
    "stop ids": ("/v1/chat/completions",
                 lambda n: chat(stop_token_ids=list(range(20, 20 + n)), min_tokens=2)),
    "stop text": ("/v1/chat/completions",
                  lambda n: chat(messages=[user("say:" + "x" * 8 * n)], max_tokens=8 * n,
                                 stop=["z" * 8 * n, "x" * 8 * n + "y"])),
    "answer": ("/v1/chat/completions",
               lambda n: chat(messages=[user("say:" + "x" * n)], max_tokens=n)),
    "prompt text": ("/v1/completions", lambda n: {"prompt": "x" * n, "max_tokens": 2}),
    "prompt ids": ("/v1/completions",
                   lambda n: {"prompt": [20] * n, "max_tokens": 2, "echo": True}),
    "prompts": ("/v1/completions", lambda n: {"prompt": ["x"] * n, "max_tokens": 1}),
    "prediction": ("/v1/completions",
                   lambda n: {"prompt": ["x"] * 20, "max_tokens": 1,
                              "prediction": {"content": "x" * n}}),
    "items": ("/v1/responses", lambda n: {"input": [user("a")] * n, "max_output_tokens": 2}),
    "call items": ("/v1/responses",
                   lambda n: {"input": [user("x"), *(
                       {"type": "function_call", "call_id": str(i), "name": "t",
                        "arguments": "{}"} for i in range(n))], "max_output_tokens": 2}),
    "blocks": ("/v1/messages",
               lambda n: chat(messages=[user([{"type": "text", "text": "a"}] * n)])),
    "results": ("/v1/messages",
                lambda n: chat(messages=[user([
                    {"type": "tool_result", "tool_use_id": str(i), "content": "r"}
                    for i in range(n)])])),
    "stops": ("/v1/messages",
              lambda n: chat(stop_sequences=[f"stop{i}" for i in range(n // 4)])),
    "counted": ("/v1/messages/count_tokens", lambda n: chat(messages=[user("a")] * n)),
    "tokenize": ("/tokenize", lambda n: {"content": "x" * n, "with_pieces": True}),
    "detokenize": ("/detokenize", lambda n: {"tokens": [20] * n}),
    "wrong items": ("/v1/completions", lambda n: {"prompt": [None] * n}),
    "wrong lists": ("/v1/completions", lambda n: {"prompt": [[None]] * n}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_twice_the_input_is_at_most_twice_the_work(name: str) -> None:
    path, make = CASES[name]
    with counted() as (server, calls):
        # Imports and caches of a first request are none of its work.
        send(server, path, make(SIZE // 2))
        small, large = (work(server, calls, path, make(SIZE * times)) for times in (1, 2))
        assert large <= 2.3 * small, f"{small} calls became {large}"


def work(server: Running, calls: Calls, path: str, body: dict[str, Any]) -> int:
    assert server.is_idle()
    before = calls.total
    send(server, path, body)
    assert server.is_idle()
    return calls.total - before


def send(server: Running, path: str, body: dict[str, Any]) -> None:
    answer = httpx.post(server.url + path, json=body, timeout=60)
    assert answer.status_code in (200, 400), answer.text
    assert (answer.status_code == 400) == ("null" in answer.request.content.decode())
