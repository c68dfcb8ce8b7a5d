"""transformers' own warpers in its own order, and one draw a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-transformers")
pytest.importorskip("transformers", reason="needs transformers: make test-transformers")

from copyahead.backends.transformers.sampler import TransformersSampler
from copyahead.sampling import SamplingOptions

VOCAB = 50


def row(seed: int = 0, scale: float = 3.0) -> Any:
    return (np.random.default_rng(seed).normal(size=VOCAB + 3) * scale).astype(np.float32)


def sampler(*prompt: int, **options: Any) -> TransformersSampler:
    return TransformersSampler(SamplingOptions(**options), prompt, vocab_size=VOCAB)


def test_greedy_takes_the_largest_and_no_draw() -> None:
    found = sampler()
    before = torch.random.get_rng_state()
    assert found.sample(row()) == int(row()[:VOCAB].argmax())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert sampler(top_k=1, temperature=1.0).sample(row()) == int(row()[:VOCAB].argmax())


def test_choices_are_those_of_generate() -> None:
    """Frequencies are held against the probabilities that `generate` would draw from."""
    import transformers

    options: dict[str, Any] = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "typical_p": 0.95,
    }
    settings = transformers.GenerationConfig(do_sample=True, **options)
    config = transformers.LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=1)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    processors = model._get_logits_processor(settings, input_ids_seq_length=1)
    scores = torch.from_numpy(row()[:VOCAB])[None]
    probs = torch.softmax(processors(torch.zeros((1, 1), dtype=torch.long), scores), -1)[0].numpy()
    found = sampler(seed=1, **options)
    counts = np.bincount([found.sample(row()) for _ in range(4000)], minlength=VOCAB)
    assert not counts[probs == 0].any()
    assert np.abs(counts / 4000 - probs).max() < 0.03


def test_a_seed_is_a_stream_of_one_draw_a_row() -> None:
    rows = [row(seed) for seed in range(6)]
    options: dict[str, Any] = {
        "temperature": 1.0,
        "seed": 5,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
    }
    one, other = sampler(3, 4, **options), sampler(3, 4, **options)
    taken = [one.sample(given.copy()) for given in rows]
    assert taken == [other.sample(given.copy()) for given in rows]
    generator = torch.Generator().manual_seed(5)
    for _ in rows:
        torch.rand(1, dtype=torch.float64, generator=generator)
    drawn: Any = one._generator
    assert torch.equal(drawn.get_state(), generator.get_state())


def test_what_is_barred_is_never_chosen() -> None:
    for options in ({"temperature": 2.0}, {"temperature": 1.0, "typical_p": 0.5}, {}):
        found = sampler(seed=1, logit_bias={int(row().argmax()): -100.0}, **options)
        for _ in range(50):
            given = row()
            given[10:] = -np.inf
            assert found.sample(given) < 10


@pytest.mark.parametrize("options", [{"temperature": 1e-7}, {"temperature": 1.0, "top_p": 1e-9}])
def test_the_narrowest_choice_is_the_largest(options: dict[str, float]) -> None:
    assert sampler(seed=2, **options).sample(row()) == int(row()[:VOCAB].argmax())
