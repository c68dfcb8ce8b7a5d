"""Where one answer stands in its grammar: what is legal next, and how much of a draft is.

The mask is applied at every verified row, and the matcher takes only emitted tokens, so it
never has to go back. A draft is cut at its first illegal token before it costs a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from copyahead.contracts import Logits
from copyahead.errors import RequestError
from copyahead.types import Draft, Source, Token

STUCK = "NoExtension"
"""What llguidance's error begins with where no token may come next."""


class GrammarState:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> GrammarState:
        """Another answer at the same place of the same grammar."""
        return GrammarState(self._matcher.deep_copy(), self._vocab_size)

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and allows nothing more."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: Logits) -> None:
        """Set the logits of all tokens that are illegal here to -inf, in place."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        legal = np.unpackbits(bits, bitorder="little", count=len(bits) * 8)[: self._vocab_size]
        self._check()
        logits[: len(legal)][legal == 0] = -np.inf
        logits[len(legal) :] = -np.inf

    def accept(self, token: Token) -> None:
        """Take an emitted token."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            # A matcher that failed calls itself stopped: that is not the end of the grammar.
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = reason_of(self._matcher.get_error())
            if reason.startswith(STUCK):
                reason = "no token of the model continues it here"
            raise RequestError(f"the grammar failed: {reason}", field="grammar")

    def cut(self, draft: Draft) -> Draft:
        """The draft up to its first token that is illegal here."""
        return draft.first(self._matcher.validate_tokens(list(draft.tokens)))

    def forced(self, limit: int) -> Draft:
        """The tokens of the only continuation that the grammar allows, where there is only one.

        They are drafted and verified like any others: other tokens may spell the same text.
        """
        tokens = self._matcher.compute_ff_tokens()[:limit]
        if not tokens:
            return Draft()
        return Draft(tokens=tuple(tokens), source=Source.GRAMMAR, survivals=(0.98,) * len(tokens))


def reason_of(error: str) -> str:
    """What llguidance says, without its inner state and without its stack."""
    for inner in ("<state>", "<backtrace>"):
        error = error.partition(inner)[0]
    return " ".join(error.split())[:200]
