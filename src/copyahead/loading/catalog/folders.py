"""Where people keep models, folder by folder. A folder that is not there holds none."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from copyahead.backends.llama_cpp.gguf import bundled_model
from copyahead.backends.transformers.folder import is_folder
from copyahead.errors import MissingExtraError
from copyahead.loading.catalog.entry import Entry, Weights, size_of, weights_of

MODELS_VARIABLE = "COPYAHEAD_MODELS"

_DEPTH = 6
"""Folders are searched so far down."""
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""What a folder of transformers holds beside its `config.json`."""


def bundled() -> Iterator[Entry]:
    """The model that comes with the package, where it was installed."""
    try:
        path = bundled_model()
    except MissingExtraError:
        return
    for weights in weights_of([path]):
        yield _entry(weights, "bundled", weights.stem)


def named_by_user() -> Iterator[Entry]:
    """What `COPYAHEAD_MODELS`, a list of folders, holds."""
    for text in os.environ.get(MODELS_VARIABLE, "").split(os.pathsep):
        if text.strip():
            root = Path(text.strip()).expanduser()
            for path in _folders_of_transformers(root):
                yield _folder(path, MODELS_VARIABLE, path.name, _below(root, path))
            for weights in weights_of(_files(root)):
                yield _entry(weights, MODELS_VARIABLE, *_file_names(root, weights))


def lm_studio() -> Iterator[Entry]:
    """LM Studio's folders, `PUBLISHER/REPOSITORY/FILE.gguf`."""
    for root in _once(_home(".lmstudio", "models"), _home(".cache", "lm-studio", "models")):
        for weights in weights_of(_files(root)):
            repository = _below(root, weights.path.parent)
            names = _repository_names(repository, weights)
            yield _entry(weights, "LM Studio", *names, *_file_names(root, weights))


def hugging_face() -> Iterator[Entry]:
    """The cache of Hugging Face, `models--ORG--NAME/snapshots/REVISION/...`."""
    root = _hub()
    for repository in _subfolders(root):
        if not repository.name.startswith("models--"):
            continue
        name = repository.name.removeprefix("models--").replace("--", "/")
        seen: set[Path] = set()
        for number, snapshot in enumerate(_snapshots(repository)):
            if number == 0 and is_folder(snapshot) and _has_weights(snapshot):
                yield _folder(snapshot, "Hugging Face", name)
            for weights in weights_of(_files(snapshot)):
                if (place := weights.path.relative_to(snapshot)) in seen:
                    continue
                seen.add(place)
                yield _entry(weights, "Hugging Face", weights.stem, *_in(name, weights))


def llama_cpp() -> Iterator[Entry]:
    """llama.cpp's own cache, whose files are called `ORG_NAME_FILE.gguf`."""
    caches = _home("Library", "Caches") if sys.platform == "darwin" else _xdg_cache()
    root = _variable("LLAMA_CACHE") or caches / "llama.cpp"
    called = _manifest_names(root)
    for weights in weights_of(_files(root, depth=1)):
        yield _entry(weights, "llama.cpp", weights.stem, *called.get(weights.path.name, ()))


def _manifest_names(root: Path) -> dict[str, tuple[str, ...]]:
    """By its file's name, what a model was fetched as: `manifest=ORG=NAME=TAG.json` says so."""
    found: dict[str, tuple[str, ...]] = {}
    for path in _matching(root, "manifest=*.json"):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=_Manifest).ggufFile.rfilename
            _, organisation, name, tag = path.stem.split("=")
        except (OSError, ValueError, msgspec.MsgspecError):
            continue
        stored = f"{organisation}_{name}_{file.replace('/', '_')}"
        repository = f"{organisation}/{name}"
        found[stored] = (*found.get(stored, ()), f"{repository}:{tag}", repository)
    return found


class _ManifestFile(msgspec.Struct):
    rfilename: str


class _Manifest(msgspec.Struct):
    ggufFile: _ManifestFile  # noqa: N815


def _entry(weights: Weights, source: str, *names: str) -> Entry:
    return Entry(
        path=weights.path,
        source=source,
        names=tuple(dict.fromkeys(names)),
        size=weights.size,
        problem=weights.problem,
    )


def _folder(path: Path, source: str, *names: str) -> Entry:
    size = sum(size_of(file) for pattern in _WEIGHTS for file in _matching(path, pattern))
    return Entry(path=path, source=source, names=tuple(dict.fromkeys(names)), size=size)


def _in(repository: str, weights: Weights) -> Iterator[str]:
    """What a file of a repository is called with it, as `ORG/NAME:QUANTISATION` too."""
    if weights.quantisation:
        yield f"{repository}:{weights.quantisation}"
    yield f"{repository}/{weights.stem}"
    yield repository


def _repository_names(repository: str, weights: Weights) -> Iterator[str]:
    yield weights.stem
    if repository:
        yield from _in(repository, weights)


def _file_names(root: Path, weights: Weights) -> Iterator[str]:
    yield weights.stem
    below = _below(root, weights.path.parent)
    if below:
        yield f"{below}/{weights.stem}"


def _below(root: Path, path: Path) -> str:
    below = path.relative_to(root).as_posix()
    return "" if below == "." else below


def _hub() -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if (named := _variable(name)) is not None:
            return named
    return (_variable("HF_HOME") or _xdg_cache() / "huggingface") / "hub"


def _snapshots(repository: Path) -> list[Path]:
    """The revisions that were fetched, the one that `main` means first."""
    try:
        main = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        main = ""
    found = _subfolders(repository / "snapshots")
    return sorted(found, key=lambda path: (path.name != main, path))


def _has_weights(folder: Path) -> bool:
    return any(True for pattern in _WEIGHTS for _ in _matching(folder, pattern))


def _folders_of_transformers(root: Path) -> Iterator[Path]:
    for folder, _, names in _walk(root, _DEPTH):
        if "config.json" in names and folder != root and _has_weights(folder):
            yield folder


def _files(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    for folder, _, names in _walk(root, depth):
        yield from (folder / name for name in names)


def _walk(root: Path, depth: int) -> Iterator[tuple[Path, list[str], list[str]]]:
    """As `os.walk`, links followed, but no folder twice and not endlessly far down."""
    seen: set[str] = set()
    base = len(root.parts)
    for text, folders, names in os.walk(root, followlinks=True):
        folder, real = Path(text), os.path.realpath(text)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        if len(folder.parts) - base >= depth - 1:
            folders.clear()
        folders.sort()
        yield folder, folders, names


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _matching(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _once(*folders: Path) -> Iterator[Path]:
    """Each of the folders, but not what is a link to one before it."""
    yield from {os.path.realpath(folder): folder for folder in reversed(folders)}.values()


def _home(*names: str) -> Path:
    return Path.home().joinpath(*names)


def _xdg_cache() -> Path:
    return _variable("XDG_CACHE_HOME") or _home(".cache")


def _variable(name: str) -> Path | None:
    text = os.environ.get(name, "")
    return Path(text).expanduser() if text else None
