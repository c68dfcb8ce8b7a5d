"""Tiny random models of several families, in float64, and what plain `generate` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import dropwhile
from typing import Any

import torch
import transformers

import copyahead
from copyahead.step_cost import StepCost
from copyahead.testing import ForcedDrafter
from copyahead.types import Token

VOCAB, PAD, END = 48, 0, 3
CHEAP = StepCost.linear(0.01)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "bos_token_id": 1,
}
_WINDOWS = {**_SIZES, "sliding_window": 12, "query_pre_attn_scalar": 8}
_ENDS = {"vocab_size": VOCAB, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": 1}
_GPT2 = {**_ENDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
_BLOOM = {**_ENDS, "hidden_size": 32, "n_layer": 2, "n_head": 4}

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": _SIZES,
    "Qwen3": _SIZES,
    # A cap that random weights do not reach: at the cap all logits are equal.
    "Gemma2": {**_WINDOWS, "final_logit_softcapping": 900.0},
    "Gemma3": {**_WINDOWS, "sliding_window_pattern": 2},
    "Mistral": {**_SIZES, "sliding_window": 16},
    "Mixtral": {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "GPT2": _GPT2,
    "Bloom": _BLOOM,
}  # fmt: skip
"""Llama-like, with windows, with experts, and one that knows no position ids."""


@cache
def model_of(family: str) -> Any:
    """A model of `family` with random weights; always the same one."""
    kind = "Gemma3Text" if family == "Gemma3" else family
    config = getattr(transformers, f"{kind}Config")(**FAMILIES[family])
    suffix = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}{suffix}")(config).double().eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:  # Larger ones than usual, so that texts are not all alike.
                weights.mul_(4.0)
    if family == "Mixtral":
        model.set_experts_implementation("eager")  # The others have no float64.
    model.generation_config.pad_token_id = PAD
    model.generation_config.eos_token_id = END
    return model


def prompts(num_rows: int, *, length: int = 24, seed: int = 5) -> dict[str, Any]:
    """Input ids and an attention mask; rows after the first are padded on the left."""
    torch.manual_seed(seed)
    ids = torch.randint(4, VOCAB, (num_rows, length))
    ids[:, length // 2 :] = ids[:, : length - length // 2]  # There is something to copy.
    mask = torch.ones_like(ids)
    for row in range(1, num_rows):
        mask[row, : 3 * row] = 0
        ids[row, : 3 * row] = PAD
    return {"input_ids": ids, "attention_mask": mask}


@dataclass
class Passes:
    """Counts the passes of a model while it is entered, and their rows."""

    model: Any
    count: int = 0
    widths: list[int] = field(default_factory=list)

    def __enter__(self) -> Passes:
        self._hook = self.model.register_forward_pre_hook(self._note, with_kwargs=True)
        return self

    def _note(self, _model: Any, _args: Any, kwargs: Any) -> None:
        self.count += 1
        if kwargs.get("input_ids") is not None:
            self.widths.append(kwargs["input_ids"].shape[1])

    def __exit__(self, *_error: object) -> None:
        self._hook.remove()


def tokens_of(output: Any) -> Any:
    """The sequences of what `generate` returns."""
    return output if isinstance(output, torch.Tensor) else output.sequences


def plain(model: Any, *, seed: int = 1, **options: Any) -> Any:
    """Plain `generate`."""
    torch.manual_seed(seed)
    return model.generate(**options)


def drafted(model: Any, *, seed: int = 1, **options: Any) -> tuple[Any, Passes]:
    """The same with drafts, and its passes. At a given cost: drafts depend on no clock."""
    options = {"step_cost": CHEAP, **options}
    torch.manual_seed(seed)
    with Passes(model) as passes:
        output = model.generate(custom_generate=copyahead.generate, **options)
    return output, passes


def knowing(sequences: Any, wrong: Sequence[int], length: int = 5) -> ForcedDrafter:
    """A drafter that knows what rows write, and errs in the `wrong[n]`-th token of its n-th draft.

    0 spoils the first token, a number from `length` on none; drafts are longer than rows need.
    """
    texts = [list(dropwhile(PAD.__eq__, row)) for row in sequences.tolist()]

    def plan(history: tuple[Token, ...]) -> list[Token]:
        held = len(history)
        for text in texts:
            if tuple(text[:held]) == history:
                draft = text[held : held + length]
                place = wrong[held % len(wrong)]
                if place < len(draft):
                    draft[place] = (draft[place] + 1) % VOCAB
                return draft
        return [5] * length

    return ForcedDrafter(plan)
