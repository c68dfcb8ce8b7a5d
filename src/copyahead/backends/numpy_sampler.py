"""A sampler in numpy: the options of `copyahead.sampling` in their documented order.

For backends without a sampler of their own, and the plain reading of what the options mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from copyahead.acceptance import inverse_cdf
from copyahead.contracts import Logits
from copyahead.sampling import SamplingOptions
from copyahead.types import Token

Values = npt.NDArray[np.float64]

_LOWEST_TEMPERATURE = 1e-6
"""Below this the division could overflow; the choice is the most probable token anyway."""


class NumpySampler:
    """One request's choice of tokens. Implements `copyahead.contracts.Sampler`."""

    def __init__(self, options: SamplingOptions, prompt: Sequence[Token]) -> None:
        self._options = options
        self._random = np.random.default_rng(options.seed)
        self._output: Counter[Token] = Counter()
        self._seen: set[Token] = set(prompt)
        self._history: list[Token] = list(prompt)
        self._bias = {token: float(bias) for token, bias in options.logit_bias.items()}

    def sample(self, logits: Logits) -> Token:
        """The chosen token; one draw unless the options are greedy."""
        values = self._penalised(logits)
        if self._options.greedy:
            token = int(values.argmax())
        else:
            token = inverse_cdf(self._probs(values), self.draw())
        self.record(token)
        return token

    def target_probs(self, logits: Logits) -> Values:
        """See `contracts.Sampler.target_probs`."""
        values = self._penalised(logits)
        if not self._options.greedy:
            return self._probs(values)
        probs = np.zeros(len(values))
        probs[values.argmax()] = 1.0
        return probs

    def draw(self) -> float:
        """See `contracts.Sampler.draw`."""
        return float(self._random.random())

    def record(self, token: Token) -> None:
        """See `contracts.Sampler.record`."""
        self._output[token] += 1
        self._seen.add(token)
        self._history.append(token)

    def close(self) -> None:
        """Nothing is held."""

    def _penalised(self, logits: Logits) -> Values:
        """The logits with biases and penalties."""
        values = logits.astype(np.float64)
        for token, bias in self._bias.items():
            values[token] = -np.inf if bias <= -100.0 else values[token] + bias
        self._penalise(values)
        return values

    def _penalise(self, values: Values) -> None:
        options = self._options
        if options.repetition_penalty != 1.0:
            seen = np.fromiter(self._seen, dtype=np.int64)
            scores = values[seen]
            penalty = options.repetition_penalty
            values[seen] = np.where(scores > 0, scores / penalty, scores * penalty)
        if options.frequency_penalty or options.presence_penalty:
            for token, count in self._output.items():
                values[token] -= count * options.frequency_penalty + options.presence_penalty
        if options.dry_multiplier:
            for token, length in self._repeated_runs().items():
                grown = options.dry_base ** (length - options.dry_allowed_length)
                values[token] -= options.dry_multiplier * grown

    def _repeated_runs(self) -> dict[Token, int]:
        """For each token that would continue a repeat: the length of the run before it."""
        history = self._history
        runs: dict[Token, int] = {}
        for end in range(len(history) - 1):
            length = 0
            while length <= end and history[end - length] == history[-1 - length]:
                length += 1
            if length >= self._options.dry_allowed_length:
                runs[history[end + 1]] = max(length, runs.get(history[end + 1], 0))
        return runs

    def _probs(self, values: Values) -> Values:
        """What is drawn from; `values` is overwritten."""
        options = self._options
        if 0 < options.top_k < len(values):
            values[values < np.partition(values, -options.top_k)[-options.top_k]] = -np.inf
        probs = _softmax(values)
        if options.typical_p < 1.0:
            entropy = -float(np.sum(probs[probs > 0] * np.log(probs[probs > 0])))
            with np.errstate(divide="ignore"):
                distance = np.abs(-np.log(probs) - entropy)
            probs = _keep_smallest(probs, distance, options.typical_p)
        if options.top_p < 1.0:
            probs = _keep_smallest(probs, -probs, options.top_p)
        if options.min_p > 0.0:
            probs = np.where(probs >= options.min_p * probs.max(), probs, 0.0)
        with np.errstate(divide="ignore"):
            temperature = max(options.temperature, _LOWEST_TEMPERATURE)
            return _softmax(np.log(probs) / temperature)


def _softmax(values: Values) -> Values:
    exps = np.exp(values - values.max())
    return np.asarray(exps / exps.sum())


def _keep_smallest(probs: Values, order: Values, mass: float) -> Values:
    """Keep tokens in rising `order` until their probability reaches `mass`; at least one."""
    ranked = np.argsort(order, kind="stable")
    reached = np.cumsum(probs[ranked])
    count = int(np.searchsorted(reached, mass * reached[-1])) + 1
    kept = np.zeros_like(probs)
    kept[ranked[:count]] = probs[ranked[:count]]
    return kept
