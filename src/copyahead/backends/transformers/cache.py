"""Which caches of transformers can be taken back, and how.

A layer with a sliding window forgets what the window has passed, unless it is told to keep it
(`full_cache`); the mask applies the window either way. A layer with a recurrent state sums up all
that it has read in one tensor, and that cannot be undone.

For whoever drafts for a model of transformers, here or where transformers owns the loop.
"""

from __future__ import annotations

from typing import Any

from copyahead.errors import MissingExtraError, ModelError

EXTRA = "transformers"
_WINDOWS = ("sliding_attention", "chunked_attention")
_CONVOLUTION = "conv"


def layer_types(config: Any) -> list[str]:
    """The kind of each layer's cache, in transformers' own words, such as `sliding_attention`.

    `config` is the model's. Raises ModelError where transformers has no cache for it.
    """
    found, _ = _layers(config)
    return found


def recurrent_layer(config: Any) -> str:
    """The first kind of layer whose state cannot be taken back; empty where there is none."""
    known = _transformers().cache_utils.DYNAMIC_LAYER_TYPE_MAPPING
    for kind in layer_types(config):
        if kind in _WINDOWS or kind == _CONVOLUTION:
            continue
        if known[kind].is_croppable is not True:
            return kind
    return ""


def windows(config: Any) -> list[int | None] | None:
    """By layer: how many tokens it looks back at, itself included; None: at all of them.

    None where layers do something else than attend to what comes before.
    """
    kinds, options = _layers(config)
    if set(kinds) - {"full_attention", "sliding_attention"}:
        return None
    return [given.get("sliding_window") for given in options]


def full_cache(config: Any) -> Any:
    """An empty cache that keeps every token, also in layers with a window.

    It can be cropped to any length, unless a layer is recurrent; those have their usual layers.
    Convolutions are recorded: they can go back by what came since the last `crop`.
    """
    module = _transformers().cache_utils
    kinds, options = _layers(config)
    layers = [
        module.DynamicLayer()
        if kind in _WINDOWS
        else module.DYNAMIC_LAYER_TYPE_MAPPING[kind](**given)
        for kind, given in zip(kinds, options, strict=True)
    ]
    cache = module.Cache(layers=layers)
    if not recurrent_layer(config):
        record(cache)
    return cache


def check_rollback(cache_or_config: Any) -> None:
    """Raise ModelError, with the name of the layer, where drafts could not be taken back.

    Takes a model's config, or a cache, empty or filled. A sliding window that may be recorded
    passes: call `record` before the cache is filled, or give the model a `full_cache`.
    """
    if hasattr(cache_or_config, "get_text_config"):
        kind = recurrent_layer(cache_or_config)
        if kind:
            raise ModelError(_recurrent(kind))
        return
    if not hasattr(cache_or_config, "layers"):
        raise ModelError(_no_crop(type(cache_or_config).__name__))
    for layer in cache_or_config.layers:
        fault = _fault(layer)
        if fault:
            raise ModelError(fault)


def record(cache: Any) -> None:
    """Have `cache` keep what a window or a convolution passes until the next `crop`."""
    cache.activate_past_recording()


def crop(cache: Any, length: int) -> None:
    """Keep the first `length` tokens of `cache`; no more than it holds. Idempotent.

    Where layers are recorded this also drops what they need no more, so call it after every pass.
    Raises ModelError where a layer cannot go back so far.
    """
    excess = max(0, cache.get_seq_length() - length)
    try:
        cache.crop(-excess)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"the cache cannot be taken back to {length} tokens: {error}") from None


def _layers(config: Any) -> tuple[list[str], list[dict[str, Any]]]:
    module = _transformers().cache_utils
    text = config.get_text_config(decoder=True)
    try:
        kinds, options = module.get_layer_types_and_kwargs(text)
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(
            f"transformers has no cache for models of type {text.model_type} ({error}): take one "
            "with layers of attention"
        ) from None
    known = module.DYNAMIC_LAYER_TYPE_MAPPING
    unknown = next((kind for kind in kinds if kind not in known), None)
    if unknown is not None:
        raise ModelError(
            f"transformers has no cache for a layer of type {unknown}: take another model"
        )
    return list(kinds), list(options)


def _fault(layer: Any) -> str:
    """Why `layer` of a cache cannot be taken back; empty where it can."""
    module = _transformers().cache_utils
    if isinstance(layer, module.LinearAttentionCacheLayerMixin):
        # Before the first pass it does not know yet whether it will hold more than a convolution.
        untouched = not any(layer.is_conv_states_initialized.values())
        return "" if untouched or layer.is_croppable else _recurrent(type(layer).__name__)
    if isinstance(layer, module.DynamicSlidingWindowLayer):
        passed = layer.get_seq_length() >= layer.sliding_window and not layer.record_past
        return _passed(layer.sliding_window) if passed else ""
    return "" if layer.is_croppable else _no_crop(type(layer).__name__)


def _recurrent(kind: str) -> str:
    return (
        f"drafts cannot be taken back: a layer of type {kind} keeps a recurrent state, and "
        "transformers cannot undo that; decode without lookup"
    )


def _passed(window: int) -> str:
    return (
        f"drafts cannot be taken back: a sliding window of {window} tokens has forgotten what "
        "came before it; start with an empty cache"
    )


def _no_crop(kind: str) -> str:
    return (
        f"drafts cannot be taken back: a cache of type {kind} cannot be cropped; take the "
        "dynamic cache, which is the default"
    )


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", EXTRA) from error
    return transformers
