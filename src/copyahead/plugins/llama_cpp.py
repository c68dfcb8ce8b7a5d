"""Drafts for llama-cpp-python's high-level class.

    llm = Llama(model_path=..., draft_model=copyahead.plugins.llama_cpp.LookupDraftModel())

llama-cpp-python owns the loop. It verifies every draft by sampling row after row as it would
without one, so at any temperature each token takes one draw. See docs/llama-cpp-python.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.config import LookupOptions
from copyahead.errors import MissingExtraError
from copyahead.plugins.by_content import DraftsByContent
from copyahead.step_cost import StepCost

try:
    from llama_cpp.llama_speculative import LlamaDraftModel
except ImportError as error:
    raise MissingExtraError("llama-cpp-python", "llama") from error


class LookupDraftModel(LlamaDraftModel):  # type: ignore[misc]
    """A draft model that copies. One may serve several `Llama` objects, in any threads."""

    def __init__(
        self,
        policy: str = "priced",
        *,
        max_draft_tokens: int = 32,
        num_texts: int = 4,
        step_cost: StepCost | None = None,
    ) -> None:
        """`policy` as for `--policy`. `num_texts` texts are remembered and told apart at once.

        `step_cost` is T(n) of the model's passes; when not given it is measured as they run.
        Raises ConfigError where an option is wrong.
        """
        options = LookupOptions(policy=policy, max_draft_tokens=max_draft_tokens)
        self._max_draft_tokens = max_draft_tokens
        self._drafts = DraftsByContent(options, num_texts=num_texts, step_cost=step_cost)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """The draft for what follows `input_ids`; may be empty."""
        draft = self._drafts.draft(input_ids, self._max_draft_tokens)
        return np.array(draft.tokens, dtype=np.intc)
