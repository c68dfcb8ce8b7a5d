"""Which server wrote a log, and how much of it was understood."""

from __future__ import annotations

import gzip
import io
import shutil
import sys
from pathlib import Path

import pytest
from backports import zstd

from copyahead.errors import ConfigError
from copyahead.traces.logs import lines
from copyahead.traces.logs.lines import read_lines
from copyahead.traces.logs.reading import Log, read_log
from copyahead.traces.logs.rows import make_ratios
from tests.traces.logs.test_own import LINE

LLAMA = Path(__file__).with_name("recorded") / "llama-server-simple.log"


def write(path: Path, *content: bytes) -> str:
    path.write_bytes(b"\n".join(content) + b"\n")
    return str(path)


def whole(log: Log) -> int:
    """Requests of the log."""
    return sum(row.requests for row in log.rows if row.band == "all")


def test_the_kind_is_told_by_content(tmp_path: Path) -> None:
    own = write(tmp_path / "llama.log", b"loading x.gguf", b"", LINE)
    assert read_log([own]).format == "copyahead"
    assert read_log([str(LLAMA)]).format == "llama-server"


def test_format_forces_the_kind(tmp_path: Path) -> None:
    path = write(tmp_path / "log", b"something else", LINE)
    log = read_log([path], kind="llama-server")
    assert (log.format, whole(log)) == ("llama-server", 0)
    assert log.rows == []


def test_compressed_files_are_told_by_content(tmp_path: Path) -> None:
    content = (LINE + b"\n") * 1000
    (tmp_path / "a").write_bytes(gzip.compress(content))
    (tmp_path / "b").write_bytes(zstd.compress(content))
    # A log that was rotated and joined again has several frames.
    (tmp_path / "c").write_bytes(zstd.compress(content) + zstd.compress(content))
    counts = [whole(read_log([str(tmp_path / name)])) for name in "abc"]
    assert counts == [1000, 1000, 2000]


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_a_compressed_file_that_is_cut_short_is_named(tmp_path: Path, compress: object) -> None:
    content = "".join(f"{LINE.decode()} {n * 7919}\n" for n in range(9000)).encode()
    packed = compress(content)  # type: ignore[operator]
    (tmp_path / "log").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ConfigError, match=f"log {tmp_path / 'log'} cannot be read"):
        read_log([str(tmp_path / "log")])
    damaged = bytearray(packed)
    damaged[len(damaged) // 2 :] = b"\xff" * (len(damaged) - len(damaged) // 2)
    (tmp_path / "log").write_bytes(bytes(damaged))
    with pytest.raises(ConfigError, match=f"log {tmp_path / 'log'} cannot be read"):
        read_log([str(tmp_path / "log")])


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (LINE, gzip.compress(LINE)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        log = read_log(["-"])
        assert (whole(log), log.files[0].path) == (1, "standard input")


def test_what_is_not_understood_is_counted_and_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "log", LINE, b"\xff\x00 rubbish", LINE[:99], LINE)
    log = read_log([path, path])
    assert whole(log) == 4
    first = log.files[0]
    assert (first.lines, first.not_understood) == (4, 2)
    assert str(first).startswith(f"2 of 4 lines of {path} were not understood; the first: ")
    assert str(first).isprintable()


def test_a_file_of_no_known_kind_is_refused_with_its_beginning(tmp_path: Path) -> None:
    path = write(tmp_path / "log", b"", b"hello there")
    with pytest.raises(ConfigError, match=r"'hello there'.*--format"):
        read_log([path])
    empty = write(tmp_path / "empty", b"")
    with pytest.raises(ConfigError, match="is empty"):
        read_log([empty])
    with pytest.raises(ConfigError, match="cannot be read"):
        read_log([str(tmp_path)])
    with pytest.raises(ConfigError, match="no log to read"):
        read_log([])


def test_logs_of_two_kinds_are_not_mixed(tmp_path: Path) -> None:
    own = write(tmp_path / "log", LINE)
    with pytest.raises(ConfigError, match="give logs of one kind, and others after --vs"):
        read_log([own, str(LLAMA)])


def test_a_request_does_not_go_on_in_the_next_file(tmp_path: Path) -> None:
    text = LLAMA.read_bytes()
    at = text.index(b"       eval time")
    one, other = tmp_path / "1", tmp_path / "2"
    one.write_bytes(text[:at])
    shutil.copy(LLAMA, other)
    log = read_log([str(one), str(other)])
    (row,) = [row for row in log.rows if row.band == "all"]
    assert (row.requests, row.failed) == (5, 1)


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_lines_are_whole_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    content = [b"", b"a", b"bcd" * 5, b"", b"e"]
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(content))
    assert list(read_lines(str(path))) == content


@pytest.mark.parametrize("block", [3, 64])
def test_of_a_line_without_end_only_the_beginning_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    monkeypatch.setattr(lines, "MAX_LINE", 10)
    path = tmp_path / "log"
    path.write_bytes(b"ab\n" + b"x" * 1000 + b"\ncd\n" + b"y" * 500)
    found = list(read_lines(str(path)))
    if block < 10:
        assert found == [b"ab", b"x" * 10, b"cd", b"y" * 10]
    else:
        assert [len(line) for line in found] == [2, *(len(line) for line in found[1:-2]), 2, 10]
        assert found[0] == b"ab"
        assert found[-2] == b"cd"


def test_ratios_are_of_the_same_band_and_policy(tmp_path: Path) -> None:
    fast = LINE.replace(b"tok_s=101.1", b"tok_s=202.2").replace(b"310.4", b"155.2")
    deep = LINE.replace(b"read=812", b"read=9000")
    one = read_log([write(tmp_path / "a", fast, deep)], by=["policy"])
    other = read_log([write(tmp_path / "b", LINE, LINE)], by=["policy"])
    first, whole_log = make_ratios(one.rows, other.rows)
    assert (first.band, first.policy, first.requests, first.requests_vs) == (
        "0-8k", "priced:a=1,b=2", 1, 2,
    )  # fmt: skip
    assert (first.tok_s, first.first_token, first.acceptance) == (2.0, 0.5, 1.0)
    assert whole_log.band == "all"


def test_a_log_without_requests_has_no_rows(tmp_path: Path) -> None:
    refused = b"2026-11-30 20:08:41,123 INFO copyahead.server.service: refused status=400 code=x"
    assert read_log([write(tmp_path / "log", refused)]).rows == []
