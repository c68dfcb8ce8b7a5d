"""Drafts for transformers' own assisted decoding, for those who keep its loop.

It takes one row at a time, and at temperature > 0 it draws for all rows of a pass at once, so that
a sample is not the one that plain decoding draws. `copyahead.generate` has neither limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.generation.candidate_generator import CandidateGenerator

from copyahead.config import MAX_DRAFT_TOKENS, LookupOptions
from copyahead.errors import ConfigError
from copyahead.plugins.by_content import DraftsByContent
from copyahead.step_cost import StepCost


class LookupCandidates(CandidateGenerator):  # type: ignore[misc]
    """Candidates that are copied. One may serve any number of calls, one after the other."""

    def __init__(
        self,
        policy: str = "priced",
        *,
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        max_length: int | None = None,
        num_texts: int = 4,
        step_cost: StepCost | None = None,
    ) -> None:
        """`policy` as for `--policy`. No candidates go past `max_length`, prompt included.

        `num_texts` texts are remembered and told apart. `step_cost` is T(n) of the model's passes;
        measured as they run when not given. Raises ConfigError where an option is wrong.
        """
        self._options = LookupOptions(policy=policy, max_draft_tokens=max_draft_tokens)
        self._max_length = max_length
        self._drafts = DraftsByContent(self._options, num_texts=num_texts, step_cost=step_cost)

    def get_candidates(self, input_ids: Any, **kwargs: Any) -> tuple[Any, None]:
        """`input_ids`, shape `[1, length]`, with a draft behind them."""
        if input_ids.shape[0] != 1:
            raise ConfigError("assisted decoding takes one row; use custom_generate for a batch")
        limit = self._options.max_draft_tokens
        if self._max_length is not None:
            limit = min(limit, max(0, self._max_length - input_ids.shape[1] - 1))
        draft = self._drafts.draft(input_ids[0].cpu().numpy().astype(np.int32), limit)
        drafted = torch.tensor([draft.tokens], dtype=input_ids.dtype, device=input_ids.device)
        return torch.cat([input_ids, drafted.view(1, len(draft))], dim=-1), None

    def update_candidate_strategy(self, input_ids: Any, scores: Any, num_matches: int) -> None:
        """Nothing to do: what was kept shows in the ids of the next call."""
