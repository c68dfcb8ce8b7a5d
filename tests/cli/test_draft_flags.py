"""The flags of a draft model: what is refused, and what commands show of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from copyahead import loading
from copyahead.config import DraftModelOptions, LookupOptions
from copyahead.drafters.draft_model import DraftModelCard
from copyahead.drafters.model import ModelDrafter
from copyahead.drafters.pass_seconds import PassSeconds
from copyahead.engine import Engine
from tests.cli.toys import LINE, Done, Run, backend

CARD = DraftModelCard("toy.gguf", 47_000_000, 0.2, 9.6, 1641)


@pytest.fixture
def drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands get a fake engine with a draft model that writes what the model writes."""

    def load(path: Any = None, *, lookup: Any, draft: DraftModelOptions, **_: Any) -> Engine:
        loading.check_policy(lookup, draft)
        drafter = ModelDrafter(backend(), draft, seconds=PassSeconds({1: 1e-9, 2: 2e-9}, 128))
        engine = loading.make_engine(
            backend(), lookup=lookup or LookupOptions(), draft=draft, model_drafter=drafter
        )
        engine.draft_model = CARD
        return engine

    monkeypatch.setattr(loading, "load", load)


@pytest.mark.parametrize("command", ["generate", "compare", "serve"])
@pytest.mark.parametrize(
    "flag", ["--draft-max 4", "--hybrid agree", "--draft-min-prob 0.5", "--draft-sample"]
)
def test_a_flag_of_a_draft_model_needs_one(command: str, flag: str, cli: Run) -> None:
    status, out, err = cli(command, *flag.split())
    assert (status, out) == (2, "")
    name = flag.split()[0]
    assert err.startswith(f"copyahead: {name} needs --draft-model: name a small model")


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_a_draft_model_that_is_not_there_is_named(
    command: str, cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No model of the user's has a name like it.
    monkeypatch.setenv("HOME", str(tmp_path))
    text = ["--prompt", LINE] if command == "generate" else []
    status, _, err = cli(command, *text, "--draft-model", "missing.gguf")
    assert status == 2
    assert "--draft-model missing.gguf does not exist: give the path of a GGUF file" in err


def test_a_preset_needs_another_rule(cli: Run) -> None:
    status, _, err = cli(
        "generate", "--prompt", LINE, "--draft-model", "x.gguf", "--policy", "window"
    )
    assert status == 2
    assert "hybrid priced needs copies that know their chances, and policy window does not" in err


def test_generate_says_what_the_draft_model_costs_and_did(drafted: None, done: Done) -> None:
    text = ["--prompt", LINE * 2, "--draft-model", "toy.gguf", "--no-lookup"]
    out, err = done("generate", *text, "--stats", "--max-tokens", "60")
    assert out == (LINE * 2)[:60] + "\n"
    assert "draft model: toy.gguf, T_draft(1) = 0.20 steps, 47 MB; 1,000 tokens" in err
    assert "draft model's passes: " in err
    out, _ = done("generate", *text, "--json", "--max-tokens", "60")
    stats = json.loads(out)["stats"]
    assert stats["by_source"]["model"]["accepted"] > 20
    assert stats["draft_model"]["passes"] > 20


def test_compare_runs_each_side_alone_and_both(drafted: None, done: Done) -> None:
    arguments = ("compare", "--workload", "short", "--draft-model", "toy.gguf", "--max-tokens", "9")
    out, _ = done(*arguments, "--json")
    document = json.loads(out)
    assert document["draft_model"]["name"] == "toy.gguf"
    modes = [result["policy"] for result in document["results"]]
    assert modes == ["priced+off", "model", "priced+priced"]
    assert document["results"][1]["num_model_passes"] > 0
    assert document["results"][0]["num_model_passes"] == 0
    assert all(result["identical"] for result in document["results"])
    out, _ = done(*arguments, "--policy", "priced+agree", "priced+first")
    for shown in ("priced+off", "model", "priced+agree", "priced+first", "its passes", "toy.gguf"):
        assert shown in out


def test_compare_without_a_draft_model_refuses_its_modes(cli: Run) -> None:
    status, _, err = cli("compare", "--policy", "priced+agree")
    assert status == 2
    assert "priced+agree" in err
