"""One model that was found, and the files that make it up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_QUANTISATION = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|B?F16|F32|MXFP4\w*))$", re.IGNORECASE
)
_PROJECTOR = "mmproj"
"""Files with this in their names turn pictures into tokens, and write nothing."""


class Entry(msgspec.Struct, kw_only=True):
    """A model that was found."""

    path: Path
    """What to load: a GGUF file, of several parts the first, or a folder of transformers."""
    source: str
    """Whose folder it was found in."""
    names: tuple[str, ...]
    """What people may call it, the shortest first. Others may have some of these names too."""
    size: int = 0
    """Bytes of all its parts."""
    problem: str = ""
    """Why it cannot be loaded; empty where nothing is known against it."""
    name: str = ""
    """A name that means this model and no other; the path where there is none."""


class Weights(NamedTuple):
    """A GGUF file, or the parts of one that was split."""

    path: Path
    stem: str
    """Its name, without the number of a part."""
    size: int
    problem: str

    @property
    def quantisation(self) -> str:
        """What its name says of it, such as `Q4_K_M`; empty where it says nothing."""
        found = _QUANTISATION.search(self.stem)
        return found[1] if found else ""


def weights_of(paths: Iterable[Path]) -> Iterator[Weights]:
    """The models among files: projectors left out, and the parts of a split one counted once."""
    parts: dict[tuple[Path, str, int], dict[int, Path]] = {}
    for path in sorted(paths):
        if path.suffix.lower() != ".gguf" or _PROJECTOR in path.name.lower():
            continue
        found = _PART.fullmatch(path.name)
        if found is None:
            yield Weights(path, path.stem, size_of(path), _fault(path))
            continue
        whole = path.parent, found["stem"], int(found["count"])
        parts.setdefault(whole, {})[int(found["number"])] = path
    for (folder, stem, count), numbered in parts.items():
        missing = [number for number in range(1, count + 1) if number not in numbered]
        first = numbered.get(1, folder / f"{stem}-00001-of-{count:05}.gguf")
        faults = [fault for path in numbered.values() if (fault := _fault(path))]
        if missing:
            faults.append(f"part {missing[0]} of {count} is missing: fetch it again")
        size = sum(map(size_of, numbered.values()))
        yield Weights(first, stem, size, faults[0] if faults else "")


def size_of(path: Path) -> int:
    """Bytes of a file; 0 where it cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _fault(path: Path) -> str:
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return "it is empty: fetch it again" if empty else ""
