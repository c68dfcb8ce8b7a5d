"""Snapshots of vLLM's counters, and of this project's own, which have the same names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from copyahead.traces.logs.reading import read_log
from copyahead.traces.logs.rows import Row
from copyahead.traces.logs.vllm import VllmReader, VllmTotal
from tests.server.toys import running

RECORDED = [Path(__file__).with_name("recorded") / f"vllm-{number}.prom" for number in range(3)]


def snapshot(**counts: float) -> list[bytes]:
    """A snapshot in which counters of one engine have these values."""
    head = b"# HELP vllm:generation_tokens_total x"
    lines = [f'vllm:{name}{{engine="0"}} {value}'.encode() for name, value in counts.items()]
    return [head, b"python_gc_objects_collected_total 3.0", *lines]


def read(*files: Sequence[bytes]) -> tuple[VllmTotal, list[bytes]]:
    wrong: list[bytes] = []
    reader = VllmReader(lambda seen: None, wrong.append)
    for number, lines in enumerate(files):
        if number:
            reader.new_file()
        for line in lines:
            reader.line(line)
    reader.finish()
    return reader.total(), wrong


def test_one_snapshot_counts_from_the_start() -> None:
    total, wrong = read(snapshot(prompt_tokens_total=100, generation_tokens_total=40.0))
    assert (total.read, total.written, total.requests, wrong) == (100, 40, 0, [])


def test_several_snapshots_count_what_grew() -> None:
    one = snapshot(generation_tokens_total=40, spec_decode_num_draft_tokens_total=7)
    two = snapshot(generation_tokens_total=55, spec_decode_num_draft_tokens_total=9)
    three = snapshot(generation_tokens_total=90, spec_decode_num_draft_tokens_total=20)
    for files in ([one, two, three], [[*one, *two, *three]], [[*one, *two], three]):
        total, wrong = read(*files)
        assert (total.written, total.drafted, wrong) == (50, 13, [])


def test_counters_that_began_anew_lose_nothing() -> None:
    total, _ = read(*(snapshot(generation_tokens_total=value) for value in (40, 100, 10, 30)))
    assert total.written == 60 + 10 + 20


def test_a_counter_that_comes_later_counts_from_nothing() -> None:
    later = snapshot(generation_tokens_total=50, request_success_total=4)
    total, _ = read(snapshot(generation_tokens_total=40), later)
    assert (total.written, total.requests) == (10, 4)


def test_engines_are_added_up() -> None:
    lines = [
        b'vllm:generation_tokens_total{engine="0",model_name="a b}"} 1e3',
        b'vllm:generation_tokens_total{engine="1",model_name="a b}"} 5 1709251200000',
        b'vllm:request_success_total{engine="0",finished_reason="stop"} 3',
        b'vllm:request_success_total{engine="1",finished_reason="abort"} 2',
        b"vllm:gpu_prefix_cache_queries_total 10",
        b"vllm:gpu_prefix_cache_hits_total 4",
    ]
    total, _ = read(lines)
    assert (total.written, total.requests, total.failed) == (1005, 5, 2)
    assert (total.cached, total.read_known) == (4, 10)


@pytest.mark.parametrize(
    "line", [b"vllm:generation_tokens_total{", b"vllm:x abc", b"what is this?", b"vllm:x -3"]
)
def test_a_line_that_cannot_be_read_is_given_back(line: bytes) -> None:
    total, wrong = read([*snapshot(generation_tokens_total=40), line])
    assert (total.written, wrong) == (40, [line])


def test_gauges_of_others_may_be_anything() -> None:
    assert read([b"temperature -3", b"nothing NaN", *snapshot(prompt_tokens_total=4)])[1] == []


def test_speeds_are_those_of_requests_where_they_are_counted() -> None:
    def times(name: str, *counts: int) -> list[bytes]:
        bounds = ("0.01", "0.1", "+Inf")
        return [
            f'vllm:{name}_bucket{{le="{bound}"}} {count}'.encode()
            for bound, count in zip(bounds, counts, strict=True)
        ]

    chunks = times("time_per_output_token_seconds", 100, 100, 100)
    by_chunk, _ = read(chunks)
    assert by_chunk.is_by_chunk
    both, _ = read([*chunks, *times("request_time_per_output_token_seconds", 0, 10, 10)])
    assert not both.is_by_chunk
    assert both.speed.at(0.5) == pytest.approx(1 / 0.055)
    assert both.first_token.at(0.5) is None


def rows_of(*paths: Path) -> tuple[Row, str]:
    log = read_log([str(path) for path in paths], by=["policy", "day"])
    assert log.format == "vllm"
    assert [file.not_understood for file in log.files] == [0] * len(paths)
    (row,) = log.rows
    return row, log.note


def test_a_servers_own_snapshots_say_what_its_clients_were_told(tmp_path: Path) -> None:
    usages: list[dict[str, Any]] = []
    paths = []
    text = "the and the and ab the and the and ab the and the and ab"
    with running(policy="fixed") as server:
        for number in range(3):
            body = {"model": "m", "messages": [{"role": "user", "content": f"say:{text}"}]}
            reply = httpx.post(f"{server.api}/chat/completions", json=body)
            usages.append(reply.json()["usage"])
            assert server.is_idle()
            paths.append(tmp_path / f"{number}.prom")
            paths[-1].write_text(httpx.get(f"{server.url}/metrics").text)
    row, note = rows_of(*paths)
    assert (row.requests, row.failed, row.band) == (2, 0, "all")
    assert row.written_tokens == sum(usage["completion_tokens"] for usage in usages[1:])
    assert row.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages[1:])
    assert 0 < row.accepted_tokens <= row.drafted_tokens
    assert row.first_token_ms.p50 is not None
    assert "over 3 snapshots" in note
    assert "total only" in note


def test_recorded_snapshots_of_vllm() -> None:
    """Six requests of 16 to 21 tokens: one before the first snapshot, three, and two."""
    first, note = rows_of(RECORDED[0])
    assert (first.requests, first.written_tokens) == (1, 16)
    assert "one snapshot counts from when the server started" in note
    row, _ = rows_of(*RECORDED)
    assert (row.requests, row.failed) == (5, 0)
    assert row.written_tokens == 17 + 18 + 19 + 20 + 21
    assert 0 < row.accepted_tokens <= row.drafted_tokens
    assert row.prefix_reuse is not None
    assert row.prefix_reuse > 0.5
    assert row.tok_s.p50 is not None
    assert row.first_token_ms.p50 is not None
