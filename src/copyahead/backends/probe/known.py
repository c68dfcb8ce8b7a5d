"""What was measured about models before, without measuring anything."""

from __future__ import annotations

from pathlib import Path

import msgspec

from copyahead.backends.llama_cpp import gguf
from copyahead.backends.probe import cache
from copyahead.backends.transformers import folder
from copyahead.errors import MissingExtraError
from copyahead.types import Exactness


class _Kept(msgspec.Struct):
    """What counts here of a `ProbeResult`, a file's or a folder's."""

    fingerprint: str
    library: str
    exactness: Exactness
    step_seconds: dict[int, float]

    def is_by(self, build: str) -> bool:
        """Whether this build of llama.cpp, or some torch, was measured."""
        return self.library == build or "torch" in self.library

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Greater is better: exact, then for more rows, then faster."""
        exact = self.exactness.level == "exact" and self.exactness.batched
        return exact, self.exactness.rows, -self.step_seconds.get(1, 0.0)


class Known:
    """The results that are kept, read once."""

    def __init__(self) -> None:
        self._best: dict[str, _Kept] = {}
        build = _build()
        for kept in cache.read_all(_Kept):
            # A quick look at the cost of two sizes proves nothing, nor does another build.
            # (A folder's names versions of torch and transformers, which take long to load.)
            if len(kept.step_seconds) <= 2 or not kept.is_by(build):
                continue
            best = self._best.setdefault(kept.fingerprint, kept)
            if kept.rank > best.rank:
                self._best[kept.fingerprint] = kept

    def exactness(self, path: Path) -> Exactness | None:
        """The best that was found for the model at `path`, with any settings; None where it was
        not probed, or cannot be read."""
        if not self._best:
            return None
        try:
            mark = folder.fingerprint(path) if path.is_dir() else gguf.fingerprint(path)
        except OSError:
            return None
        kept = self._best.get(mark)
        return None if kept is None else kept.exactness


def _build() -> str:
    try:
        return cache.library_build()
    except MissingExtraError:
        return ""
