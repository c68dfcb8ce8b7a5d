"""How a request wants its tokens chosen: the options, their ranges, and their order.

At every row, in this order: the logarithms of the model's own probabilities are read off
for `logprobs`; `logit_bias`; end tokens barred while `min_tokens` is not reached; the
grammar's mask; repetition, then frequency and presence penalties; DRY; `top_k`; `typical_p`;
`top_p`; `min_p`; `temperature`; the draw. With `temperature` 0 it is the largest logit after the
penalties, and no draw. A model of transformers has the last ones in the order of its `generate`:
`temperature`, `top_k`, `top_p`, `min_p`, `typical_p`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from copyahead.errors import RequestError
from copyahead.ranges import Range, check_ranges
from copyahead.types import Token

_BIAS = Range(-100.0, 100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen. The defaults choose greedily."""

    temperature: Annotated[float, Range(0.0, 10.0)] = 0.0
    """0 is greedy; at most 10."""
    top_k: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: Annotated[float, Range(0.0, 1.0, above=True)] = 1.0
    """Keep the smallest set with this much probability; 1 keeps all. Above 0, at most 1."""
    min_p: Annotated[float, Range(0.0, 1.0)] = 0.0
    """Drop tokens below this share of the best one's probability. 0 to 1."""
    typical_p: Annotated[float, Range(0.0, 1.0, above=True)] = 1.0
    """Locally typical sampling; 1 is off. Above 0, at most 1."""
    repetition_penalty: Annotated[float, Range(0.0, 10.0, above=True)] = 1.0
    """Divides the logits of tokens seen in prompt or output; 1 is off. Above 0, at most 10."""
    presence_penalty: Annotated[float, Range(-2.0, 2.0)] = 0.0
    """Taken off the logits of tokens in the output. -2 to 2."""
    frequency_penalty: Annotated[float, Range(-2.0, 2.0)] = 0.0
    """Taken off the logits of tokens in the output, once a time. -2 to 2."""
    dry_multiplier: Annotated[float, Range(0.0, 10.0)] = 0.0
    """Strength of the DRY penalty on repeated runs; 0 is off. At most 10."""
    dry_base: Annotated[float, Range(1.0, 4.0)] = 1.75
    """How fast the DRY penalty grows with the run. 1 to 4."""
    dry_allowed_length: Annotated[int, Range(1, 1000)] = 2
    """Longest repeated run that DRY leaves alone. 1 to 1000."""
    logit_bias: Mapping[Token, float] = field(default_factory=dict)
    """Added to the logits of the named tokens. -100 to 100; -100 bars a token."""
    seed: Annotated[int | None, Range(0, 2**32 - 1)] = None
    """Seed of the request's own random state; None takes a fresh one. 0 to 2**32 - 1."""

    def __post_init__(self) -> None:
        check_ranges(self, RequestError)
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
            fault = _BIAS.fault(f"logit_bias[{token}]", bias, whole=False)
            if fault is not None:
                raise RequestError(fault, field=f"logit_bias[{token}]")

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
