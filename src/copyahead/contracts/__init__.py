"""The seams of copyahead: what each part promises to the others.

    backend     a model, its tokenizer, a request's sampler
    drafting    a drafter, and its session for one request
    policy      how much of a copy to try

They stand below everything that implements or uses them, so that finding copies (`drafters`),
deciding how much of one to try (`policies`), running a model (`backends`) and verifying (`engine`)
know these contracts and not each other. An implementation need not inherit from any of them.
"""

from copyahead.contracts.backend import (
    Backend,
    Capabilities,
    FimTokens,
    Logits,
    Part,
    Sampler,
    TextTokenizer,
    Tokenizer,
)
from copyahead.contracts.drafting import (
    ChainDrafter,
    Drafter,
    DraftSession,
    ModelUse,
    NextToken,
    Opening,
)
from copyahead.contracts.policy import LengthPolicy, Load, Query, Winner

__all__ = [
    "Backend",
    "Capabilities",
    "ChainDrafter",
    "DraftSession",
    "Drafter",
    "FimTokens",
    "LengthPolicy",
    "Load",
    "Logits",
    "ModelUse",
    "NextToken",
    "Opening",
    "Part",
    "Query",
    "Sampler",
    "TextTokenizer",
    "Tokenizer",
    "Winner",
]
