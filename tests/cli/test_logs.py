"""`copyahead logs`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.toys import Done, Run
from tests.traces.logs.test_own import LINE
from tests.traces.logs.test_reading import LLAMA, write


def test_tables_for_people_and_one_document_for_programs(done: Done, tmp_path: Path) -> None:
    path = write(tmp_path / "log", LINE, LINE.replace(b"read=812", b"read=9000"), b"rubbish")
    out, err = done("logs", path, "--by", "policy", "day")
    assert [line.split()[:4] for line in out.splitlines() if "priced" in line] == [
        ["priced:a=1,b=2", "2026-11-30", "0-8k", "1"],
        ["priced:a=1,b=2", "2026-11-30", "8-16k", "1"],
        ["priced:a=1,b=2", "2026-11-30", "all", "2"],
    ]
    assert f"1 of 3 lines of {path} were not understood; the first: 'rubbish'" in err
    out, _ = done("logs", path, "--json")
    document = json.loads(out)
    assert [row["band"] for row in document["log"]["rows"]] == ["0-8k", "8-16k", "all"]
    assert document["log"]["rows"][0]["tok_s"] == {"p5": 101.1, "p50": 101.1, "p95": 101.1}
    assert document["log"]["files"][0]["not_understood"] == 1
    assert (document["vs"], document["ratios"]) == (None, [])


def test_two_logs_are_compared_band_by_band(done: Done, tmp_path: Path) -> None:
    own, html = write(tmp_path / "log", LINE), tmp_path / "report.html"
    out, _ = done("logs", own, "--vs", str(LLAMA), "--html", str(html))
    assert "llama.cpp does not log" in out
    assert "the first over the other" in out
    assert html.read_text(encoding="utf-8").startswith("<!doctype html>")
    out, _ = done("logs", own, "--vs", str(LLAMA), "--json")
    document = json.loads(out)
    mine, other = document["log"]["rows"][-1], document["vs"]["rows"][-1]
    ratio = document["ratios"][-1]
    assert ratio["tok_s"] == pytest.approx(mine["tok_s"]["p50"] / other["tok_s"]["p50"], rel=1e-3)
    assert (ratio["requests"], ratio["requests_vs"]) == (1, 4)


def test_standard_input_may_be_either_log(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "log", LINE)
    for arguments in (["-"], [path, "--vs=-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINE)))
        out, _ = done("logs", *arguments, "--json")
        assert "standard input" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "there is no log to read"),
        (["nowhere.log"], "log nowhere.log cannot be read"),
        (["-", "--vs=-"], "standard input can be read once only"),
        (["a.log", "--vs"], "vs names no log"),
        (["a.log", "--html", "nowhere/report.html"], "lies in no directory"),
        (["a.log", "--by", "colour"], "policy"),
        (["a.log", "--nope"], "unknown option --nope"),
    ],
)
def test_what_is_wrong_is_one_sentence(cli: Run, arguments: list[str], sentence: str) -> None:
    status, out, err = cli("logs", *arguments)
    assert (status, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_a_log_without_requests_is_said_to_have_none(done: Done, tmp_path: Path) -> None:
    line = b"2026-11-30 20:08:41,123 INFO copyahead.server.service: refused status=400 code=x"
    out, _ = done("logs", write(tmp_path / "log", line))
    assert "no request" in out
