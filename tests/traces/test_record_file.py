"""A trace's file: whole records on a full disk, and nobody else's eyes or links."""

from __future__ import annotations

import json
import logging
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from copyahead.errors import ConfigError
from copyahead.traces.record import RecordReader, TraceWriter
from copyahead.traces.record_file import RecordFile
from tests.server.http.test_streaming import say, wait_for
from tests.server.toys import running


@contextmanager
def room(num_bytes: int) -> Iterator[None]:
    """Files may grow to this size only, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def records(path: Path) -> list[list[int]]:
    """The outputs of a file, each with its whole prompt before it."""
    reader = RecordReader()
    found = [reader.read(json.loads(line)) for line in path.read_bytes().splitlines()]
    return [prompt + record.output for record, prompt in found]


def test_what_does_not_fit_is_taken_back_and_the_next_record_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.write([1, 2, 3], [4])
        size = path.stat().st_size
        for room_left in (0, 1, 50):
            with room(size + room_left), pytest.raises(OSError, match=r".+"):
                writer.write([1, 2, 3, 4, 5], [6] * 100)
            assert path.stat().st_size == size
        writer.write([1, 2, 3, 4, 5], [6])
    assert records(path) == [[1, 2, 3, 4], [1, 2, 3, 4, 5, 6]]


def test_a_file_that_ends_within_a_line_gets_a_break_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b'{"copyahead_tr')
    file = RecordFile(path)
    file.append(b"{}\n")
    file.append(b"[]\n")
    file.close()
    file.close()
    assert path.read_bytes() == b'{"copyahead_tr\n{}\n[]\n'


@pytest.mark.parametrize("mode", [None, 0o644, 0o666, 0o600, 0o640])
def test_only_the_owner_reads_it_also_where_it_was_there(mode: int | None, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    if mode is not None:
        path.touch()
        path.chmod(mode)
    RecordFile(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_counts_only_where_it_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    file = RecordFile(link)
    file.append(b"{}\n")
    file.close()
    assert target.read_bytes() == b"{}\n"
    # Whoever runs the tests, the link is now somebody else's.
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(ConfigError, match="a link of another user"):
        RecordFile(link)
    with pytest.raises(ConfigError, match="another user's"):
        RecordFile(target)


def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
        with pytest.raises(ConfigError, match="cannot be written"):
            RecordFile(path)


def test_a_server_says_once_that_records_are_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl"
    with running() as server, caplog.at_level(logging.WARNING, "copyahead.server.service"):
        service = server.service
        service.recorder = TraceWriter(path)
        url = f"{server.api}/chat/completions"
        with room(10):
            for number in range(3):
                assert httpx.post(url, json=say("x")).status_code == 200
                wait_for(lambda n=number: service._num_unrecorded == n + 1)
        assert httpx.post(url, json=say("x")).status_code == 200
        wait_for(lambda: path.read_bytes().count(b"\n") == 1)
        wait_for(lambda: len(caplog.records) == 2)
        service.recorder.close()
        service.recorder = None
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("the trace cannot be written")
    assert second == "the trace is written again, without 3 answers"
    assert len(records(path)) == 1
