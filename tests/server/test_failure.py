"""An engine that cannot go on: every stream is told, `/health` says so, and the server ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import httpx
import pytest

from copyahead import cli
from copyahead.config import LookupOptions
from copyahead.contracts import Logits, Part
from copyahead.engine.async_engine import AsyncEngine
from copyahead.errors import EngineFailed
from copyahead.loading import make_engine
from copyahead.server.app import make_app
from copyahead.server.run import address, bind, serve
from copyahead.server.service import ServerOptions, Service
from tests.server.http.test_streaming import say
from tests.server.toys import TOKENIZER, ObedientLM, SlowBackend, toy_template


class Broken(SlowBackend):
    """Has no memory for a pass, and none to clean up after it either."""

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        self.num_passes += 1
        raise MemoryError("no room for a pass")

    def truncate(self, slot: int, length: int) -> None:
        if self.num_passes:
            raise MemoryError("no room for a cut")


def broken_service() -> Service:
    backend = Broken(ObedientLM(), tokenizer=TOKENIZER, context_size=512)
    engine = AsyncEngine(make_engine(backend, lookup=LookupOptions(lookup=False)))
    return Service(engine, ServerOptions(), toy_template())


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_whose_engine_has_failed_says_so_and_ends(stream: bool) -> None:
    service, bound = broken_service(), bind("127.0.0.1", 0)
    ready, ends = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            serve(service, bound, ready.set)
        except EngineFailed as failed:
            ends.append(failed)

    server = threading.Thread(target=run)
    server.start()
    assert ready.wait(timeout=30)
    url = f"{address(bound)}/v1/chat/completions"
    answer = httpx.post(url, json=say("x", stream=stream), timeout=30)
    assert "engine_failed" in answer.text
    server.join(timeout=30)
    assert not server.is_alive()
    assert "MemoryError('no room for a pass')" in str(ends[0])


async def test_health_tells_a_failed_engine_from_one_that_was_stopped() -> None:
    service = broken_service()
    transport = httpx.ASGITransport(make_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
        for _ in range(2):
            answer = await client.post("/v1/chat/completions", json=say("x"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_failed")
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "failed"})
    service.close()


def test_the_command_then_ends_with_status_1_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise EngineFailed("the engine has failed")

    monkeypatch.setattr(cli, "make_app", lambda summaries: fail)
    assert cli.run(["serve"]) == 1
    assert capsys.readouterr().err == "copyahead: the engine has failed\n"
