"""One round of one request beside a draft model, as a conversation with who runs its passes.

A round is a generator. It yields an `Ask` for every token that it wants of the draft model, gets
what came of it, and returns the draft. So a batch runs its rounds side by side, with one pass for
all that ask at the same time; and each rule reads as if its request were alone.

The rules here decide by what is there, not by what it costs:

first    any copy before the model
longer   a copy that is at least as long as the model's chain
agree    a copy with a long match, or one that begins with the same two tokens as the chain

`arbitration` has the one that decides by price.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import NamedTuple

from copyahead.contracts import NextToken
from copyahead.types import Draft, Source, Token


class Ask(NamedTuple):
    """A wish for the draft model's token after the history and `chain`."""

    chain: tuple[Token, ...]
    most: float
    """Steps that it may cost."""


class Refusal(Enum):
    """Why there is no token."""

    TOO_DEAR = "too dear"
    NOTHING = "nothing"
    """The draft model had nothing to say; its pass may have been run."""


Reply = NextToken | Refusal
Round = Generator[Ask, Reply, Draft]

TAKES_BLOCK_AT = 8
"""Match length from which a copy needs no agreement, unless told otherwise."""


def agree(copy: Draft, chain: Draft, takes_block_at: int = TAKES_BLOCK_AT) -> Draft:
    """The copy if its match is long enough, or if both have the same first two tokens."""
    if copy.tokens and copy.match_length >= takes_block_at:
        return copy
    agreed = len(chain) >= 2 and copy.tokens[:2] == chain.tokens[:2]
    return copy if agreed else chain


def longer(copy: Draft, chain: Draft) -> Draft:
    """The copy if it is at least as long as the chain."""
    return copy if copy.tokens and len(copy) >= len(chain) else chain


def draft_chain(longest: int, affordable: Callable[[int], float]) -> Round:
    """A chain of at most `longest` tokens, drafted to its end.

    `affordable(k)`: steps that a pass may cost in a round that will verify k tokens.
    """
    found: list[NextToken] = []
    while len(found) < longest:
        chain = tuple(token.token for token in found)
        reply = yield Ask(chain, affordable(len(found) + 1))
        if not isinstance(reply, NextToken):
            break
        found.append(reply)
    return chain_of(found)


def chain_of(found: list[NextToken]) -> Draft:
    """The model's tokens as a draft."""
    if not found:
        return Draft()
    drawn = any(token.draft_probs is not None for token in found)
    return Draft(
        tokens=tuple(token.token for token in found),
        source=Source.MODEL,
        draft_probs=tuple(token.draft_probs for token in found) if drawn else (),
    )
