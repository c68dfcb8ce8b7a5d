"""One request's sampler: llama.cpp's own samplers over a row of logits.

The order is that of `copyahead.sampling`. The engine has masked end tokens and grammar in the
row before it calls, so a logit of minus infinity is a token that must not be chosen.
"""

from __future__ import annotations

import ctypes
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.contracts import Logits
from copyahead.sampling import SamplingOptions
from copyahead.types import Token

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""`llama_token_data`."""

_BARRED_BIAS = -100.0
_LOWEST_TEMPERATURE = 1e-6
"""Below this the division of the logits would overflow; the choice is the largest anyway."""
_RANDOM_SEED = 2**32 - 1
"""The seed that llama.cpp reads as "take a random one"."""
_NEGLIGIBLE = 80.0
"""e**-80 times the best probability: far below what a float can tell from nothing, so that
dropping such tokens changes no choice, but keeps 0 * log 0 out of the typical sampler."""
_DRY_BREAKERS = (b"\n", b":", b'"', b"*")


class Candidates:
    """A pooled `llama_token_data_array`. One serves all requests of a backend."""

    def __init__(self, library: Any, vocab_size: int) -> None:
        self._buffer = np.zeros(vocab_size, dtype=_CANDIDATE)
        self._blank = self._buffer.copy()
        self._blank["id"] = np.arange(vocab_size, dtype=np.int32)
        # Copied as bytes: numpy copies records field by field, ten times slower.
        self._bytes, self._blank_bytes = self._buffer.view(np.uint8), self._blank.view(np.uint8)
        pointer = ctypes.cast(self._buffer.ctypes.data, library.llama_token_data_p)
        self.array = library.llama_token_data_array(pointer, vocab_size, -1, False)
        self.reference = ctypes.byref(self.array)
        self._pointer = pointer
        self.logits: npt.NDArray[np.float32] = self._buffer["logit"]

    def fill(self, row: Logits) -> None:
        """Take every token of `row` (shape `[vocab_size]`), in order of ids."""
        np.copyto(self._bytes, self._blank_bytes)
        self.logits[:] = row
        self._reset(len(row))

    def keep_above(self, floor: float) -> None:
        """Drop the tokens with a logit of `floor` or less; none when that would leave nothing."""
        kept = self._buffer[self.logits > floor]
        if 0 < len(kept) < len(self._buffer):
            self._buffer[: len(kept)] = kept
            self._reset(len(kept))

    def left(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Ids and logits of the tokens that a chain has left."""
        # A sampler may have moved them elsewhere.
        address = ctypes.cast(self.array.data, ctypes.c_void_p).value
        assert address is not None
        held = (ctypes.c_char * (self.array.size * _CANDIDATE.itemsize)).from_address(address)
        left = np.frombuffer(held, dtype=_CANDIDATE)
        return left["id"].copy(), left["logit"].astype(np.float64)

    def selected(self) -> Token:
        """The id that a chain has chosen."""
        return int(self.array.data[self.array.selected].id)

    def _reset(self, size: int) -> None:
        self.array.data = self._pointer
        self.array.size = size
        self.array.selected = -1
        self.array.sorted = False


