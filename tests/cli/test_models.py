"""`copyahead models`, and names in the place of paths."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from copyahead.backends.llama_cpp.gguf import fingerprint, read_header
from copyahead.backends.probe import cache, known
from copyahead.cli.models import size_text
from copyahead.errors import ModelError
from copyahead.types import Exactness
from tests.cli.toys import Done, Run


@pytest.fixture
def folder(tmp_path: Path, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the tiny models in a folder of the user's, and nothing else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COPYAHEAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("copyahead.backends.llama_cpp.gguf.BUNDLED_PACKAGE", "no-such-package")
    for name in ("HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "OLLAMA_MODELS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("copyahead.loading.catalog.ollama.SYSTEM_FOLDER", tmp_path / "none")
    models = tmp_path / "models"
    models.mkdir()
    for name in ("plain", "recurrent"):
        shutil.copy(tiny_models[name], models / f"{name}-Q8_0.gguf")
    return models


@pytest.fixture
def listed(done: Done, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The rows of `copyahead models --json`, by name."""

    def call() -> dict[str, Any]:
        monkeypatch.setenv("COPYAHEAD_MODELS", str(folder))
        out, _ = done("models", "--json")
        return {row["name"]: row for row in json.loads(out)["models"]}

    return call


def probed(path: Path, level: str, rows: int, *, library: str | None = None, sizes: int = 5) -> Any:
    """A result as a probe keeps it, of which only what counts here is real."""
    return msgspec.convert(
        {
            "fingerprint": fingerprint(path),
            "library": cache.library_build() if library is None else library,
            "exactness": Exactness(level=level, rows=rows, max_abs_diff=0.0, batched=True),
            "step_seconds": dict.fromkeys(range(1, sizes + 1), 0.01),
        },
        known._Kept,
    )


def test_what_is_there_is_listed(listed: Any, folder: Path, tiny_models: dict[str, Path]) -> None:
    rows = listed()
    assert set(rows) == {"plain-Q8_0", "recurrent-Q8_0"}
    assert rows["plain-Q8_0"] == {
        "name": "plain-Q8_0",
        "path": str(folder / "plain-Q8_0.gguf"),
        "source": "COPYAHEAD_MODELS",
        "size": tiny_models["plain"].stat().st_size,
        "quantisation": "Q8_0",
        "architecture": "llama",
        "context": 2048,
        "exactness": None,
        "problem": None,
    }
    assert rows["recurrent-Q8_0"]["architecture"] == "mamba"


def test_the_best_that_was_probed_is_told(listed: Any, folder: Path) -> None:
    path = folder / "plain-Q8_0.gguf"
    cache.write("quick", probed(path, "exact", 1000, sizes=2))
    cache.write("old", probed(path, "exact", 999, library="0.0.1+12345678"))
    assert listed()["plain-Q8_0"]["exactness"] is None
    cache.write("a", probed(path, "near", 500))
    assert listed()["plain-Q8_0"]["exactness"]["level"] == "near"
    cache.write("b", probed(path, "exact", 65))
    cache.write("c", probed(path, "near", 400))
    assert listed()["plain-Q8_0"]["exactness"] == {
        "level": "exact", "rows": 65, "max_abs_diff": 0.0,
    }  # fmt: skip
    assert listed()["recurrent-Q8_0"]["exactness"] is None


def test_a_broken_file_is_a_row_with_the_reason(listed: Any, done: Done, folder: Path) -> None:
    whole = (folder / "plain-Q8_0.gguf").read_bytes()
    (folder / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "head.gguf").write_bytes(whole[:100])
    (folder / "text.gguf").write_text("no model at all")
    (folder / "empty.gguf").touch()
    rows = listed()
    assert rows["cut"]["problem"].startswith("it is cut short: fetch")
    assert "cut short or damaged" in rows["head"]["problem"]
    assert rows["text"]["problem"].startswith("it is not a GGUF file")
    assert rows["empty"]["problem"].startswith("it is empty")
    assert rows["plain-Q8_0"]["problem"] is None
    out, err = done("models")
    assert err == ""
    assert out.count("broken: ") == 4
    assert "not probed" in out


def test_hostile_heads_end_in_a_sentence(tmp_path: Path, folder: Path) -> None:
    """Every cut of a head, and lengths that no file has."""
    whole = (folder / "plain-Q8_0.gguf").read_bytes()
    path = tmp_path / "hostile.gguf"
    huge = (2**64 - 1).to_bytes(8, "little")
    variants = [whole[:length] for length in range(0, 4000, 37)]
    variants += [whole[:at] + huge + whole[at + 8 :] for at in range(8, 2000, 13)]
    for data in variants:
        path.write_bytes(data)
        with suppress(ModelError):
            read_header(path)


def test_names_are_text_whatever_they_look_like(
    listed: Any, done: Done, folder: Path, tiny_models: dict[str, Path]
) -> None:
    shutil.copy(tiny_models["plain"], folder / "[red]x\x1b[31m.gguf")
    assert "[red]x\x1b[31m" in listed()
    out, _ = done("models")
    assert "[red]x\N{REPLACEMENT CHARACTER}[31m" in out


def test_none_says_what_to_do(done: Done, folder: Path) -> None:
    out, err = done("models")
    assert out == ""
    assert "set COPYAHEAD_MODELS" in err
    assert json.loads(done("models", "--json")[0]) == {"models": []}


def test_commands_take_names(cli: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPYAHEAD_MODELS", str(folder))
    for command in ("generate", "compare", "probe", "serve", "chat", "demo"):
        text = ["--prompt", "a"] if command == "generate" else []
        status, _, err = cli(command, "q8", *text)
        assert status == 2
        assert "model 'q8' may be plain-Q8_0 or recurrent-Q8_0: give a longer name" in err
    trace = folder / "trace.jsonl"
    trace.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    )
    status, _, err = cli("replay", str(trace), "--tokenizer", "q8")
    assert "model 'q8' may be" in err
    status, _, err = cli("generate", "plain", "--draft-model", "q8", "--prompt", "a")
    assert "copyahead: --draft-model 'q8' may be" in err
    status, _, err = cli("record-drafts", str(folder), "--draft-model", "q8", "--output", "x")
    assert "copyahead: --draft-model 'q8' may be" in err


def test_a_shell_completes_names(folder: Path) -> None:
    """As the script that `--install-completion` writes asks for them."""
    (folder / "broken.gguf").touch()
    environment = {
        "HOME": str(folder.parent),
        "COPYAHEAD_MODELS": str(folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    asked = [sys.executable, "-m", "copyahead", "__complete", "serve", ""]
    answered = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    lines = answered.stdout.splitlines()
    assert "plain-Q8_0\tCOPYAHEAD_MODELS" in lines
    assert not any(line.startswith("broken") for line in lines)


@pytest.mark.parametrize(
    ("size", "text"), [(999, "1 kB"), (98_362_432, "98.4 MB"), (4_700_000_000, "4.7 GB")]
)
def test_sizes_read_as_people_say_them(size: int, text: str) -> None:
    assert size_text(size) == text
