"""Ollama's models: a manifest a name, and files that are called by their hashes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from copyahead.loading.catalog.entry import Entry, size_of

SYSTEM_FOLDER = Path("/usr/share/ollama/.ollama/models")
"""Where its service on Linux keeps them."""

_MODEL = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_BYTES = 1 << 20
"""Of a manifest; real ones have a few hundred."""


class _Layer(msgspec.Struct):
    mediaType: str  # noqa: N815
    digest: str
    size: int = 0


class _Manifest(msgspec.Struct):
    layers: list[_Layer]


def ollama() -> Iterator[Entry]:
    """What `manifests/REGISTRY/NAMESPACE/NAME/TAG` lists. A file outside `blobs` is never meant."""
    for root in _roots():
        manifests = root / "manifests"
        for path in _manifests(manifests):
            names = _names(path.relative_to(manifests).parts)
            blob, problem = _blob(root, path)
            size = size_of(blob) if blob is not None else 0
            yield Entry(
                path=path if blob is None else blob,
                source="Ollama",
                names=names,
                size=size,
                problem=problem,
            )


def _roots() -> list[Path]:
    named = os.environ.get("OLLAMA_MODELS", "")
    if named:
        return [Path(named).expanduser()]
    return [Path.home() / ".ollama" / "models", SYSTEM_FOLDER]


def _manifests(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.glob("*/*/*/*") if path.is_file())
    except OSError:
        return []


def _names(parts: tuple[str, ...]) -> tuple[str, ...]:
    """As `ollama run` takes them: what is usual is left out, and so is the tag `latest`."""
    registry, namespace, name, tag = parts
    if registry != "registry.ollama.ai":
        name = f"{registry}/{namespace}/{name}"
    elif namespace != "library":
        name = f"{namespace}/{name}"
    return (name, f"{name}:{tag}") if tag == "latest" else (f"{name}:{tag}",)


def _blob(root: Path, path: Path) -> tuple[Path | None, str]:
    """The model's file, and what is wrong with it or its manifest."""
    try:
        with path.open("rb") as file:
            manifest = msgspec.json.decode(file.read(_MAX_BYTES), type=_Manifest)
    except OSError as error:
        return None, f"its manifest cannot be read ({error.strerror})"
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None, "its manifest is damaged: ollama pull it again"
    layers = [layer for layer in manifest.layers if layer.mediaType == _MODEL]
    if not layers:
        return None, "its manifest names no model file"
    digest = layers[0].digest
    if _DIGEST.fullmatch(digest) is None:
        return None, "its manifest does not name a file by its hash: ollama pull it again"
    blob = root / "blobs" / digest.replace(":", "-")
    if not blob.is_file():
        return blob, "its file is missing: ollama pull it again"
    if layers[0].size and size_of(blob) != layers[0].size:
        return blob, "its file is cut short: ollama pull it again"
    return blob, ""
