"""What could come next: copies from the history, beside another drafter's draft.

factory  a policy's name in, a drafter out
lookup   copies from the request's own row, as much as a length policy wants
priced   the default policy, which weighs many places at once; prior has its tables
hybrid   copies beside a draft model: whose passes run, and who pays; the parts it decides with:
         rounds            by what is there: first, agree, longer
         arbitration       by price: every token from whichever side is worth more
         chain_worth       what asking the model was worth, and when to look again
         chain_acceptance  how likely its tokens are kept
         drawn             by price, where the model draws its tokens
pooled   what drafters over a pool of rows share
model    a draft model, and what it has read of each request; pass_seconds: what its passes take
draft_model  may one stand beside a model, and what does it cost?

Importing the package loads no kernel: names are found when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from copyahead.drafters.hybrid import HybridDrafter, HybridSession
    from copyahead.drafters.lookup import LookupDrafter, LookupSession

_HOMES = {
    "HybridDrafter": "hybrid",
    "HybridSession": "hybrid",
    "LookupDrafter": "lookup",
    "LookupSession": "lookup",
}

__all__ = ["HybridDrafter", "HybridSession", "LookupDrafter", "LookupSession"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
