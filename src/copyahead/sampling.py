"""How a request wants its tokens chosen: the options, their ranges, and their order.

At every row, in this order: the logarithms of the model's own probabilities are read off
for `logprobs`; `logit_bias`; end tokens barred while `min_tokens` is not reached; the
grammar's mask; repetition, then frequency and presence penalties; DRY; `top_k`; `typical_p`;
`top_p`; `min_p`; `temperature`; the draw. With `temperature` 0 it is the largest logit after the
penalties, and no draw.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from copyahead.errors import RequestError
from copyahead.types import Token


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen. The defaults choose greedily."""

    temperature: float = 0.0
    """0 is greedy; at most 10."""
    top_k: int = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set with this much probability; 1 keeps all. Above 0, at most 1."""
    min_p: float = 0.0
    """Drop tokens below this share of the best one's probability. 0 to 1."""
    typical_p: float = 1.0
    """Locally typical sampling; 1 is off. Above 0, at most 1."""
    repetition_penalty: float = 1.0
    """Divides the logits of tokens seen in prompt or output; 1 is off. Above 0, at most 10."""
    presence_penalty: float = 0.0
    """Taken off the logits of tokens in the output. -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken off the logits of tokens in the output, once a time. -2 to 2."""
    dry_multiplier: float = 0.0
    """Strength of the DRY penalty on repeated runs; 0 is off. At most 10."""
    dry_base: float = 1.75
    """How fast the DRY penalty grows with the run. 1 to 4."""
    dry_allowed_length: int = 2
    """Longest repeated run that DRY leaves alone. 1 to 1000."""
    logit_bias: Mapping[Token, float] = field(default_factory=dict)
    """Added to the logits of the named tokens. -100 to 100; -100 bars a token."""
    seed: int | None = None
    """Seed of the request's own random state; None takes a fresh one. 0 to 2**32 - 1."""

    def __post_init__(self) -> None:
        for option in fields(self):
            bounds = _BOUNDS.get(option.name)
            if bounds is not None:
                _check(option.name, getattr(self, option.name), bounds)
        if self.seed is not None:
            _check("seed", self.seed, (0, 2**32 - 1, True))
        given: object = self.logit_bias
        if not isinstance(given, Mapping):
            raise RequestError(
                f"logit_bias must map token ids to numbers, not {given!r}", field="logit_bias"
            )
        for token, bias in self.logit_bias.items():
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(
                    f"logit_bias must have token ids as keys, not {token!r}", field="logit_bias"
                )
            _check(f"logit_bias[{token}]", bias, (-100.0, 100.0, True))

    @property
    def penalised(self) -> bool:
        """Whether any penalty looks at what was read or written."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.dry_multiplier != 0.0
        )

    @property
    def greedy(self) -> bool:
        """Whether the choice is the largest logit, with no draw."""
        return self.temperature == 0.0 or self.top_k == 1


_Bounds = tuple[float, float, bool]
"""Lowest, highest, and whether the lowest itself is allowed."""

_BOUNDS: dict[str, _Bounds] = {
    "temperature": (0.0, 10.0, True),
    "top_k": (0, 2**31 - 1, True),
    "top_p": (0.0, 1.0, False),
    "min_p": (0.0, 1.0, True),
    "typical_p": (0.0, 1.0, False),
    "repetition_penalty": (0.0, 10.0, False),
    "presence_penalty": (-2.0, 2.0, True),
    "frequency_penalty": (-2.0, 2.0, True),
    "dry_multiplier": (0.0, 10.0, True),
    "dry_base": (1.0, 4.0, True),
    "dry_allowed_length": (1, 1000, True),
}

_WHOLE = frozenset({"top_k", "seed", "dry_allowed_length"})


def _check(name: str, value: Any, bounds: _Bounds) -> None:
    low, high, closed = bounds
    whole = name in _WHOLE
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "a whole number" if whole else "a number"
        raise RequestError(f"{name} must be {kind}, not {value!r}", field=name)
    if not math.isfinite(value) or value > high or value < low or (value == low and not closed):
        edge = "at least" if closed else "above"
        raise RequestError(
            f"{name} must be {edge} {low:g} and at most {high:g}, not {value!r}", field=name
        )
