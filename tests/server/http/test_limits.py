"""Keys, limits, addresses, and what the server says of itself."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest

from copyahead.config import Limits
from copyahead.contracts import Logits, Part
from copyahead.errors import ConfigError
from copyahead.server.errors import ApiError
from copyahead.server.http.auth import ApiKeys, check_binding
from copyahead.server.http.limits import Queue
from copyahead.server.run import address, bind
from copyahead.server.service import ServerOptions
from copyahead.traces.record import Record, TraceWriter
from copyahead.types import Exactness
from tests.server.http.test_streaming import Gated, OpenStream, babble, options, say, wait_for
from tests.server.toys import END, TOKENIZER, ObedientLM, Running, SlowBackend, running, toy_backend

CHAT = "/v1/chat/completions"


def post(server: Running, body: Any, **more: Any) -> httpx.Response:
    return httpx.post(server.url + CHAT, json=body, **more)


def test_without_a_valid_key_nothing_is_served() -> None:
    with running(options=ServerOptions(api_keys=("k1", "k2"))) as server:
        for headers in ({}, {"Authorization": "Bearer k3"}, {"x-api-key": "K1"},
                        {"Authorization": "k1"}, {"Authorization": "Bearer k1 k2"}):  # fmt: skip
            answer = post(server, say("x"), headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.json()["error"]["type"] == "authentication_error"
        for headers in ({"Authorization": "Bearer k1"}, {"authorization": "bearer k2"},
                        {"X-Api-Key": "k2"}):  # fmt: skip
            assert post(server, say("x"), headers=headers).status_code == 200
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.head(f"{server.url}/health").status_code == 200
        with (
            openai.OpenAI(base_url=server.api, api_key="no", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


def test_no_tenant_reads_the_counters_of_all() -> None:
    def status(server: Running, key: str, path: str = "/metrics") -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(server.url + path, headers=headers).status_code

    with running() as server:
        assert status(server, "any") == 200
    with running(options=ServerOptions(api_keys=("k1",))) as server:
        assert (status(server, "k1"), status(server, "no")) == (403, 401)
    with running(options=ServerOptions(api_keys=("k1",), metrics_key="m")) as server:
        assert (status(server, "m"), status(server, "k1")) == (200, 401)
        assert status(server, "m", "/v1/models") == 401
        assert httpx.get(f"{server.url}/metrics", headers={"x-api-key": "m"}).status_code == 200
    with running(options=ServerOptions(metrics_key="m")) as server:
        assert (status(server, "m"), status(server, "x")) == (200, 401)
        assert status(server, "x", "/v1/models") == 200


def test_each_key_is_a_tenant_of_its_own() -> None:
    keys = ApiKeys(["k1", "k2"])
    one, two = keys.tenant({"x-api-key": "k1"}), keys.tenant({"authorization": "Bearer k2"})
    assert one != two
    assert "k1" not in one
    assert ApiKeys().tenant({}) == ""
    # Some clients send both headers, one of them with a key of another server.
    assert keys.tenant({"authorization": "Bearer other", "x-api-key": "k1"}) == one
    # Another in every process: from a log nobody can try out what the key was.
    assert one != ApiKeys(["k1", "k2"]).tenant({"x-api-key": "k1"})
    with running(options=ServerOptions(api_keys=("k1", "k2"))) as server:
        body = {**say("one two three four five six"), "temperature": 0}

        def cached(key: str) -> int:
            usage = post(server, body, headers={"x-api-key": key}).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert cached("k1") == 0
        assert cached("k2") == 0
        assert cached("k1") > 0


def test_the_key_is_checked_before_the_body_is_read() -> None:
    with running(options=ServerOptions(api_keys=("k1",))) as server:
        answer = httpx.post(server.url + CHAT, content=b"not json at all")
        assert answer.status_code == 401


@pytest.mark.parametrize("key", ["", " k", "k\n", "é"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key"):
        ApiKeys([key])


def test_listening_to_the_network_needs_a_key_or_a_flag() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9", "[::1]"):
        check_binding(host, ApiKeys(), open_to_network=False)
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org"):
        with pytest.raises(ConfigError, match="open-to-network"):
            check_binding(host, ApiKeys(), open_to_network=False)
        check_binding(host, ApiKeys(["k"]), open_to_network=False)
        check_binding(host, ApiKeys(), open_to_network=True)


def test_a_server_without_keys_is_reached_by_this_machines_names_only() -> None:
    def statuses(server: Running, *hosts: str) -> list[int]:
        url = f"{server.api}/models"
        return [httpx.get(url, headers={"host": host}).status_code for host in hosts]

    mine = ("localhost", "LocalHost:8000", "127.0.0.1:1", "[::1]", "[::1]:8000")
    others = ("evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "")
    with running() as server:
        assert statuses(server, *mine) == [200] * 5
        assert statuses(server, *others) == [403] * 5
        error = post(server, say("x"), headers={"host": "evil.example"}).json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "host_not_allowed")
    for origin in ("https://evil.example", "*"):
        with running(options=ServerOptions(cors_origins=(origin,))) as server:
            assert statuses(server, *mine) == [200] * 5
            assert statuses(server, *others) == [403] * 5
    with running(options=ServerOptions(open_to_network=True)) as server:
        assert statuses(server, *others[:4]) == [200] * 4
    for is_open in (False, True):
        names = ("llm.example", "[::2]")
        named = ServerOptions(allowed_hosts=names, open_to_network=is_open)
        with running(options=named) as server:
            assert statuses(server, *mine, "llm.example", "LLM.example:8", "[::2]:8") == [200] * 8
            assert statuses(server, *others) == [403] * 5
    with running(options=ServerOptions(api_keys=("k",))) as server:
        assert statuses(server, "evil.example") == [401]


def test_a_server_that_is_not_ready_refuses_connections_and_keeps_its_port() -> None:
    bound = bind("127.0.0.1", 0)
    try:
        port = bound.getsockname()[1]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address(bound)}/health")
        with pytest.raises(ConfigError, match=f"port {port} .*: give another"):
            bind("127.0.0.1", port)
    finally:
        bound.close()


def test_an_address_that_is_taken_is_refused_in_one_sentence() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
        bind("127.0.0.1", port)
    first.close()
    with pytest.raises(ConfigError, match="cannot listen"):
        bind("no.such.host.invalid", 0)


def test_a_body_that_is_too_large_is_refused_by_length_and_by_count() -> None:
    with running(options=options(max_body_mb=0.001)) as server:
        body = json.dumps(say("x" * 2000)).encode()
        headers = {"content-type": "application/json"}
        for content in (body, iter([body[:500], body[500:]])):
            answer = httpx.post(server.url + CHAT, content=content, headers=headers)
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "body_too_large"
            assert "0.001 MB" in answer.json()["error"]["message"]
        assert post(server, say("x")).status_code == 200


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_client_that_sends_too_much_hears_why(is_declared: bool) -> None:
    """Were the connection closed while it sends, it would see a reset and no answer."""
    with running(options=options(max_body_mb=0.001)) as server:
        content = b"x" * 8_000_000
        for _ in range(5):
            answer = httpx.post(
                server.url + CHAT,
                content=content if is_declared else iter([content]),
                headers={"content-type": "application/json"},
            )
            assert answer.status_code == 413


@pytest.mark.parametrize("num_characters", [-1, 0, 1])
def test_a_prompt_that_fills_the_context_is_one_clear_400(num_characters: int) -> None:
    with running(toy_backend(context_size=64)) as server:
        empty = len(TOKENIZER.encode("<|user|>say:<|end|><|answer|>"))
        length = 63 - empty + num_characters
        answer = post(server, say("x" * length))
        if num_characters <= 0:
            choice = answer.json()["choices"][0]
            assert answer.json()["usage"]["completion_tokens"] == 1 - num_characters
            assert choice["finish_reason"] == "length"
            return
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert error["type"] == "invalid_request_error"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (64, 64)
        assert "64" in error["message"]
        assert "maximum context length" in error["message"]
        streamed = post(server, say("x" * length, stream=True))
        assert streamed.status_code == 400
        assert streamed.json()["error"] == error
        other = httpx.post(f"{server.api}/completions", json={"prompt": "x" * 99})
        assert other.json()["error"]["code"] == "context_length_exceeded"
        assert other.json()["error"]["param"] == "prompt"


def test_a_prompt_limit_below_the_context_has_its_own_numbers() -> None:
    with running(options=options(max_prompt_tokens=20)) as server:
        assert post(server, say("x")).status_code == 200
        error = post(server, say("x" * 40)).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "this server takes 20" in error["message"]
        prompt = httpx.post(f"{server.api}/completions", json={"prompt": [5] * 21})
        assert prompt.json()["error"]["n_prompt_tokens"] == 21
        long = httpx.post(f"{server.api}/responses", json={"input": "x" * 40})
        assert long.json()["error"]["param"] == "input"


def test_a_prompt_above_the_limit_can_be_counted() -> None:
    messages = [{"role": "user", "content": "x" * 99}]
    with running(options=options(max_prompt_tokens=20)) as server:
        for path, name in (("v1/messages/count_tokens", "input_tokens"), ("tokenize", "count")):
            answer = httpx.post(f"{server.url}/{path}", json={"messages": messages})
            assert answer.json()[name] > 99


def test_a_full_queue_is_a_429_that_says_when_to_come_back() -> None:
    backend = Gated(num_slots=1)
    with running(backend, options(max_queue=1, keepalive_seconds=0.05)) as server:
        streams = [OpenStream(server, say("abc")) for _ in range(2)]
        wait_for(lambda: server.service.queue.num_requests == 2)
        answer = post(server, say("x"))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        assert answer.json()["error"]["type"] == "rate_limit_error"
        backend.permits.release(1000)
        for stream in streams:
            stream.read_until(b"[DONE]")
            stream.leave()
        assert post(server, say("x")).status_code == 200


def test_waiting_too_long_for_a_slot_is_a_429() -> None:
    with running(toy_backend(num_slots=1, seconds=0.01), options(queue_seconds=0.3)) as server:
        first = OpenStream(server, babble(max_tokens=1500))
        first.read_until(b'"content"', 2)
        for stream in (False, True):
            answer = post(server, say("x", stream=stream))
            assert answer.status_code == 429
            assert "0.3 seconds" in answer.json()["error"]["message"]
        first.leave()
        wait_for(lambda: server.service.queue.num_requests == 0)
        assert post(server, say("x")).status_code == 200


def test_waiting_too_long_in_a_stream_that_was_kept_alive_is_an_error_frame() -> None:
    limits = options(queue_seconds=0.4, keepalive_seconds=0.1)
    with running(toy_backend(num_slots=1, seconds=0.01), limits) as server:
        first = OpenStream(server, babble(max_tokens=1500))
        first.read_until(b'"content"', 2)
        answer = post(server, say("x", stream=True))
        assert answer.status_code == 200
        assert '"code":"server_busy"' in answer.text
        assert "[DONE]" not in answer.text
        first.leave()


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {"content-type": "application/json"}, 400, "invalid_json"),
        (b'{"a": "\xff"}', {"content-type": "application/json"}, 400, "invalid_json"),
        (b"[" * 3000 + b"]" * 3000, {"content-type": "application/json"}, 400, "invalid_json"),
        (b"", {"content-type": "application/json"}, 400, "invalid_value"),
        (b"[1]", {"content-type": "application/json"}, 400, "invalid_value"),
        (b"a=b", {"content-type": "application/x-www-form-urlencoded"}, 400, "invalid_value"),
        (b"[" * 30_000, {"content-type": "application/json"}, 400, None),
        (b"\xff\xfe", {"content-type": "application/json"}, 400, None),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
         {"content-type": "application/json"}, 400, "invalid_value"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
         {"content-type": "application/json"}, 400, "invalid_value"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_a_400(
    content: bytes, headers: dict[str, str], status: int, code: str | None
) -> None:
    with running() as server:
        answer = httpx.post(server.url + CHAT, content=content, headers=headers)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        if code is not None:
            assert error["code"] == code


def test_other_paths_and_methods_have_the_same_shape() -> None:
    with running() as server:
        for answer, status in (
            (httpx.get(f"{server.url}/nothing"), 404),
            (httpx.get(server.url + CHAT), 405),
            (httpx.get(f"{server.api}/models/other"), 404),
        ):
            assert answer.status_code == status
            assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_errors_of_the_messages_route_have_the_shape_of_its_clients() -> None:
    with running(options=ServerOptions(api_keys=("k",))) as server:
        body = httpx.post(f"{server.api}/messages", json={}).json()
        assert body["type"] == "error"
        assert body["error"]["type"] == "authentication_error"


def test_pages_of_other_origins_are_let_in_only_where_asked() -> None:
    origin = {"Origin": "https://page.example"}
    with running() as server:
        assert "access-control-allow-origin" not in post(server, say("x"), headers=origin).headers
    allowed = ServerOptions(cors_origins=("https://page.example",), api_keys=("k",))
    with running(options=allowed) as server:
        answer = post(server, say("x"), headers={**origin, "x-api-key": "k"})
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        refused = post(server, say("x"), headers=origin)
        assert refused.headers["access-control-allow-origin"] == "https://page.example"
        preflight = httpx.options(
            server.url + CHAT,
            headers={
                **origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            },
        )
        assert preflight.status_code == 200
        other = post(server, say("x"), headers={"Origin": "https://x.example", "x-api-key": "k"})
        assert "access-control-allow-origin" not in other.headers


def test_there_is_one_line_a_request_and_none_of_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running() as server, caplog.at_level(logging.INFO, "copyahead.server.service"):
        answer = post(server, say("secret words"))
        post(server, {**say("secret words"), "temperature": -1})
        answer_id = answer.json()["id"]
        assert answer.headers["x-request-id"] == answer_id
        wait_for(lambda: len(lines(caplog)) == 2)
    first, second = lines(caplog)
    assert f"id={answer_id}" in first
    for name in ("read=", "cached=", "written=", "first_token_ms=", "tok_s=", "rounds=",
                 "drafted=", "accepted=", "prompts=1", "policy=-"):  # fmt: skip
        assert name in first
    assert "param=temperature" in second
    assert "secret" not in caplog.text


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "copyahead.server.service"]


def test_metrics_count_what_happened() -> None:
    text = "the and the and ab the and the and ab the and the and ab"
    backend = toy_backend(exactness=Exactness(level="exact", rows=64, max_abs_diff=0.0))
    with running(backend, policy="fixed") as server:
        answer = post(server, say(text)).json()
        post(server, {**say("x"), "n": 0})
        page = httpx.get(f"{server.url}/metrics")
        assert page.headers["content-type"].startswith("text/plain")
        values = dict(
            line.rsplit(" ", 1) for line in page.text.splitlines() if not line.startswith("#")
        )

        def value(name: str, **labels: str) -> float:
            given = {"model_name": "copyahead", **labels}
            inside = ",".join(f'{k}="{v}"' for k, v in sorted(given.items()))
            return float(values[f"{name}{{{inside}}}"])

        usage, timings = answer["usage"], answer["timings"]
        assert value("vllm:prompt_tokens_total") == usage["prompt_tokens"]
        assert value("vllm:generation_tokens_total") == usage["completion_tokens"]
        assert value("llamacpp:tokens_predicted_total") == usage["completion_tokens"]
        assert value("vllm:spec_decode_num_draft_tokens_total") == timings["draft_n"]
        accepted = timings["draft_n_accepted"]
        assert value("vllm:spec_decode_num_accepted_tokens_total") == accepted > 0
        assert value("copyahead:rounds_total") == timings["rounds"]
        assert value("vllm:request_success_total", finished_reason="stop") == 1
        assert value("copyahead:requests_refused_total", code="invalid_value") == 1
        assert value("vllm:num_requests_running") == 0
        assert 0 < value("vllm:kv_cache_usage_perc") < 1
        assert value("copyahead:exact_rows", level="exact") == 64
        assert value("vllm:time_to_first_token_seconds_count") == 1
        by_source = sum(
            float(v) for k, v in values.items()
            if k.startswith("copyahead:accepted_tokens_by_source_total")
        )  # fmt: skip
        assert by_source == accepted
        by_place = sum(
            float(v) for k, v in values.items()
            if k.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total")
        )  # fmt: skip
        assert by_place == accepted


def test_the_model_is_listed_with_its_context() -> None:
    with running() as server, openai.OpenAI(base_url=server.api, api_key="x") as client:
        (model,) = client.models.list().data
        assert model.id == "copyahead"
        assert model.model_dump()["max_model_len"] == 2048
        assert client.models.retrieve("copyahead").id == "copyahead"


def test_the_model_is_listed_in_the_shape_of_the_api_that_asks() -> None:
    headers = {"anthropic-version": "2023-06-01"}
    with running() as server:
        api = anthropic.Anthropic(base_url=server.url, api_key="x")
        with api as client:
            listed = client.models.list()
            (model,) = listed.data
            assert (listed.has_more, listed.first_id, listed.last_id) == (False, model.id, model.id)
            assert (model.type, model.id, model.display_name) == ("model", "copyahead", "copyahead")
            found = client.models.retrieve("copyahead")
            assert found.created_at == model.created_at
        one = httpx.get(f"{server.api}/models/copyahead", headers=headers).json()
        assert one.keys() == {"type", "id", "display_name", "created_at"}
        wrong = httpx.get(f"{server.api}/models/other", headers=headers).json()
        assert wrong["type"] == "error"
        assert wrong["error"]["type"] == "not_found_error"
        assert httpx.get(f"{server.api}/models/copyahead").json()["object"] == "model"


def test_what_llama_cpps_clients_ask_of_the_server() -> None:
    with running() as server:
        props = httpx.get(f"{server.url}/props").json()
        assert props["default_generation_settings"]["n_ctx"] == 2048
        assert props["total_slots"] == 4
        assert "<|answer|>" in props["chat_template"]
        assert props["model_path"] == "copyahead"
        assert httpx.head(server.url).status_code == httpx.get(server.url).status_code == 200


def test_the_tokens_of_a_response_are_counted_as_it_reads_them() -> None:
    with running() as server:
        body = {"input": "say:x", "instructions": "Be brief."}
        counted = httpx.post(f"{server.api}/responses/input_tokens", json=body).json()
        usage = httpx.post(f"{server.api}/responses", json=body).json()["usage"]
        assert counted == {
            "object": "response.input_tokens", "input_tokens": usage["input_tokens"]
        }  # fmt: skip


def test_tokens_go_there_and_back() -> None:
    with running() as server:
        text = "the and € 😀"
        given = httpx.post(f"{server.url}/tokenize", json={"content": text, "with_pieces": True})
        tokens = given.json()["tokens"]
        assert given.json()["count"] == len(tokens) == len(given.json()["pieces"])
        back = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens})
        assert back.json()["content"] == text
        chat = httpx.post(f"{server.url}/tokenize", json=say("x")).json()["tokens"]
        assert chat == TOKENIZER.encode("<|user|>say:x<|end|><|answer|>")
        for path, body in (
            ("detokenize", {"tokens": [10**9]}),
            ("detokenize", {"tokens": ["x"]}),
            ("tokenize", {}),
            ("tokenize", {"content": 3}),
        ):
            assert httpx.post(f"{server.url}/{path}", json=body).status_code == 400


def test_health_says_when_the_engine_has_stopped() -> None:
    with running() as server:
        server.service.engine.close()
        assert httpx.get(f"{server.url}/health").status_code == 503
        answer = post(server, say("x"))
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "shutting_down"


@pytest.mark.parametrize(
    "limits",
    [{"max_queue": -1}, {"queue_seconds": 0}, {"max_body_mb": float("nan")},
     {"max_prompt_tokens": 0}, {"keepalive_seconds": -1}],
)  # fmt: skip
def test_a_limit_out_of_range_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(limits))):
        Limits(**limits)


def test_a_seeded_answer_does_not_depend_on_its_neighbours() -> None:
    class Counting(SlowBackend):
        most = 0

        def forward(self, parts: Sequence[Part]) -> list[Logits]:
            self.most = max(self.most, len(parts))
            time.sleep(0.002)
            return super().forward(parts)

    backend = Counting(ObedientLM(), tokenizer=TOKENIZER, context_size=512, num_slots=4)
    with running(backend, policy="fixed") as server:
        bodies = [babble(seed=seed, max_tokens=40) for seed in range(8)]
        alone = [post(server, body).json()["choices"][0]["message"] for body in bodies]
        together: list[Any] = [None] * 8

        def ask(place: int) -> None:
            together[place] = post(server, bodies[place]).json()["choices"][0]["message"]

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert together == alone
        assert backend.most > 1


def test_a_trace_holds_what_was_read_and_written(tmp_path: Path) -> None:
    text = "the and the and ab the and the and ab the and the and ab"
    path = tmp_path / "trace.jsonl"
    with running(policy="fixed") as server:
        server.service.recorder = TraceWriter(path, model="toy", vocab_size=9)
        answer = post(server, {**say(text), "n": 2, "seed": 4, "logit_bias": {"5": 1}}).json()
        wait_for(lambda: path.read_bytes().count(b"\n") == 2)
        server.service.recorder.close()
        server.service.recorder = None
    records = [msgspec.json.decode(line, type=Record) for line in path.read_bytes().splitlines()]
    assert len(records) == 2
    assert records[0].prompt == TOKENIZER.encode(f"<|user|>say:{text}<|end|><|answer|>")
    assert [r.output for r in records] == [[*TOKENIZER.encode(text), END]] * 2
    drafted = sum(drafted for record in records for drafted, _ in record.rounds)
    accepted = sum(accepted for record in records for _, accepted in record.rounds)
    assert drafted == answer["timings"]["draft_n"]
    assert accepted == answer["timings"]["draft_n_accepted"]
    assert sum(len(record.rounds) for record in records) == answer["timings"]["rounds"]
    assert records[0].options["seed"] == 4
    assert records[0].finish_reason == "stop"
    assert text.encode() not in path.read_bytes()


def test_requests_for_several_answers_take_no_more_than_half_of_the_queue() -> None:
    queue = Queue(4, Limits(max_queue=12))
    queue.enter(17)
    with pytest.raises(ApiError, match="half of the queue is taken by requests for several"):
        queue.enter(2)
    for _ in range(8):
        queue.enter(1)
    with pytest.raises(ApiError, match=r"the queue is full \(12 answers wait\)"):
        queue.enter(1)
    queue.leave(17, ran=True)
    queue.enter(2)
    assert (queue.num_answers, queue.num_requests) == (10, 9)


def test_a_queue_of_one_takes_one_request_however_many_answers_it_wants() -> None:
    queue = Queue(1, Limits(max_queue=0))
    for num_answers in (1, 5):
        queue.enter(num_answers)
        for other in (1, 5):
            with pytest.raises(ApiError):
                queue.enter(other)
        queue.leave(num_answers, ran=True)
