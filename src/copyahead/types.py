"""The nouns that every part of copyahead shares.

Nothing here computes anything, and nothing here imports an engine: a module that only
talks *about* drafts and requests needs this file alone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Token = int
"""A token id of the model's vocabulary."""


class Source(StrEnum):
    """Where a draft was copied from."""

    PROMPT = "prompt"
    OUTPUT = "output"
    PREDICTION = "prediction"
    SHARED = "shared"
    MODEL = "model"
    GRAMMAR = "grammar"


OWN_SOURCES = frozenset({Source.PROMPT, Source.OUTPUT, Source.PREDICTION})
"""Text that the request itself has brought or written."""


class FinishReason(StrEnum):
    """Why a request ended, in the words of the OpenAI API."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Draft(msgspec.Struct, frozen=True):
    """The tokens proposed for one round of one request. May be empty.

    A frozen struct rather than a dataclass: one is made every round, and this is
    ten times cheaper to make.
    """

    tokens: tuple[Token, ...] = ()
    """The proposed tokens, in order."""
    source: Source | None = None
    """Where they were copied from; None when there are none."""
    match_length: int = 0
    """How many of the history's last tokens equal those before the copied position."""
    survivals: tuple[float, ...] = ()
    """`survivals[j]`: the estimated probability that `tokens[:j + 1]` are all accepted.

    Empty when the policy fixes lengths itself: such a draft takes no part in the sharing
    out of a batch's rows, it is only capped.
    """
    origin: int = -1
    """Index in the searched history of the first copied token; -1 when there is none."""
    parts: tuple[tuple[int, Source], ...] = ()
    """Where another source begins: position and source of every part after the first."""
    draft_probs: tuple[npt.NDArray[np.float32] | None, ...] = ()
    """What each token was drawn from, for rejection; None for a token that is a function of the
    past, and past the end. Whether a drawn token is in the draft never hangs on its value."""

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, count: int) -> Draft:
        """The same draft, cut to its first `count` tokens (all of them if it has fewer)."""
        if count >= len(self.tokens):
            return self
        if count <= 0:
            return NO_DRAFT
        return Draft(
            tokens=self.tokens[:count],
            source=self.source,
            match_length=self.match_length,
            survivals=self.survivals[:count],
            origin=self.origin,
            parts=tuple(part for part in self.parts if part[0] < count) if self.parts else (),
            draft_probs=self.draft_probs[:count],
        )

    def source_at(self, position: int) -> Source | None:
        """Where the token at `position` comes from."""
        found = self.source
        for start, source in self.parts:
            if start > position:
                break
            found = source
        return found

    def probs_at(self, position: int) -> npt.NDArray[np.float32] | None:
        """What the token at `position` was drawn from, if it was drawn."""
        return self.draft_probs[position] if position < len(self.draft_probs) else None


NO_DRAFT = Draft()
"""The empty draft: its round is a plain step."""


class Exactness(msgspec.Struct, frozen=True):
    """What a probe measured about passes over several rows (see docs/exactness.md)."""

    level: str
    """`exact` or `near`."""
    rows: int
    """Rows up to which a pass gave logits bit-identical to one-row passes; at least 1."""
    max_abs_diff: float
    """Largest absolute difference of a logit over all probed rows; 0.0 when exact."""
    batched: bool = False
    """Whether chunked prefill and several sequences in one pass were bit-identical too."""

    def __str__(self) -> str:
        if self.level == "exact":
            return f"exact up to {self.rows} rows"
        return f"near (max |Δlogit| {self.max_abs_diff:.2g}, exact up to {self.rows} rows)"
