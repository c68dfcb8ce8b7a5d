"""What a command says while a probe or the kernels keep it waiting."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from copyahead.backends.probe import cache, search
from copyahead.backends.probe.measure import Measurement, Stage
from tests.cli.toys import Run, backend

STAGES = (
    Stage("loading the model"),
    Stage("reading 736 tokens"),
    Stage("timing passes", 200.0),
)


@pytest.fixture(autouse=True)
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement that goes through its stages and finds the same at once."""
    found = Measurement(
        prefix=736,
        rows=260,
        max_abs_diff=0.0,
        batched=True,
        step_seconds={1: 0.01, 16: 0.02},
        spread=0.4,
        any_threads=True,
        capabilities=backend().capabilities,
    )
    lines = "\n".join(msgspec.json.encode(line).decode() for line in (*STAGES, found))
    program = tmp_path / "said.py"
    program.write_text(f"print({lines!r})")
    monkeypatch.setattr(search, "PROGRAM", (str(program),))
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    cache._say_once.cache_clear()


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Run) -> None:
    # `cli` takes the variables away: this one is for the test.
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))


def test_every_stage_of_a_probe_is_a_line(cli: Run, at: None, tiny_models: dict[str, Path]) -> None:
    status, out, err = cli("probe", str(tiny_models["plain"]))
    assert status == 0, err
    lines = err.splitlines()
    assert lines[0].startswith("measuring how exact and how fast passes of plain.gguf")
    assert "minutes for one of some billion weights" in lines[0]
    assert lines[1:3] == ["loading the model", "reading 736 tokens"]
    assert "timing passes; about 3 min to go" in lines
    assert any(line.startswith("measured in ") for line in lines)
    assert "unsteady: passes of one size differed by 40%" in out
    # The second time it is known.
    status, out, err = cli("probe", str(tiny_models["plain"]))
    assert (status, err) == (0, "")
    assert "unsteady: " in out


def test_a_cache_that_cannot_be_written_is_said_once(
    cli: Run, at: None, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("in the way")
    status, out, err = cli("probe", str(tiny_models["plain"]))
    assert status == 0
    assert "exact up to 260 rows" in out
    assert err.count("what was measured cannot be kept in ") == 1
    assert f"set {cache.CACHE_VARIABLE} to a directory that can be written" in err
