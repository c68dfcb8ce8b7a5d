"""How many tokens to draft a round when the newest place is copied: K fixed, or adaptive.

The simulation of the single-draft rule: the newest earlier occurrence of the last 3 tokens,
then of the last 2; K of 1, 2, 4 or 8 tokens of what followed; and K that doubles after a full
accept, up to 8, and falls to 1 on a miss. They are policies like any other, so the same replay
runs them.
"""

from __future__ import annotations

LENGTHS = (1, 2, 4, 8)


def length_policies() -> tuple[str, ...]:
    """The simulated rules, as policies of the registry."""
    fixed = (f"fixed:num_draft_tokens={length}" for length in LENGTHS)
    return (*fixed, "adaptive_k")
