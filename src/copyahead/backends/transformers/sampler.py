"""One request's sampler: transformers' own logits processors, in the order of its `generate`.

Penalties, then temperature, `top_k`, `top_p`, `min_p`, `typical_p`, and one draw. Unlike in
llama.cpp temperature comes first there. What transformers has no processor for, penalties of
presence and frequency and DRY, is that of `numpy_sampler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from copyahead.backends.numpy_sampler import NumpySampler, Values
from copyahead.contracts import Logits
from copyahead.sampling import SamplingOptions
from copyahead.types import Token

_LOWEST_TEMPERATURE = 1e-6
"""Below this the division could overflow; the choice is the most probable token anyway."""


class TransformersSampler(NumpySampler):
    """See `contracts.Sampler`. Bias and penalties are those of NumpySampler."""

    def __init__(
        self, options: SamplingOptions, prompt: Sequence[Token], *, vocab_size: int
    ) -> None:
        super().__init__(options, prompt)
        self._vocab_size = vocab_size
        self._plain = not self._bias and not options.penalised
        self._warpers = None if options.greedy else _warpers(options)
        self._generator = None if options.greedy else _generator(options.seed)

    def sample(self, logits: Logits) -> Token:
        """The chosen token; one draw unless the options are greedy."""
        row = logits[: self._vocab_size]
        if self._plain and self._warpers is None:
            return int(row.argmax())
        return super().sample(row)

    def target_probs(self, logits: Logits) -> Values:
        """See `contracts.Sampler.target_probs`; padding has no probability."""
        probs = np.zeros(len(logits))
        probs[: self._vocab_size] = super().target_probs(logits[: self._vocab_size])
        return probs

    def draw(self) -> float:
        """See `contracts.Sampler.draw`."""
        import torch

        return float(torch.rand(1, dtype=torch.float64, generator=self._generator))

    def _probs(self, values: Values) -> Values:
        import torch

        scores = torch.from_numpy(values)[None]
        assert self._warpers is not None
        # None of the warpers looks at the tokens before.
        warped = self._warpers(torch.empty((1, 0), dtype=torch.long), scores)[0]
        return np.asarray(torch.softmax(warped, 0).numpy())


def _generator(seed: int | None) -> Any:
    import torch

    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def _warpers(options: SamplingOptions) -> Any:
    """transformers' warpers, in the order in which its `generate` has them."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        TypicalLogitsWarper,
    )

    found = LogitsProcessorList()
    if options.temperature != 1.0:
        found.append(TemperatureLogitsWarper(max(options.temperature, _LOWEST_TEMPERATURE)))
    if options.top_k > 0:
        found.append(TopKLogitsWarper(top_k=options.top_k))
    if options.top_p < 1.0:
        found.append(TopPLogitsWarper(top_p=options.top_p))
    if options.min_p > 0.0:
        found.append(MinPLogitsWarper(min_p=options.min_p))
    if options.typical_p < 1.0:
        found.append(TypicalLogitsWarper(mass=options.typical_p))
    return found
