"""Tiny random models of transformers, made from their configs: nothing is downloaded.

Their text is noise; what they are for is the shape of their state. `save` writes one as a folder,
with a small tokenizer that was trained here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB = 320
"""Rows of logits; those from `REAL_VOCAB` on are padding."""
REAL_VOCAB = 300
WINDOW = 16
_SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}
_TEXT = (
    "The list of files: main.py, engine.py, cache.py. The fox is in the engine and the list is "
    "in the file. A cache of the engine holds the list of the files, and the fox reads them. "
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _config(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        return getattr(transformers, name)(**{**_SMALL, **options})

    return make


CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": _config("LlamaConfig", num_hidden_layers=2),
    "mistral": _config("MistralConfig", num_hidden_layers=2, sliding_window=WINDOW),
    "gemma2": _config(
        "Gemma2Config", num_hidden_layers=2, sliding_window=WINDOW, query_pre_attn_scalar=8
    ),
    "gemma3": _config(
        "Gemma3TextConfig", num_hidden_layers=6, sliding_window=WINDOW, query_pre_attn_scalar=8
    ),
    "qwen3": _config("Qwen3Config", num_hidden_layers=2),
    "qwen3_moe": _config(
        "Qwen3MoeConfig",
        num_hidden_layers=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        decoder_sparse_step=1,
    ),
    "lfm2": _config(
        "Lfm2Config", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"]
    ),
    "mamba": _config("MambaConfig", num_hidden_layers=2, state_size=8),
    "jamba": _config(
        "JambaConfig",
        num_hidden_layers=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=8,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "qwen3_next": _config(
        "Qwen3NextConfig",
        num_hidden_layers=4,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    ),
    "bloom": _config("BloomConfig", n_layer=2, n_head=4),
}
RECURRENT = {
    "mamba": "linear_attention",
    "jamba": "linear_attention",
    "qwen3_next": "linear_attention",
}
"""Those with a state that cannot be taken back, and the kind of its layer."""


def make_model(kind: str, seed: int = 1) -> Any:
    """A model with random weights, in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(
        CONFIGS[kind](), dtype=torch.float64, experts_implementation="eager"
    ).eval()


def train_tokenizer() -> Any:
    """A byte-level tokenizer of `REAL_VOCAB` ids, three of them control tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=REAL_VOCAB,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([_TEXT] * 4, trainer)
    return made


def save(model: Any, folder: Path) -> Path:
    """Write `model` with its tokenizer and chat template, as hubs keep them."""
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    )
    tokenizer.save_pretrained(folder)
    return folder
