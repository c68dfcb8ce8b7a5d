"""A seed's own sample: with drafts a request with a seed writes what it writes without.

vLLM's rejection sampler keeps the distribution, and takes other draws than plain decoding, for
every drafted token, whatever becomes of it. Here every row of a request with a seed is sampled as
plain decoding samples it, one draw for every token that is kept and none for the others, and a
drafted token is kept while it is what was drawn. Any other request stays with vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

REJECTION_ARGUMENTS = (
    "draft_token_ids",
    "num_draft_tokens",
    "max_spec_len",
    "cu_num_draft_tokens",
    "draft_probs",
    "target_logits",
    "bonus_token_ids",
    "sampling_metadata",
)
"""The first arguments of vLLM's `rejection_sample`, as they are known here."""


@dataclass(slots=True)
class _Pass:
    """The pass that is being sampled."""

    sampler: Any
    bonus_logits: Any
    states: dict[int, Any]
    """By place in the batch: the random state that a request with a seed had before."""


def install(module: Any) -> None:
    """Put these functions around those of `vllm.v1.sample.rejection_sampler`."""
    current: list[_Pass] = []
    module.expand_batch_to_tokens = _around_expand(module.expand_batch_to_tokens)
    module.RejectionSampler.forward = _around_forward(module.RejectionSampler.forward, current)
    module.rejection_sample = _around_rejection(module.rejection_sample, current)


def _around_expand(original: Callable[..., Any]) -> Callable[..., Any]:
    """On a CPU vLLM 0.32 expands a copy of the result: the temperature of drafted rows is whatever
    was in memory, for every method that drafts. Elsewhere this is vLLM's own function.
    """

    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        if x.device.type != "cpu":
            return original(x, cu_num_tokens, num_tokens, replace_from, replace_to)
        counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
        replaced = x.masked_fill(x == replace_from, replace_to)
        return replaced.repeat_interleave(counts)

    return expand_batch_to_tokens


def seeded(generators: dict[int, Any], temperature: Any, num_draft_tokens: Sequence[int]) -> list:  # type: ignore[type-arg]
    """The places that have a seed, draw, and verify a draft."""
    return [
        place
        for place in sorted(generators)
        if place < len(num_draft_tokens)
        and num_draft_tokens[place] > 0
        and (temperature is None or float(temperature[place]) != 0.0)
    ]


def _around_forward(original: Callable[..., Any], current: list[_Pass]) -> Callable[..., Any]:
    def forward(
        self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any
    ) -> Any:
        generators = sampling_metadata.generators
        places = (
            seeded(generators, sampling_metadata.temperature, metadata.num_draft_tokens)
            if generators
            else []
        )
        if not places:
            return original(self, metadata, draft_probs, logits, sampling_metadata)
        states = {place: generators[place].get_state() for place in places}
        bonus = logits[metadata.bonus_logits_indices]
        current[:] = [_Pass(self.sampler, bonus, states)]
        try:
            return original(self, metadata, draft_probs, logits, sampling_metadata)
        finally:
            current.clear()

    return forward


def _around_rejection(original: Callable[..., Any], current: list[_Pass]) -> Callable[..., Any]:
    def rejection_sample(*arguments: Any, **options: Any) -> Any:
        output = original(*arguments, **options)
        if current:
            given = dict(zip(REJECTION_ARGUMENTS, arguments, strict=False)) | options
            _sample_again(current[0], given, output)
        return output

    return rejection_sample


def _sample_again(this: _Pass, given: dict[str, Any], output: Any) -> None:
    """Sample the rows of requests with seeds one after the other, into `output`."""
    counts, drafts = given["num_draft_tokens"], given["draft_token_ids"].tolist()
    metadata, logits = given["sampling_metadata"], given["target_logits"]
    generators = metadata.generators
    draw = this.sampler.topk_topp_sampler
    whole = []
    for place, state in this.states.items():
        generator = generators[place]
        generator.set_state(state)
        start = sum(counts[:place])
        output[place] = -1
        for position in range(counts[place]):
            # Temperature, top-k and top-p are in these logits already.
            row = logits[start + position : start + position + 1].clone()
            token = int(draw(row, {0: generator}, None, None)[0].reshape(-1)[0])
            output[place, position] = token
            if token != drafts[start + position]:
                break
        else:
            whole.append(place)
    if whole:
        _sample_bonus(this, given, output, whole)


def _sample_bonus(this: _Pass, given: dict[str, Any], output: Any, whole: Sequence[int]) -> None:
    """The tokens after drafts that were kept whole, drawn in their turn.

    The whole batch is sampled, as its parameters are in arrays; only these draws count.
    """
    metadata = given["sampling_metadata"]
    others = {
        place: generator.get_state()
        for place, generator in metadata.generators.items()
        if place not in whole
    }
    sampled = this.sampler(
        logits=this.bonus_logits.clone(),
        sampling_metadata=replace(metadata, max_num_logprobs=None),
        predict_bonus_token=True,
    ).sampled_token_ids
    for place, state in others.items():
        metadata.generators[place].set_state(state)
    for place in whole:
        output[place, given["num_draft_tokens"][place]] = int(sampled[place, 0])
