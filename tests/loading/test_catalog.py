"""Models are found where people keep them, by the names that people give them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from copyahead.config import DraftModelOptions, ModelOptions
from copyahead.errors import ModelError
from copyahead.loading import find
from copyahead.loading.catalog import Entry, find_named, ollama, scan
from copyahead.loading.catalog.names import closest, matching
from copyahead.loading.draft_model import check_draft_model

VARIABLES = (
    "COPYAHEAD_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE",
    "OLLAMA_MODELS", "XDG_CACHE_HOME",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without models, and none that came with a package."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ollama, "SYSTEM_FOLDER", tmp_path / "no-such-service")
    monkeypatch.setattr("copyahead.backends.llama_cpp.gguf.BUNDLED_PACKAGE", "no-such-package")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tiny(tiny_models: dict[str, Path]) -> Path:
    return tiny_models["plain"]


def put(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    return target


def put_ollama(
    root: Path, name: str, source: Path, *, digest: str | None = None, registry: str = ""
) -> Path:
    """A manifest for `library/NAME/TAG`, and its file; the file's path."""
    data = source.read_bytes()
    found = f"sha256:{hashlib.sha256(data).hexdigest()}" if digest is None else digest
    model, _, tag = name.partition(":")
    folder = root / "manifests" / (registry or "registry.ollama.ai/library") / model
    folder.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:0", "size": 3},
        {"mediaType": "application/vnd.ollama.image.model", "digest": found, "size": len(data)},
    ]
    (folder / tag).write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    blob = root / "blobs" / found.replace(":", "-")
    return put(source, blob) if digest is None else blob


def put_hub(root: Path, repository: str, file: str, source: Path, revision: str = "abc") -> Path:
    """A file as Hugging Face's cache has it: a link into `blobs`."""
    folder = root / f"models--{repository.replace('/', '--')}"
    blob = put(source, folder / "blobs" / hashlib.sha256((revision + file).encode()).hexdigest())
    link = folder / "snapshots" / revision / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision)
    return link


def names_of(entries: list[Entry]) -> list[str]:
    return sorted(entry.name for entry in entries)


# Where


