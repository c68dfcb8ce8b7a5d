"""`copyahead bench`, against this project's own server and scripted ones on real sockets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from copyahead.cli.bench import BenchOptions
from copyahead.cli.bench.asks import make_asks
from copyahead.traces.formats.importers import read_traces
from copyahead.traces.record import TraceWriter
from copyahead.traces.requests import chat_messages, requests_of
from copyahead.traces.tokenizers import JsonTokenizer, decode
from tests.cli.toys import Done, Run
from tests.evaluate.bench.servers import Handler, piece, scripted, stream, usage
from tests.server.toys import TOKENIZER, running

WHOLE = stream(piece("a"), piece("b", "stop"), usage(3, 9), "[DONE]")
SAID = ["hello there", "the and the and ab the and", "good bye"]


@pytest.fixture
def chats(tmp_path: Path) -> str:
    """A trace of conversations, of three requests."""
    path = tmp_path / "chats.jsonl"
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"say:{text}"},
                {"role": "assistant", "content": text},
            ]
        }
        for text in SAID
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture
def ids(tmp_path: Path) -> str:
    """A trace of token ids, of three requests of two sessions."""
    path = tmp_path / "ids.jsonl"
    with TraceWriter(path, vocab_size=300) as writer:
        writer.write([5, 6, 7], [8, 9])
        writer.write([5, 6, 7, 8, 9, 10], [11])
        writer.write([40, 41, 42, 43], [44, 45, 46])
    return str(path)


def bench(done: Done, *arguments: str) -> dict[str, Any]:
    out, _ = done("bench", *arguments, "--json")
    document: dict[str, Any] = json.loads(out)
    return document


def test_conversations_are_sent_to_the_projects_own_server(done: Done, chats: str) -> None:
    with running(policy="fixed") as server:
        document = bench(done, server.url, "--trace", chats)
        assert server.service.queue.num_requests == 0
    (found,) = document["servers"]
    lengths = [len(TOKENIZER.encode(text)) + 1 for text in SAID]
    assert (found["requests"], found["failed"], found["model"]) == (3, 0, "copyahead")
    assert found["output_tokens"] == sum(lengths)
    assert [answer["output_tokens"] for answer in document["answers"][0]] == lengths
    assert found["tok_s"]["p50"] > 0


def test_recorded_ids_are_sent_as_ids(done: Done, ids: str) -> None:
    with running(policy="fixed") as server:
        (found,) = bench(done, server.url, "--trace", ids)["servers"]
    # As many tokens as were recorded, at most.
    assert found["failed"] == 0
    assert (found["prompt_tokens"], 1 <= found["output_tokens"] <= 6) == (13, True)


def test_what_the_server_records_can_be_replayed_at_its_times(done: Done, tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    with running(policy="fixed") as server:
        server.service.recorder = TraceWriter(path, vocab_size=300)

        for text in SAID:
            body = {"prompt": text, "max_tokens": 4, "model": "m"}
            assert httpx.post(f"{server.api}/completions", json=body).status_code == 200
            time.sleep(0.1)
        while len(path.read_text().splitlines()) < 3:
            time.sleep(0.01)
        server.service.recorder.close()
        server.service.recorder = None
        (found,) = bench(done, server.url, "--trace", str(path), "--recorded-times")["servers"]
    assert (found["requests"], found["failed"]) == (3, 0)
    assert found["seconds"] > 0.2
    times = [request.time for request in requests_of(read_traces([str(path)]))]
    assert all(later - earlier > 0.1 for earlier, later in pairwise(times))
    options = BenchOptions(trace=(str(path),), recorded_times=True, speed=4.0)
    assert [each.at for each in make_asks(options)] == [(at - times[0]) / 4 for at in times]


def test_ids_become_text_where_a_tokenizer_is_named(
    done: Done, tmp_path: Path, tiny_models: dict[str, Path]
) -> None:
    from copyahead.traces.tokenizers import find_tokenizer

    model = str(tiny_models["plain"])
    _, tokenizer = find_tokenizer(model)
    text = "def area(width): return width"
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.write(tokenizer.encode(text), [5])
    assert decode(tokenizer, tokenizer.encode(text)) == text
    with scripted(WHOLE) as server:
        done("bench", server.url, "--trace", str(path), "--tokenizer", model)
        done("bench", server.url, "--trace", str(path), "--tokenizer", model, "--send", "chat")
        done("bench", server.url, "--trace", str(path), "--tokenizer", model, "--send", "ids")
        done("bench", server.url, "--trace", str(path))
    assert server.bodies[0]["prompt"] == text
    assert server.bodies[1]["messages"] == [{"role": "user", "content": text}]
    assert server.bodies[2]["prompt"] == server.bodies[3]["prompt"] == tokenizer.encode(text)


def test_a_tokenizer_file_spells_ids_out(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.BPE({"a": 0, "b": 1, "Ġ": 2}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_end|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = JsonTokenizer(tmp_path / "tokenizer.json")
    assert decode(tokenizer, tokenizer.encode("ab a<|im_end|>b")) == "ab a<|im_end|>b"


def test_two_servers_are_compared(done: Done, chats: str) -> None:
    def slow(handler: Handler, body: dict[str, Any]) -> None:
        time.sleep(0.3)
        WHOLE(handler, body)

    with scripted(WHOLE) as fast, scripted(slow) as other:
        out, _ = done("bench", fast.url, "--trace", chats, "--vs", other.url)
        document = bench(done, fast.url, "--trace", chats, "--vs", other.url, "--vs-model", "x")
    assert [server["requests"] for server in document["servers"]] == [3, 3]
    assert [server["model"] for server in document["servers"]] == ["listed", "x"]
    ratios = {ratio["measure"]: ratio for ratio in document["ratios"]}
    assert ratios["tok_s"]["ratio"] > 1 > ratios["first_token"]["ratio"]
    assert "95% interval" in out
    assert out.count("output tok/s of a request") == 3


def test_limit_warm_up_and_settings_reach_the_server(done: Done, chats: str) -> None:
    with scripted(WHOLE) as server:
        arguments = ["--limit", "2", "--warm-up", "1", "--max-tokens", "7", "--temperature", "0.5"]
        arguments += ["--api-key", "secret", "--model", "mine"]
        (found,) = bench(done, server.url, "--trace", chats, *arguments)["servers"]
    assert (found["requests"], found["warm_up"]) == (1, 1)
    assert server.keys == ["Bearer secret"] * 2
    for body in server.bodies:
        asked = (body["model"], body["max_tokens"], body["temperature"])
        assert asked == ("mine", 7, 0.5)


def test_a_server_without_usage_is_said_to_have_none(done: Done, chats: str) -> None:
    with scripted(stream(piece("a"), piece("b", "stop"), "[DONE]")) as server:
        out, _ = done("bench", server.url, "--trace", chats)
    assert "3 answers came without usage" in out
    assert "time to first token" in out
    assert "output tok/s of a request" not in out


def test_faults_are_counted_by_kind_and_the_run_goes_on(cli: Run, chats: str) -> None:
    def reply(handler: Handler, body: dict[str, Any]) -> None:
        text = body["messages"][0]["content"]
        if "hello" in text:
            handler.whole(429, {"error": {"message": "too many"}})
        elif "ab" in text:
            handler.begin()
            handler.send(piece("a"))
            handler.cut()
        else:
            WHOLE(handler, body)

    with scripted(reply) as server:
        status, out, _ = cli("bench", server.url, "--trace", chats)
    assert status == 0
    assert "2 failed" in out
    assert "1 x HTTP 429; the first: too many" in out
    assert "1 x cut off" in out


def test_a_run_without_an_answer_has_failed(cli: Run, chats: str) -> None:
    over = threading.Event()

    def never(handler: Handler, body: dict[str, Any]) -> None:
        over.wait(20)

    try:
        with scripted(never) as server:
            status, out, _ = cli("bench", server.url, "--trace", chats, "--timeout", "0.2")
            over.set()
    finally:
        over.set()
    assert status == 1
    assert "3 x timeout" in out


def test_a_key_that_is_wrong_is_named(cli: Run, chats: str) -> None:
    def refuse(handler: Handler) -> None:
        handler.whole(401, {"error": {"message": "no"}})

    with pytest.MonkeyPatch.context() as patch, scripted(WHOLE) as server:
        patch.setattr(Handler, "do_GET", refuse)
        status, out, err = cli("bench", server.url, "--trace", chats)
    assert (status, out) == (1, "")
    assert "answers 401, so no model is known: give --api-key" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["http://x"], "--trace must name at least one file"),
        (["x:80", "--trace", "T"], "is no address: give http://host:port"),
        (["ftp://x", "--trace", "T"], "is no address: give http://host:port"),
        (["http://x", "--trace", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["http://x", "--trace", "T", "--warm-up", "3"], "--warm-up takes 3 requests"),
        (["http://x", "--trace", "T", "--recorded-times"], "needs a trace with times"),
        (["http://x", "--trace", "T", "--speed", "2"], "--speed needs --recorded-times"),
        (["http://x", "--trace", "T", "--block", "2"], "--block needs --vs"),
        (["http://x", "--trace", "T", "--concurrency", "0"], "--concurrency must be"),
        (["http://x", "--trace", "T", "--send", "ids"], "needs recorded token ids"),
        (
            ["http://x", "--trace", "T", "--vs", "http://y", "--recorded-times"],
            "exclude each other",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(
    cli: Run, chats: str, arguments: list[str], sentence: str
) -> None:
    status, out, err = cli("bench", *(chats if each == "T" else each for each in arguments))
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_nobody_there_is_one_sentence(cli: Run, chats: str) -> None:
    status, _, err = cli("bench", "http://127.0.0.1:9", "--trace", chats)
    assert status == 1
    assert "http://127.0.0.1:9/v1 cannot be reached" in err


def test_ctrl_c_gives_what_there_is(chats: str) -> None:
    over = threading.Event()
    stuck = threading.Event()

    def reply(handler: Handler, body: dict[str, Any]) -> None:
        if "bye" in body["messages"][0]["content"]:
            stuck.set()
            over.wait(60)
        WHOLE(handler, body)

    with scripted(reply) as server:
        command = [sys.executable, "-m", "copyahead", "bench", server.url, "--trace", chats]
        with subprocess.Popen(
            [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("COPYAHEAD_")},
        ) as process:  # fmt: skip
            assert stuck.wait(60)
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        over.set()
    document = json.loads(out)
    assert (process.returncode, document["interrupted"]) == (130, True)
    assert document["servers"][0]["requests"] == 2
    assert "interrupted: this is what there is so far" in err
    assert "Traceback" not in err


def test_a_conversation_is_sent_as_every_template_takes_it() -> None:
    from copyahead.traces.formats.conversations import Message

    said = [
        ("system", "be kind"), ("system", "be short"), ("user", "a"), ("tool", "b"),
        ("assistant", ""), ("assistant", "c"), ("system", "late"), ("critic", "d"),
    ]  # fmt: skip
    found = chat_messages([Message(role, text) for role, text in said])
    assert [(message.role, message.text) for message in found] == [
        ("system", "be kind\n\nbe short"), ("user", "a\n\nb"), ("assistant", "c"),
        ("user", "late\n\nd"),
    ]  # fmt: skip


def test_a_session_is_one_request_for_each_answer(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    said = [
        ("user", "a"), ("assistant", "b"), ("assistant", "c"), ("user", "d"), ("assistant", "e"),
    ]  # fmt: skip
    messages = [{"role": role, "content": text} for role, text in said]
    path.write_text(json.dumps({"messages": messages}))
    first, second = requests_of(read_traces([str(path)]))
    assert [message.text for message in first.messages] == ["a"]
    assert [message.text for message in second.messages] == ["a", "b\n\nc", "d"]
    assert first.session == second.session
