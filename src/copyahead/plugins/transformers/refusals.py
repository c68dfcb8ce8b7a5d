"""What `copyahead.generate` cannot honour, refused by name before anything is generated."""

from __future__ import annotations

from typing import Any

from copyahead.errors import ConfigError, ModelError
from copyahead.plugins.transformers.cache import why_not
from copyahead.plugins.transformers.choosing import STATEFUL

_MODES = ("greedy_search", "sample")

_WHY = {
    "constraints": "it is a beam search",
    "force_words_ids": "it is a beam search",
    "num_beams": "a beam search decides no token before its end",
    "penalty_alpha": "contrastive search looks at hidden states",
    "dola_layers": "it compares the layers of one pass",
    "prompt_lookup_num_tokens": "it is another drafter: leave it out",
    "assistant_early_exit": "it is another drafter: leave it out",
    "use_mtp": "it is another drafter: leave it out",
    "output_attentions": "a pass has those of rejected rows too",
    "output_hidden_states": "a pass has those of rejected rows too",
}
"""Options that ask for something else than one token after the other, where they are set."""

_UNSET = (None, False, 0, 0.0)

_ROPES_THAT_CHANGE = ("dynamic", "longrope")


def refuse(
    model: Any,
    config: Any,
    logits_processor: Any,
    model_kwargs: dict[str, Any],
    *,
    batch_size: int,
    synced_gpus: bool,
    has_assistant: bool,
) -> None:
    """Raise ConfigError for an option, or ModelError for a model or cache, that drafts exclude."""
    if model.config.is_encoder_decoder:
        raise ModelError(
            f"copyahead.generate needs a decoder-only model, and {_name(model)} is an "
            "encoder-decoder: call generate without custom_generate"
        )
    if synced_gpus:
        raise ConfigError(
            "synced_gpus is not supported by copyahead.generate: its passes differ from one "
            "process to another; call generate without custom_generate"
        )
    if has_assistant:
        raise _refused("assistant_model", "it is another drafter: leave it out")
    _refuse_options(config)
    _refuse_ropes(model, config)
    if batch_size > 1:
        for processor in logits_processor:
            if isinstance(processor, STATEFUL):
                raise _refused(
                    f"{type(processor).__name__} with {batch_size} rows",
                    "it keeps one state for the whole batch; generate one row at a time",
                )
    if config.use_cache:
        _refuse_cache(model, config, model_kwargs)


def check_cache(model: Any, cache: Any) -> None:
    """Raise ModelError where rows of `cache` cannot be taken back."""
    if cache is None:
        reason = "it has no cache of transformers' own"
    else:
        reason = why_not(cache)
    if reason:
        raise ModelError(
            f"copyahead.generate cannot draft for {_name(model)}: {reason}; call generate without "
            "custom_generate"
        )


def _refuse_options(config: Any) -> None:
    for option, reason in _WHY.items():
        value = getattr(config, option, None)
        if option == "num_beams" and value == 1:
            continue
        if option == "penalty_alpha" and config.do_sample:
            continue
        if value not in _UNSET:
            raise _refused(f"{option}={value!r}", reason)
    mode = str(getattr(config.get_generation_mode(), "value", ""))
    if mode not in _MODES:
        raise _refused(f"the mode {mode}", "it does not choose one token after the other")


def _refuse_cache(model: Any, config: Any, model_kwargs: dict[str, Any]) -> None:
    if config.cache_implementation not in (None, "dynamic"):
        raise _refused(
            f"cache_implementation={config.cache_implementation!r}",
            "it cannot be taken back; pass cache_implementation='dynamic'",
        )
    check_cache(model, model_kwargs.get("cache"))


def _refuse_ropes(model: Any, config: Any) -> None:
    """Refuse position encodings that change as the text grows past a length."""
    text = model.config.get_text_config(decoder=True)
    ropes = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kinds = [ropes, *(value for value in ropes.values() if isinstance(value, dict))]
    for rope in kinds:
        kind = rope.get("rope_type", rope.get("type"))
        if kind not in _ROPES_THAT_CHANGE:
            continue
        limit = rope.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        limit = limit or text.max_position_embeddings
        if config.max_length is None or config.max_length > limit:
            raise ModelError(
                f"copyahead.generate cannot draft for {_name(model)} past {limit} tokens: its "
                f"positions are encoded anew there ({kind}); pass max_length={limit} or less, or "
                "call generate without custom_generate"
            )


def _refused(option: str, reason: str) -> ConfigError:
    return ConfigError(f"{option} is not supported by copyahead.generate: {reason}")


def _name(model: Any) -> str:
    return type(model).__name__