def test_each_place_is_searched(home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studio = put(tiny, home / ".lmstudio/models/acme/Heron-GGUF/Heron-Q8_0.gguf")
    older = put(tiny, home / ".cache/lm-studio/models/acme/Egret/egret.gguf")
    blob = put_ollama(home / ".ollama/models", "stork:7b", tiny)
    latest = put_ollama(home / ".ollama/models", "crane:latest", tiny)
    hub = put_hub(home / ".cache/huggingface/hub", "acme/Ibis-GGUF", "ibis-Q4_K_M.gguf", tiny)
    cached = put(tiny, home / ".cache/llama.cpp/acme_Rail-GGUF_rail-Q8_0.gguf")
    manifest = {"ggufFile": {"rfilename": "rail-Q8_0.gguf"}}
    (cached.parent / "manifest=acme=Rail-GGUF=latest.json").write_text(json.dumps(manifest))
    mine = put(tiny, home / "models/birds/coot.gguf")
    other = put(tiny, home / "more/teal.gguf")
    monkeypatch.setenv("COPYAHEAD_MODELS", f"~/models{os.pathsep}{other.parent}")
    by_name = {
        "Heron-Q8_0": studio, "acme/Heron-GGUF": studio, "acme/heron-gguf:q8_0": studio,
        "egret": older, "acme/Egret/egret.gguf": older,
        "stork:7b": blob, "stork": blob, "crane": latest, "crane:latest": latest,
        "acme/Ibis-GGUF": hub, "acme/Ibis-GGUF:Q4_K_M": hub, "ibis-q4": hub, "IBIS": hub,
        "acme/Rail-GGUF:latest": cached, "acme_Rail-GGUF_rail-Q8_0": cached, "rail": cached,
        "coot": mine, "birds/coot": mine, "coot.gguf": mine, "teal": other,
    }  # fmt: skip
    # The file of two names is the same, and so is listed once.
    assert blob == latest
    for name, path in by_name.items():
        assert find(name).samefile(path), name
    assert len(scan()) == 7
    for entry in scan():
        assert find(entry.name).samefile(entry.path), entry.name
        assert entry.size == tiny.stat().st_size


def test_variables_move_the_places(home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ollama(home / ".ollama/models", "old:1b", tiny)
    put_ollama(home / "elsewhere", "new:1b", tiny)
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    assert names_of(scan()) == ["new:1b"]
    for variable, root in (("HF_HOME", "a/hub"), ("HF_HUB_CACHE", "b"), ("XDG_CACHE_HOME", None)):
        name = variable.lower().replace("_", "-")
        put_hub(home / (root or "c/huggingface/hub"), "acme/x", f"{name}.gguf", tiny)
        with monkeypatch.context() as patch:
            patch.setenv(variable, str(home / (root or "c").partition("/")[0]))
            assert names_of(scan()) == sorted([name, "new:1b"])
    put(tiny, home / "d/one.gguf")
    monkeypatch.setenv("LLAMA_CACHE", str(home / "d"))
    assert names_of(scan()) == ["new:1b", "one"]


def test_another_registry_and_namespace(home: Path, tiny: Path) -> None:
    root = home / ".ollama/models"
    put_ollama(root, "Ibis-GGUF:Q4_K_M", tiny, registry="hf.co/acme")
    assert names_of(scan()) == ["hf.co/acme/Ibis-GGUF:Q4_K_M"]
    put_ollama(root, "ibis:1b", tiny, registry="registry.ollama.ai/someone")
    assert find("someone/ibis:1b") == find("hf.co/acme/Ibis-GGUF:Q4_K_M")


def test_the_revision_of_main_counts(home: Path, tiny: Path) -> None:
    hub = home / ".cache/huggingface/hub"
    put_hub(hub, "acme/x", "x.gguf", tiny, revision="bbb")
    put_hub(hub, "acme/x", "old.gguf", tiny, revision="bbb")
    newest = put_hub(hub, "acme/x", "x.gguf", tiny, revision="aaa")
    assert names_of(scan()) == ["old", "x"]
    assert find("x") == newest
    put_hub(hub, "acme/x", "x.gguf", tiny, revision="zzz")
    assert find("x").parts[-2] == "zzz"


def test_a_folder_of_transformers_is_a_model(home: Path, tiny: Path) -> None:
    hub = home / ".cache/huggingface/hub"
    config = home / "config.json"
    config.write_text('{"model_type": "llama"}')
    link = put_hub(hub, "acme/Stilt", "config.json", config)
    assert scan() == []  # A tokenizer that somebody fetched is none.
    put_hub(hub, "acme/Stilt", "model.safetensors", tiny)
    assert find("acme/stilt") == link.parent
    (entry,) = scan()
    assert entry.size == tiny.stat().st_size


def test_parts_count_once(home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPYAHEAD_MODELS", str(home / "m"))
    parts = [put(tiny, home / f"m/big-Q8_0-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
    put(tiny, home / "m/mmproj-big-f16.gguf")
    (entry,) = scan()
    assert (entry.name, entry.path) == ("big-Q8_0", parts[0])
    assert entry.size == 3 * tiny.stat().st_size
    assert find("big") == parts[0]
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"broken: part 2 of 3 is missing"):
        find("big")
    parts[0].unlink()
    (entry,) = scan()
    assert "part 1 of 3 is missing" in entry.problem


# By which name


def test_a_path_that_exists_always_wins(
    home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tiny, home / "m/heron.gguf")
    monkeypatch.setenv("COPYAHEAD_MODELS", str(home / "m"))
    assert find("heron") == home / "m/heron.gguf"
    assert find("./heron") == home / "m/heron.gguf"  # A path and a name are written alike.
    here = put(tiny, home / "heron")
    assert find("heron").resolve() == here
    here.unlink()
    here.mkdir()
    with pytest.raises(ModelError, match="is a directory without"):
        find("heron")
    with pytest.raises(ModelError, match="model /heron does not exist"):
        find("/heron")


def test_several_are_listed_and_a_longer_name_is_asked_for(
    home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYAHEAD_MODELS", str(home / "m"))
    for name in ("heron-1b", "heron-7b", "egret"):
        put(tiny, home / f"m/{name}.gguf")
    with pytest.raises(ModelError) as caught:
        find("heron")
    assert str(caught.value) == "model 'heron' may be heron-1b or heron-7b: give a longer name"
    for number in range(9):
        put(tiny, home / f"m/stork-{number}.gguf")
    with pytest.raises(ModelError, match=r"stork-5 or 3 more \(copyahead models lists them\)"):
        find("stork")
    # An exact name is meant, whatever others begin with it.
    put(tiny, home / "m/heron.gguf")
    assert find("heron").name == "heron.gguf"


def test_two_files_of_one_name_are_told_apart_by_their_paths(
    home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = put(tiny, home / "a/heron.gguf"), put(tiny, home / "b/heron.gguf")
    monkeypatch.setenv("COPYAHEAD_MODELS", f"{home / 'a'}{os.pathsep}{home / 'b'}")
    assert names_of(scan()) == [str(one), str(two)]
    with pytest.raises(ModelError, match=rf"may be {one} or {two}"):
        find("heron")
    two.unlink()
    two.symlink_to(one)
    assert find("heron") == one


def test_none_names_the_closest(home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="of a model in COPYAHEAD_MODELS"):
        find("heron")
    monkeypatch.setenv("COPYAHEAD_MODELS", str(home / "m"))
    for name in ("Qwen2.5-Coder-7B-Instruct-Q4_K_M", "gemma-3-270m-it"):
        put(tiny, home / f"m/{name}.gguf")
    for wrong, near in (("qwen2.5-codr", "Qwen2.5-Coder-7B"), ("gema", "gemma-3-270m-it")):
        with pytest.raises(ModelError, match=f"did you mean {near}"):
            find(wrong)
    with pytest.raises(ModelError, match="a name that copyahead models lists"):
        find("zzzzzz")
    assert matching("qwen2.5-coder:7b", scan())[0].name.startswith("Qwen2.5-Coder-7B")
    assert closest("", scan()) == []
    assert find_named("::") is None


def test_a_draft_model_has_a_name_too(
    home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tiny, home / "m/heron-1b.gguf")
    put(tiny, home / "m/heron-7b.gguf")
    monkeypatch.setenv("COPYAHEAD_MODELS", str(home / "m"))
    target = find("heron-7b")
    check_draft_model(target, ModelOptions(), DraftModelOptions(draft_model="heron-1b"))
    with pytest.raises(ModelError, match=r"^draft_model 'heron' may be"):
        check_draft_model(target, ModelOptions(), DraftModelOptions(draft_model="heron"))


# What is broken, or means harm


@pytest.mark.parametrize(
    "digest",
    ["sha256:../../../secret", "../secret", "sha256-" + "0" * 64, "sha256:" + "0" * 63 + "\n", ""],
)
def test_a_manifest_never_leads_out_of_the_blobs(home: Path, tiny: Path, digest: str) -> None:
    root = home / ".ollama/models"
    put(tiny, home / "secret")
    put(tiny, home / ".ollama/secret")
    put_ollama(root, "evil:1b", tiny, digest=digest)
    (entry,) = scan()
    assert root / "manifests" in entry.path.parents
    assert "does not name a file by its hash" in entry.problem
    with pytest.raises(ModelError, match="broken"):
        find("evil:1b")


MANIFESTS: dict[str, Any] = {
    "its manifest is damaged": "{",
    "its manifest names no model": {"layers": []},
    "its manifest is damaged: ollama": {"layers": [{"digest": 3}]},
    "its file is missing": {
        "layers": [
            {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + "a" * 64}
        ]
    },
}


@pytest.mark.parametrize("reason", MANIFESTS)
def test_a_broken_manifest_is_an_entry_with_the_reason(home: Path, reason: str) -> None:
    path = home / ".ollama/models/manifests/registry.ollama.ai/library/heron/1b"
    path.parent.mkdir(parents=True)
    content = MANIFESTS[reason]
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    (entry,) = scan()
    assert (entry.name, entry.source) == ("heron:1b", "Ollama")
    assert entry.problem.startswith(reason)


def test_a_file_that_was_not_fetched_whole(home: Path, tiny: Path) -> None:
    blob = put_ollama(home / ".ollama/models", "heron:1b", tiny)
    blob.write_bytes(blob.read_bytes()[:-1])
    link = put_hub(home / ".cache/huggingface/hub", "acme/x", "x.gguf", tiny)
    link.resolve().unlink()
    problems = {entry.name: entry.problem for entry in scan()}
    assert "cut short" in problems["heron:1b"]
    assert "No such file" in problems["x"]


def test_what_is_whole_goes_before_what_is_broken(
    home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYAHEAD_MODELS", str(home / "m"))
    put(tiny, home / "m/heron-a.gguf")
    (home / "m/heron-b.gguf").touch()
    assert find("heron").name == "heron-a.gguf"
    with pytest.raises(ModelError, match="it is empty"):
        find("heron-b")


def test_links_in_a_circle_end(home: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tiny, home / "m/a/heron.gguf")
    (home / "m/a/again").symlink_to(home / "m")
    monkeypatch.setenv("COPYAHEAD_MODELS", str(home / "m"))
    assert names_of(scan()) == ["heron"]
