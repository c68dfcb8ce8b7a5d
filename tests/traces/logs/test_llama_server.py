"""The log of llama.cpp's server: recorded runs, beside what the same server told its clients."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from copyahead.traces.logs import llama_server
from copyahead.traces.logs.bands import Seen
from copyahead.traces.logs.llama_server import LlamaServerReader, is_llama_server

RECORDED = Path(__file__).with_name("recorded")


def lines_of(name: str) -> list[bytes]:
    return (RECORDED / f"llama-server-{name}.log").read_bytes().splitlines()


def timings_of(name: str) -> list[dict[str, Any]]:
    lines = (RECORDED / f"llama-server-{name}.timings.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def read(lines: Sequence[bytes]) -> tuple[list[Seen], list[bytes]]:
    seen: list[Seen] = []
    wrong: list[bytes] = []
    reader = LlamaServerReader(seen.append, wrong.append)
    for line in lines:
        reader.line(line)
    reader.finish()
    return seen, wrong


def check(seen: Sequence[Seen], timings: Sequence[dict[str, Any]], *, cached: bool = True) -> None:
    """What was read is what the server told its clients."""
    assert len(seen) == len(timings) == 4
    for each, told in zip(seen, timings, strict=True):
        assert each.written == told["predicted_n"]
        assert each.drafted == told.get("draft_n", 0)
        assert each.accepted == told.get("draft_n_accepted", 0)
        assert each.first_token == pytest.approx(told["prompt_ms"] / 1000, abs=1e-5)
        speed = (told["predicted_n"] - 1) / (told["predicted_ms"] / 1000)
        assert each.speed == pytest.approx(speed, rel=1e-3)
        assert each.rounds == each.written - each.accepted
        if cached:
            assert each.cached == told["cache_n"]
            assert each.read == told["cache_n"] + told["prompt_n"]
            assert each.context == each.read + each.written
        else:
            assert (each.cached, each.read) == (None, told["prompt_n"])


@pytest.mark.parametrize("name", ["none", "simple"])
def test_a_recorded_log_says_what_the_server_told_its_clients(name: str) -> None:
    seen, wrong = read(lines_of(name))
    assert wrong == []
    check(seen, timings_of(name))


def older(lines: Sequence[bytes]) -> list[bytes]:
    """As versions before 2026 wrote it: the figures stand below a line that names the task."""
    found = []
    for line in lines:
        match = re.match(rb"(.*print_timing: id +\d+ \| task \d+ \| )(.*)", line)
        if match is None:
            found.append(line.replace(b"n_tokens = ", b"n_past = "))
            continue
        if b"prompt eval" in line:
            found.append(match[1])
        text = match[2].replace(b"draft acceptance =", b"draft acceptance rate =")
        found.append(re.sub(rb", mean len = .*", b"", text))
    return found


def oldest(lines: Sequence[bytes]) -> list[bytes]:
    """As versions of early 2024 wrote it: fields by name, and no level or clock before them."""
    found = []
    for line in lines:
        ids = re.search(rb"id +(\d+) \| task (\d+) \| (.*)", line)
        if ids is None:
            continue
        tail = b' | tid="1" timestamp=1709251200 id_slot=%b id_task=%b' % (ids[1], ids[2])
        if b"eval time" in line:
            text = ids[3].replace(b"       eval time", b"generation eval time")
            text = re.sub(rb"(generation.*) tokens \(", rb"\1 runs (", text)
            found.append(b"INFO [           print_timings] " + text + tail)
        elif b"stop processing" in line:
            context = re.search(rb"n_tokens = (\d+)", line)
            assert context is not None
            tail += b" n_ctx=4096 n_past=%b truncated=false" % context[1]
            found.append(b"INFO [            update_slots] slot released" + tail)
    return found


def test_older_forms_are_read_as_well() -> None:
    timings = timings_of("simple")
    seen, wrong = read(older(lines_of("simple")))
    assert wrong == []
    check(seen, timings)

    seen, wrong = read(oldest(lines_of("none")))
    assert wrong == []
    check(seen, timings_of("none"))
    assert {each.day for each in seen} == {"2024-03-01"}


def test_what_stands_before_a_line_does_not_matter() -> None:
    lines = [b"2026-05-17 11:04:29.854 | " + line for line in lines_of("simple")]
    seen, wrong = read(lines)
    assert wrong == []
    check(seen, timings_of("simple"))
    assert {each.day for each in seen} == {"2026-05-17"}


def test_children_of_a_router_are_not_mixed_up() -> None:
    one = [b"[5001] " + line for line in older(lines_of("simple"))]
    other = [b"[5002] " + line for line in older(lines_of("none"))]
    mixed = [line for pair in zip(one, other, strict=False) for line in pair]
    mixed += one[len(other) :] + other[len(one) :]
    seen, wrong = read(mixed)
    assert wrong == []
    assert len(seen) == 8
    check([each for each in seen if each.drafted], timings_of("simple"))
    check([each for each in seen if not each.drafted], timings_of("none"))


def test_without_the_end_of_a_request_its_context_is_not_made_up() -> None:
    lines = [line for line in lines_of("none") if b"stop processing" not in line]
    seen, wrong = read(lines)
    assert wrong == []
    check(seen, timings_of("none"), cached=False)


def test_a_server_that_was_started_anew_counts_its_tasks_anew() -> None:
    lines = [line for line in lines_of("none") if b"stop processing" not in line]
    seen, _ = read(lines + lines)
    check(seen[:4], timings_of("none"), cached=False)
    check(seen[4:], timings_of("none"), cached=False)


def test_a_context_that_was_shifted_does_not_tell_what_was_cached() -> None:
    lines = [line.replace(b"truncated = 0", b"truncated = 1") for line in lines_of("none")]
    check(read(lines)[0], timings_of("none"), cached=False)


def test_what_drafts_is_the_policy() -> None:
    lines = lines_of("simple")
    at = next(n for n, line in enumerate(lines) if b"stop processing" in line)
    tail = b": #calls(b,g,a) = 1 4 4, #gen drafts = %d, #acc drafts = 2"
    lines[at:at] = [
        b"0.1 I statistics ngram-mod" + tail % 3,
        b"0.1 I statistics  draft-mtp" + tail % 4,
        b"0.1 I statistics ngram-map-k" + tail % 0,
    ]
    seen, _ = read(lines)
    assert [each.policy for each in seen] == ["ngram-mod+draft-mtp", "-", "-", "-"]


@pytest.mark.parametrize(
    "line",
    [
        b"0.1 I slot print_timing: id  1 | task 0 | prompt eval time =    33",
        b"0.1 I slot print_timing: id  1 | task 0 |        eval time =  ms /    24 tokens",
        b"0.1 I slot print_timing: id  1 | task 0 | draft acceptance = 0.4 (  9 acc",
        b"0.1 I slot      release: id  1 | task 0 | stop processing: n_tok",
        b"\0\0\0",
    ],
)
def test_a_line_that_cannot_be_read_is_given_back(line: bytes) -> None:
    seen, wrong = read([*lines_of("none"), line])
    assert (len(seen), wrong) == (4, [line])


def test_tasks_without_an_end_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "_MAX_OPEN", 5)
    seen: list[Seen] = []
    reader = LlamaServerReader(seen.append, lambda line: None)
    timing = b"slot print_timing: id  1 | task %d | prompt eval time = 1.0 ms / 3 tokens ("
    for task in range(100):
        reader.line(timing % task)
    assert len(seen) == 95
    reader.finish()
    assert len(seen) == 100
    assert all(each.failed for each in seen)


def test_its_lines_are_recognised() -> None:
    assert any(is_llama_server(line) for line in lines_of("none"))
    assert not is_llama_server(b"2026-11-30 INFO copyahead.server.service: request id=1 route=chat")
