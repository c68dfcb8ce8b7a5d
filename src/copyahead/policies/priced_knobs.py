"""The options of `priced`, apart from its code: reading them loads no compiler."""

from __future__ import annotations

from dataclasses import dataclass

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.policies.knobs import Knobs, knob


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedKnobs(Knobs):
    """Options of `priced`. The defaults suit every machine: what differs is measured."""

    max_draft: int = knob(64, 1, MAX_DRAFT_TOKENS, "longest draft")
    credit: float = knob(
        16.0, 1.0, 1024.0, "most steps that a request may ever lose to drafts that were not kept"
    )
    credit_cap: float = knob(64.0, 0.0, 65536.0, "most steps of past gains that count as credit")
    trickle: float = knob(0.005, 0.0, 0.1, "credit for every emitted token, so that it recovers")
    threshold: float = knob(
        1.35,
        0.5,
        4.0,
        "tokens a step that a further row must bring, in units of the running rate, "
        "where the copy has probably broken",
    )
