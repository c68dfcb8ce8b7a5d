"""What cannot be honoured is refused by name, before anything is generated."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from copyahead.errors import ConfigError, ModelError  # noqa: E402
from tests.plugins.transformers.models import (  # noqa: E402
    VOCAB,
    Passes,
    drafted,
    model_of,
    plain,
    prompts,
)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "num_beams=2"),
    "group beams": ({"num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 1.0}, "num_beams"),
    "contrastive": ({"penalty_alpha": 0.5, "top_k": 4}, "penalty_alpha=0.5"),
    "dola": ({"dola_layers": "high"}, "dola_layers='high'"),
    "another prompt lookup": ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens=4"),
    "early exit": ({"assistant_early_exit": 1}, "assistant_early_exit=1"),
    "forced words": ({"force_words_ids": [[5]], "num_beams": 2}, "force_words_ids"),
    "attentions": ({"output_attentions": True}, "output_attentions"),
    "hidden states": ({"output_hidden_states": True}, "output_hidden_states"),
    "static cache": ({"cache_implementation": "static"}, "cache_implementation='static'"),
    "offloaded cache": ({"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
    "processes in step": ({"synced_gpus": True}, "synced_gpus"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_is_refused_by_name(name: str) -> None:
    model = model_of("Llama")
    options, named = REFUSED[name]
    with Passes(model) as passes, pytest.raises(ConfigError) as error:
        drafted(model, max_new_tokens=5, **prompts(1), **options)
    assert passes.count == 0
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_an_assistant_is_refused_by_name() -> None:
    model = model_of("Llama")
    with pytest.raises(ConfigError, match="assistant_model is not supported"):
        drafted(model, max_new_tokens=5, **prompts(1), assistant_model=model_of("Qwen3"))


@pytest.mark.parametrize(
    "options",
    [
        {"guidance_scale": 1.5},
        {"watermarking_config": transformers.SynthIDTextWatermarkingConfig([3, 5, 7], 3)},
    ],
)
def test_processors_with_a_state_of_the_whole_batch_are_refused_for_a_batch(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"with 2 rows is not supported.*one row at a time"):
        drafted(model_of("Llama"), max_new_tokens=5, do_sample=True, **prompts(2), **options)


SMALL: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2}


def recurrent(name: str) -> Any:
    """A model with a recurrent state."""
    attention = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    configs = {
        "Mamba": lambda: transformers.MambaConfig(**SMALL, state_size=4),
        "Mamba2": lambda: transformers.Mamba2Config(
            **SMALL, num_heads=8, head_dim=8, state_size=4, n_groups=1
        ),
        "RecurrentGemma": lambda: transformers.RecurrentGemmaConfig(
            **SMALL, **attention, lru_width=32, attention_window_size=16
        ),
        "Qwen3Next": lambda: transformers.Qwen3NextConfig(
            **SMALL, **attention, head_dim=8, num_experts=2, num_experts_per_tok=1,
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
            linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"],
        ),
    }  # fmt: skip
    model = getattr(transformers, f"{name}ForCausalLM")(configs[name]()).eval()
    model.generation_config.pad_token_id = 0
    return model


@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "RecurrentGemma", "Qwen3Next"])
def test_a_recurrent_model_is_refused_by_name(name: str) -> None:
    model = recurrent(name)
    with Passes(model) as passes, pytest.raises(ModelError, match=f"{name}ForCausalLM") as error:
        drafted(model, max_new_tokens=5, **prompts(1))
    assert passes.count == 0
    assert "recurrent state" in str(error.value) or "cache" in str(error.value)


def test_a_recurrent_model_without_a_cache_drafts() -> None:
    model = recurrent("Mamba").double()
    options = {"max_new_tokens": 20, "use_cache": False, **prompts(1)}
    got, passes = drafted(model, **options, policy="fixed")
    assert torch.equal(got, plain(model, **options))
    assert passes.count < 20


def test_an_encoder_decoder_is_refused_by_name() -> None:
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config).eval()
    with pytest.raises(ModelError, match=r"T5ForConditionalGeneration is an encoder-decoder"):
        drafted(model, max_new_tokens=5, **prompts(1))


def test_a_window_that_has_dropped_tokens_is_refused_and_a_full_one_is_not() -> None:
    model, ids = model_of("Gemma3"), prompts(1)["input_ids"]
    for count, fits in ((8, True), (24, False)):
        cache = transformers.DynamicCache(config=model.config)
        first = model.generate(ids[:, :count], cache=cache, max_new_tokens=2, eos_token_id=None)
        longer = torch.cat([first, torch.tensor([[9, 8, 7]])], -1)
        options: dict[str, Any] = {"max_new_tokens": 20, "eos_token_id": None}
        expected = model.generate(longer, **options)
        if fits:
            got, _ = drafted(model, input_ids=longer, cache=cache, policy="fixed", **options)
            assert torch.equal(got, expected)
            assert type(cache.layers[0]) is transformers.cache_utils.DynamicSlidingWindowLayer
            continue
        with pytest.raises(ModelError, match="sliding window of 12 tokens has dropped"):
            drafted(model, input_ids=longer, cache=cache, **options)


def test_a_static_cache_of_the_callers_is_refused_by_name() -> None:
    model = model_of("Llama")
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    with pytest.raises(ModelError, match="StaticCache cannot be taken back"):
        drafted(model, max_new_tokens=5, cache=cache, **prompts(1))


def test_positions_that_change_with_the_length_are_refused_past_it() -> None:
    ropes = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = transformers.LlamaConfig(
        **SMALL, intermediate_size=48, num_attention_heads=4, max_position_embeddings=40,
        rope_parameters=ropes, pad_token_id=0, eos_token_id=3,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    model.generation_config.pad_token_id = 0
    options = {"max_new_tokens": 16, **prompts(1)}
    got, _ = drafted(model, **options, policy="fixed")
    assert torch.equal(got, plain(model, **options))
    with pytest.raises(ModelError, match=r"past 40 tokens.*pass max_length=40 or less"):
        drafted(model, **{**options, "max_new_tokens": 30})


def test_a_failed_call_leaves_the_callers_cache_as_it_found_its_layers() -> None:
    class Breaks(transformers.LogitsProcessor):  # type: ignore[misc, name-defined]
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            if input_ids.shape[1] > 30:
                raise RuntimeError("broken")
            return scores

    model = model_of("Llama")
    cache = transformers.DynamicCache(config=model.config)
    with pytest.raises(RuntimeError, match="broken"):
        drafted(
            model, max_new_tokens=40, cache=cache, logits_processor=[Breaks()], policy="fixed",
            eos_token_id=None, **prompts(1),
        )  # fmt: skip
    assert {type(layer).__name__ for layer in cache.layers} == {"DynamicLayer"}
