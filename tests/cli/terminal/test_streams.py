"""Standard streams that are closed, full or take ASCII only: a status and one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.model

SILENT = {"serve", "wrong"}
"""Commands that print nothing to standard output, and end with status 2."""

FAULTS = {
    "full output": (">/dev/full", 1, "No space left on device"),
    "closed output": (">&-", 1, "it is closed"),
    "nobody reads": ("| true", 141, ""),
    "closed error": (">/dev/null 2>&-", 0, ""),
    "full error": (">/dev/null 2>/dev/full", 0, ""),
    "all closed": (">&- 2>&- <&-", 1, ""),
}


def run(redirection: str, out: Path, **variables: str) -> tuple[dict[str, int], str]:
    """The status of every command with these streams, and all that they said."""
    script = f'"{sys.executable}" -m tests.cli.every_command "{out}" {redirection}'
    done = subprocess.run(
        ["bash", "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, **variables},
        check=False,
    )
    words = done.stderr.decode(errors="replace")
    assert out.exists(), words
    return json.loads(out.read_text()), words


@pytest.mark.parametrize("fault", FAULTS)
def test_no_command_ends_in_a_traceback(fault: str, tmp_path: Path) -> None:
    redirection, expected, sentence = FAULTS[fault]
    statuses, words = run(redirection, tmp_path / "statuses")
    # There is no text on standard input.
    assert statuses.pop("generate --file -") in (1, 2)
    for name, status in statuses.items():
        assert status == (2 if name in SILENT else expected), (name, words)
    assert "Traceback" not in words
    assert "Exception ignored" not in words
    if sentence:
        assert words.count(sentence) == len(statuses) - len(SILENT)


def test_closed_input_is_no_text(tmp_path: Path) -> None:
    statuses, words = run("<&-", tmp_path / "statuses")
    assert statuses.pop("generate --file -") == 2
    assert "standard input cannot be read (it is closed)" in words
    assert {status for name, status in statuses.items() if name not in SILENT} == {0}
    assert "Traceback" not in words


@pytest.mark.parametrize(
    "variable", ["PYTHONIOENCODING=ascii", "LC_ALL=C", "PYTHONIOENCODING=latin-1"]
)
def test_output_that_takes_ascii_only(variable: str, tmp_path: Path) -> None:
    name, _, value = variable.partition("=")
    statuses, words = run("", tmp_path / "statuses", **{name: value})
    assert {status for name, status in statuses.items() if name not in SILENT} <= {0, 2}
    assert statuses["generate"] == statuses["replay"] == statuses["probe"] == 0
    assert "Traceback" not in words
    assert ("output takes " in words) == (name == "PYTHONIOENCODING")
