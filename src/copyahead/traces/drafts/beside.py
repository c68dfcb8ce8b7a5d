"""Recorded drafts in a replay: alone, and beside copies by each rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from copyahead.config import HybridRule
from copyahead.contracts import Drafter, Load
from copyahead.errors import ConfigError
from copyahead.traces.corpus import Corpus
from copyahead.traces.drafts.draft_file import RecordedDrafts
from copyahead.traces.drafts.recorded import DraftPrice, RecordedDrafter

if TYPE_CHECKING:
    from copyahead.drafters.lookup import LookupDrafter
    from copyahead.drafters.priced import PricedDrafter

ALONE: Literal["alone"] = "alone"

MAX_PRICE = 100.0


@dataclass(frozen=True)
class Beside:
    """How recorded drafts take part in a run."""

    rule: HybridRule | Literal["alone"]
    """The rule that chooses between them and copies; `alone`: there are no copies."""
    price: DraftPrice
    max_chain: int | None = None
    """Longest chain; what was recorded when None."""
    min_prob: float = 0.0
    """A chain ends before a less likely token."""

    def recorded(self, corpus: Corpus, drafts: RecordedDrafts) -> RecordedDrafter:
        """The drafter that stands for the draft model."""
        return RecordedDrafter(
            corpus, drafts, self.price, max_chain=self.max_chain, min_prob=self.min_prob
        )

    def drafter(self, copies: Drafter, recorded: RecordedDrafter, load: Load) -> Drafter:
        """What drafts in the run. Raises ConfigError where the rule has no use for such copies."""
        from copyahead.drafters.hybrid import HybridDrafter

        assert self.rule != ALONE, "there are no copies beside it"
        return HybridDrafter(
            cast("LookupDrafter | PricedDrafter", copies), recorded, self.rule, load
        )


def parse_draft_costs(texts: Sequence[str]) -> list[float]:
    """Numbers, several of which may be joined by commas. Raises ConfigError."""
    words = [word.strip() for text in texts for word in text.split(",") if word.strip()]
    if not words:
        raise ConfigError("draft_cost must name at least one cost, such as 0.1")
    return list(dict.fromkeys(_draft_cost(word) for word in words))


def _draft_cost(word: str) -> float:
    try:
        cost = float(word)
    except ValueError:
        cost = -1.0
    if not 0.0 <= cost <= MAX_PRICE:
        raise ConfigError(
            f"draft_cost must be a number from 0 to {MAX_PRICE:g}, in passes of the target, not "
            f"{word!r}"
        )
    return cost
