"""What a drafter and its sessions promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict, Unpack

import msgspec
import numpy as np
import numpy.typing as npt

from copyahead.sampling import SamplingOptions
from copyahead.types import Draft, Token


class DraftSession(Protocol):
    """What drafts for one request. One round is `propose` (any number of times), `settle` (once).

    A session never decides a token: whatever it proposes, the text is the model's. Whatever it
    raises makes the round a plain step, and never fails the request.
    """

    @property
    def window(self) -> int | None:
        """Its policy's window, for counters and logs; None: it has none."""
        ...

    def propose(self, limit: int) -> Draft:
        """A draft of at most `limit` tokens for what comes after the history. Reads only.

        `limit` 0 gives the empty draft. Calling it again without `settle` gives the same draft.
        """
        ...

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        """Close the round: `draft` was verified, and the request keeps `emitted`.

        `draft` is what was verified: the proposed draft or a `first(k)` of it. `emitted` is the
        accepted tokens and, unless the block ended early (end of sequence, stop, budget), the
        bonus token. What was accepted is the common prefix of the two.

        A plain step passes `NO_DRAFT`. So does a round whose draft came from elsewhere, and an
        answer that was partly written before this session opened: `emitted` may then hold any
        number of tokens. This is the only way a session learns anything.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forget the history from token `length` on. Absolute and idempotent.

        The history is the prompt and what was emitted; a prediction does not count.
        """
        ...

    def close(self) -> None:
        """Give the session's row back. What it holds stays, for a next turn to attach to.

        Idempotent. Nothing else of the session may be called after.
        """
        ...


class Opening(TypedDict, total=False):
    """What `Drafter.open` is told of a request beside its prompt, where that is not the default."""

    tenant: str
    """Whose request it is. Nothing that is learnt from one tenant's requests touches another's;
    empty when not given."""
    prediction: Sequence[Token] | npt.NDArray[np.integer]
    """Text that the answer is expected to repeat: it may be copied from, and is not part of the
    history."""
    grammar: bool
    """Whether the request is under one. Drafts are cut at what it forbids in any case."""
    sampling: SamplingOptions
    """How the request chooses, for a drafter that draws its tokens as well."""


class Drafter(Protocol):
    """Opens sessions, and proposes for many of them in one call."""

    def open(self, prompt: Sequence[Token], *, slot: int, **asked: Unpack[Opening]) -> DraftSession:
        """A session for a request that has read `prompt`, in row `slot`.

        `asked` is what else is known of the request; a drafter takes of it what it needs.

        Whatever row `slot` still holds and shares with `prompt` is kept: only the rest is
        indexed. No other session may be open in that row. Whatever it raises leaves the row
        without a session, and the request goes on without drafts.
        """
        ...

    def forget(self) -> None:
        """Forget the text that requests have left, in rows and elsewhere. Needs no open session."""
        ...

    def check(self) -> None:
        """Raise AssertionError, with a sentence, unless its books agree: sessions, rows, stores.

        For tests; may be called between any two other calls, changes nothing, and may be slow.
        """
        ...

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        """`[s.propose(limit) for s, limit in zip(sessions, limits)]`, in one call.

        All sessions are this drafter's own. Drafts are ragged: an empty one shortens no other.
        """
        ...


class NextToken(msgspec.Struct, frozen=True):
    """One token that a draft model proposes."""

    token: Token
    probability: float
    """What the draft model gives it, in [0, 1]."""
    draft_probs: npt.NDArray[np.float32] | None = None
    """The distribution that the token was drawn from, shape `[vocab_size]`; None where the token
    is the draft model's likeliest, and so a function of the past."""


class ModelUse(msgspec.Struct):
    """What a draft model was used for since it was last counted: the fields of `stats.CopyStats`.

    A session beside a draft model holds one as `use`; whoever counts clears it.
    """

    num_passes: int = 0
    num_skips: int = 0
    seconds: float = 0.0
    num_compared: int = 0
    num_agreed: int = 0

    def clear(self) -> None:
        """All of it has been counted."""
        self.num_passes = self.num_skips = self.num_compared = self.num_agreed = 0
        self.seconds = 0.0


class ChainDrafter(Drafter, Protocol):
    """A drafter that makes its drafts token by token, each at the price of a pass of its own.

    What it drafts for a session is a *chain*. A chain may begin with tokens from elsewhere, as a
    copy's: the drafter goes on from there.
    """

    @property
    def max_chain(self) -> int:
        """Longest chain that it drafts by itself."""
        ...

    def extend(
        self, sessions: Sequence[DraftSession], chains: Sequence[Sequence[Token]]
    ) -> list[NextToken | None]:
        """For each session the token after its history and `chain`, in one pass for all.

        None where it has nothing to say, as when its context is full. What it has read stays
        read: with the next call, only what is new costs rows. The history is not changed.
        """
        ...

    def num_rows(self, session: DraftSession, chain: Sequence[Token]) -> int:
        """How many rows `extend` would read for this session and `chain`; at least 1."""
        ...

    def seconds(self, num_rows: int) -> float:
        """What a pass of `extend` over so many rows takes, as measured."""
        ...
