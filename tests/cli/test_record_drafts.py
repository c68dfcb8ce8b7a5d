"""`record-drafts` and `replay --drafts`: one after the other, over a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.backends.probe import search
from copyahead.cli import run
from copyahead.config import ModelOptions
from copyahead.traces.drafts import asking
from copyahead.traces.drafts.asking import Asker
from tests.cli.toys import Done, Run

CODE = "def area(width, height):\n    return width * height\n"


@pytest.fixture(autouse=True)
def unprobed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are loaded as they are asked for, and nothing is measured."""

    def load(path: Any, options: ModelOptions) -> LlamaBackend:
        return LlamaBackend(path, LlamaSettings.of(options))

    monkeypatch.setattr(search, "load", load)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "runs.jsonl"
    messages = [
        {"role": "user", "content": CODE},
        {"role": "assistant", "content": CODE},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": CODE * 2},
    ]
    path.write_text(json.dumps({"messages": messages}) + "\n")
    return path


@pytest.fixture
def command(trace: Path, tiny_models: dict[str, Path], tmp_path: Path) -> list[str]:
    model = str(tiny_models["plain"])
    options = ["--draft-model", model, "--threads", "1", "--draft-ctx", "64", "--depth", "5"]
    return ["record-drafts", str(trace), *options, "--output", str(tmp_path / "drafts.jsonl")]


def replay(done: Done, trace: Path, model: Path, drafts: Path, *more: str) -> list[dict[str, Any]]:
    out, _ = done(
        "replay", str(trace), "--tokenizer", str(model), "--drafts", str(drafts), "--json",
        "--cost", "0.1", *more,
    )  # fmt: skip
    rows: list[dict[str, Any]] = json.loads(out)["results"]
    return [row for row in rows if row["category"] != "all"]


def test_what_was_recorded_is_replayed_by_every_rule(
    done: Done, command: list[str], trace: Path, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    out, _ = done(*command, "--json")
    said = json.loads(out)
    assert (said["requests"], said["requests_wanted"], said["depth"]) == (2, 2, 5)
    model, drafts = tiny_models["plain"], tmp_path / "drafts.jsonl"
    rows = replay(done, trace, model, drafts, "--policy", "priced", "--draft-cost", "0.01,1")
    assert [(row["hybrid"], row["draft_cost"]) for row in rows] == [
        (None, None),
        *(
            (rule, cost)
            for cost in (0.01, 1.0)
            for rule in ("alone", "priced", "agree", "longer", "first")
        ),
    ]
    copies, alone, *_ = rows
    assert alone["emitted"] == copies["emitted"] == said["written_tokens"]
    assert alone["model_passes_per_round"] == 5.0
    # The random model is of no use: what is sure is that the price is charged.
    assert rows[6]["speedup"] < alone["speedup"] < copies["speedup"]
    rows = replay(
        done, trace, model, drafts, "--policy", "window", "--hybrid", "priced", "longer",
        "--draft-max", "2",
    )  # fmt: skip
    assert [row["policy"].split()[0] for row in rows] == ["window", "model", "window"]
    assert rows[1]["drafted_per_round"] == 2.0


def test_the_table_shows_what_the_draft_model_costs(
    done: Done, command: list[str], trace: Path, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    out, _ = done(*command, "--limit", "1")
    assert "in 1 requests, " in out
    arguments = ["replay", str(trace), "--tokenizer", str(tiny_models["plain"]), "--cost", "0.1"]
    drafts = str(tmp_path / "drafts.jsonl")
    page = tmp_path / "page.html"
    costs = ["--draft-cost", "0.01,0.1", "--html", str(page)]
    out, _ = done(*arguments, "--policy", "single", "--drafts", drafts, *costs)
    assert "single + model, first at 0.01" in page.read_text()
    assert "drafts of plain.gguf, context 64" in out
    assert "draft cost" in out
    assert "single + model, agree" in out
    out, _ = done(*arguments, "--policy", "single")
    assert "draft cost" not in out


def test_an_interrupt_keeps_what_is_done_and_the_command_goes_on(
    cli: Run, done: Done, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done(*command)
    whole = (tmp_path / "drafts.jsonl").read_bytes()
    (tmp_path / "drafts.jsonl").unlink()
    asked: list[int] = []

    class Interrupted(Asker):
        def ask(self, *arguments: Any) -> Any:
            asked.append(1)
            if len(asked) == 2:
                raise KeyboardInterrupt
            return super().ask(*arguments)

    monkeypatch.setattr(asking, "Asker", Interrupted)
    status, out, _ = cli(*command)
    assert status == 130
    assert "in 1 of 2 requests" in out
    assert "goes on from there" in out
    done(*command)
    assert (tmp_path / "drafts.jsonl").read_bytes() == whole
    assert len(asked) == 3


def test_the_drafts_of_another_trace_or_tokenizer(
    cli: Run, done: Done, command: list[str], trace: Path, tiny_models: dict[str, Path]
) -> None:
    done(*command)
    drafts = command[-1]
    trace.write_text(trace.read_text().replace("again", "once more"))
    model = str(tiny_models["plain"])
    status, _, err = cli("replay", str(trace), "--tokenizer", model, "--drafts", drafts)
    assert (status, err.count("\n")) == (2, 1)
    assert "recorded for another trace" in err
    status, _, err = cli(*command)
    assert status == 2
    assert "holds drafts of another trace" in err


@pytest.mark.model
def test_drafts_of_another_tokenizer(
    cli: Run, done: Done, command: list[str], trace: Path, bundled: Path
) -> None:
    done(*command)
    status, _, err = cli("replay", str(trace), "--drafts", command[-1])
    assert (status, err.count("\n")) == (2, 1)
    assert "plain.gguf, whose tokenizer is another" in err


WRONG = {
    "no output": (["record-drafts", "x"], "--output must name the file"),
    "no trace": (["record-drafts", "--output", "x"], "nothing to record"),
    "a short context": (
        ["record-drafts", "x", "--output", "x", "--draft-ctx", "64", "--depth", "32"],
        "--draft-ctx must be at least 4 times",
    ),
    "a depth": (["record-drafts", "x", "--output", "x", "--depth", "0"], "--depth must be from 1"),
    "no model": (
        ["record-drafts", "x", "--output", "x", "--draft-model", "no.gguf"],
        "--draft-model no.gguf does not exist",
    ),
    "no drafts": (["replay", "x", "--drafts", "none"], "drafts none cannot be read"),
    "a cost": (["replay", "x", "--drafts", "x", "--draft-cost", "a"], "--draft-cost must be a"),
    "a row's cost": (["replay", "x", "--draft-row-cost", "-1"], "--draft-row-cost must be from 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_sentence(cli: Run, name: str) -> None:
    arguments, expected = WRONG[name]
    status, _, err = cli(*arguments)
    assert (status, err.count("\n")) == (2, 1), err
    assert expected in err


@pytest.mark.parametrize(
    "option", [["--draft-cost", "0.2"], ["--hybrid", "first"], ["--draft-max", "3"]]
)
def test_what_is_said_of_drafts_needs_drafts(
    trace: Path, option: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(trace), *option]) == 2
    assert f"{option[0]} needs --drafts" in capfd.readouterr().err


def test_a_draft_model_that_is_none_is_named_by_its_flag(
    trace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "drafts.jsonl")
    model = ["--draft-model", str(tmp_path / "none.gguf")]
    assert run(["record-drafts", str(trace), *model, "--output", output]) == 2
    assert "--draft-model" in capfd.readouterr().err
