"""Where the text of an answer came from: by round, and by what its tokens were copied from."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from copyahead.types import Draft, Source


class Round(msgspec.Struct, eq=False):
    """One round of one answer, as far as it is known: its draft when it is verified, the rest when
    it is settled. Two rounds are never equal."""

    match_length: int = 0
    """How many tokens before the draft equal those before the place that it was copied from."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @classmethod
    def of(cls, draft: Draft) -> Round:
        """The round that verifies `draft`."""
        return cls(draft.match_length, len(draft))


Origin = tuple[Source | None, Round]
"""Where a token was drafted from, None where the model alone chose it; and its round."""


class Stretch(msgspec.Struct, frozen=True):
    """Text of one round whose tokens have one source."""

    text: str
    source: Source | None = None
    """None: not drafted, or not as it was kept."""
    match_length: int = 0
    """Of the copy; 0 where nothing was copied, as in text of a draft model or of a grammar."""
    num_draft_tokens: int = 0
    """Drafted tokens of the whole round."""
    num_accepted_tokens: int = 0
    """Those of them that were kept."""


_NOT_COPIED = frozenset({None, Source.MODEL, Source.GRAMMAR})


def stretches(runs: Iterable[tuple[str, Origin | None]]) -> tuple[Stretch, ...]:
    """`runs` of text, each after its origin; to be called when their rounds are settled."""
    return tuple(_stretch(text, origin) for text, origin in runs)


def _stretch(text: str, origin: Origin | None) -> Stretch:
    if origin is None:
        return Stretch(text)
    source, of_round = origin
    return Stretch(
        text,
        source,
        0 if source in _NOT_COPIED else of_round.match_length,
        of_round.num_draft_tokens,
        of_round.num_accepted_tokens,
    )