class LlamaSampler:
    """See `contracts.Sampler`."""

    def __init__(
        self,
        library: Any,
        vocab: Any,
        candidates: Candidates,
        options: SamplingOptions,
        prompt: Sequence[Token],
        *,
        vocab_size: int,
        context_size: int,
    ) -> None:
        self._apply = library.llama_sampler_apply
        self._accept = library.llama_sampler_accept
        self._candidates = candidates
        self._vocab_size = vocab_size
        self._greedy = options.greedy
        self._typical = options.typical_p < 1.0
        self._set_bias(options)
        readers, writers = _penalties(library, vocab, options, vocab_size, context_size)
        for sampler in readers:
            for token in prompt:
                self._accept(sampler, token)
        self._penalties = readers + writers
        # The chain that shapes the distribution, and the draw from it.
        self._choice = None if self._greedy else _choice(library, options)
        seed = _seed(options.seed)
        self._draw_one = None if self._greedy else library.llama_sampler_init_dist(seed)
        self._random = np.random.default_rng(seed)
        owned = [*self._penalties, *(s for s in (self._choice, self._draw_one) if s is not None)]
        self._close = weakref.finalize(self, _free, library.llama_sampler_free, owned)

    def sample(self, logits: Logits) -> Token:
        """Choose from `logits` and record the choice; see `contracts.Sampler`."""
        token = self._choose(self._biased(logits))
        self.record(token)
        return token

    def target_probs(self, logits: Logits) -> npt.NDArray[np.float64]:
        """See `contracts.Sampler.target_probs`: the candidates that the chain leaves, as shares."""
        row = self._biased(logits)
        probs = np.zeros(self._vocab_size)
        if self._draw_one is None:
            probs[self._choose(row)] = 1.0
            return probs
        ids, logs = self._shape(row).left()
        shares = np.exp(logs - logs.max())
        probs[ids] = shares / shares.sum()
        return probs

    def draw(self) -> float:
        """See `contracts.Sampler.draw`: beside the sampler's own random state, of the same seed."""
        return float(self._random.random())

    def record(self, token: Token) -> None:
        """See `contracts.Sampler.record`."""
        for sampler in self._penalties:
            self._accept(sampler, token)

    def _biased(self, logits: Logits) -> Logits:
        """The row with the request's biases, in place."""
        row = logits[: self._vocab_size]
        if self._bias_ids is not None:
            row[self._bias_ids] += self._bias
            row[self._barred] = -np.inf
        return row

    def close(self) -> None:
        """Free the samplers. Idempotent."""
        self._close()

    def _choose(self, row: Logits) -> Token:
        if self._draw_one is None and not self._penalties:
            return int(row.argmax())
        if self._draw_one is None:
            return int(self._penalised(row).logits.argmax())
        candidates = self._shape(row)
        self._apply(self._draw_one, candidates.reference)
        return candidates.selected()

    def _penalised(self, row: Logits) -> Candidates:
        """All tokens, with their penalties."""
        candidates = self._candidates
        candidates.fill(row)
        for sampler in self._penalties:
            self._apply(sampler, candidates.reference)
        return candidates

    def _shape(self, row: Logits) -> Candidates:
        """The tokens that one is drawn from, as the options leave them."""
        candidates = self._penalised(row)
        if self._typical:
            candidates.keep_above(float(candidates.logits.max()) - _NEGLIGIBLE)
        elif row.min() == -np.inf:
            candidates.keep_above(-np.inf)
        self._apply(self._choice, candidates.reference)
        return candidates

    def _set_bias(self, options: SamplingOptions) -> None:
        known = {t: b for t, b in options.logit_bias.items() if 0 <= t < self._vocab_size}
        self._bias_ids = np.fromiter(known, dtype=np.int64) if known else None
        self._bias = np.fromiter(known.values(), dtype=np.float32)
        self._barred = np.array([t for t, b in known.items() if b <= _BARRED_BIAS], dtype=np.int64)


def _penalties(
    library: Any, vocab: Any, options: SamplingOptions, vocab_size: int, context_size: int
) -> tuple[list[Any], list[Any]]:
    """The samplers that count prompt and output, and those that count output only.

    They are applied in that order, so DRY, which reads the prompt too, comes before presence
    and frequency; all of them only take something off, or scale, one token's logit.
    """
    readers, writers = [], []
    start = library.llama_sampler_init_penalties
    if options.repetition_penalty != 1.0:
        readers.append(start(vocab_size, context_size, options.repetition_penalty, 0.0, 0.0))
    if options.presence_penalty != 0.0 or options.frequency_penalty != 0.0:
        frequency, presence = options.frequency_penalty, options.presence_penalty
        writers.append(start(vocab_size, context_size, 1.0, frequency, presence))
    if options.dry_multiplier != 0.0:
        breakers = (ctypes.c_char_p * len(_DRY_BREAKERS))(*_DRY_BREAKERS)
        readers.append(
            library.llama_sampler_init_dry(
                vocab,
                options.dry_multiplier,
                options.dry_base,
                options.dry_allowed_length,
                context_size,
                breakers,
                len(_DRY_BREAKERS),
            )
        )
    return readers, writers


def _choice(library: Any, options: SamplingOptions) -> Any:
    """The chain from the penalised logits to what one token is drawn from."""
    params = library.llama_sampler_chain_default_params()
    params.no_perf = True
    chain = library.llama_sampler_chain_init(params)
    add: Callable[[Any, Any], None] = library.llama_sampler_chain_add
    if options.top_k > 0:
        add(chain, library.llama_sampler_init_top_k(options.top_k))
    if options.typical_p < 1.0:
        add(chain, library.llama_sampler_init_typical(options.typical_p, 1))
    if options.top_p < 1.0:
        add(chain, library.llama_sampler_init_top_p(options.top_p, 1))
    if options.min_p > 0.0:
        add(chain, library.llama_sampler_init_min_p(options.min_p, 1))
    temperature = max(options.temperature, _LOWEST_TEMPERATURE)
    if temperature != 1.0:
        add(chain, library.llama_sampler_init_temp(temperature))
    return chain


def _seed(seed: int | None) -> int:
    """A seed that llama.cpp takes as it is; a fresh one for None."""
    if seed is None:
        return secrets.randbelow(_RANDOM_SEED)
    return seed if seed != _RANDOM_SEED else _RANDOM_SEED - 1


def _free(free: Callable[[Any], None], samplers: list[Any]) -> None:
    for sampler in samplers:
        free(sampler)
