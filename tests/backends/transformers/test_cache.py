"""Which caches of transformers can be taken back, held against what a model then says."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-transformers")
pytest.importorskip("transformers", reason="needs transformers: make test-transformers")

from copyahead.backends.transformers import cache as caches
from copyahead.errors import ModelError
from tests.backends.transformers.models import CONFIGS, RECURRENT, make_model

CROPPABLE = sorted(set(CONFIGS) - set(RECURRENT))


def logits_of(model: Any, cache: Any, tokens: list[int]) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([tokens]), cache=cache, use_cache=True).logits[0]


@pytest.mark.parametrize("kind", CROPPABLE)
def test_a_full_cache_forgets_rejected_tokens(kind: str) -> None:
    model = make_model(kind)
    tokens = list(range(3, 60))
    cache, fresh = caches.full_cache(model.config), caches.full_cache(model.config)
    caches.check_rollback(model.config)
    logits_of(model, cache, tokens)
    caches.crop(cache, len(tokens))
    logits_of(model, cache, [9, 8, 7, 6, 5])
    caches.crop(cache, len(tokens) + 2)
    caches.crop(cache, len(tokens) + 2)
    caches.check_rollback(cache)
    logits_of(model, fresh, [*tokens, 9, 8])
    caches.crop(fresh, len(tokens) + 2)
    found, wanted = logits_of(model, cache, [40, 41]), logits_of(model, fresh, [40, 41])
    assert torch.allclose(found, wanted, atol=1e-9)
    assert cache.get_seq_length() == len(tokens) + 4


@pytest.mark.parametrize("kind", sorted(RECURRENT))
def test_a_recurrent_layer_is_refused_by_name(kind: str) -> None:
    config = CONFIGS[kind]()
    name = caches.recurrent_layer(config)
    assert name == RECURRENT[kind]
    with pytest.raises(ModelError, match=rf"layer of type {name} keeps a recurrent state"):
        caches.check_rollback(config)


def test_a_filled_recurrent_cache_is_refused_by_name() -> None:
    model = make_model("mamba")
    cache = caches.full_cache(model.config)
    caches.check_rollback(cache)
    logits_of(model, cache, [3, 4, 5])
    with pytest.raises(ModelError, match="LinearAttentionLayer keeps a recurrent state"):
        caches.check_rollback(cache)


def test_a_window_that_was_passed_unrecorded_is_refused() -> None:
    from transformers import DynamicCache

    model = make_model("gemma2")
    cache = DynamicCache(config=model.config)
    caches.check_rollback(cache)
    logits_of(model, cache, list(range(3, 60)))
    with pytest.raises(ModelError, match="a sliding window of 16 tokens has forgotten"):
        caches.check_rollback(cache)
    with pytest.raises(ModelError, match="cannot be taken back to 50 tokens"):
        caches.crop(cache, 50)


def test_a_recorded_window_can_be_taken_back() -> None:
    from transformers import DynamicCache

    model = make_model("gemma2")
    cache, full = DynamicCache(config=model.config), caches.full_cache(model.config)
    caches.record(cache)
    for one in (cache, full):
        for tokens in (list(range(3, 60)), [9, 8, 7, 6]):
            logits_of(model, one, tokens)
            caches.check_rollback(one)
            caches.crop(one, 58)
    found, wanted = logits_of(model, cache, [40, 41]), logits_of(model, full, [40, 41])
    assert torch.allclose(found, wanted, atol=1e-9)


def test_a_cache_that_cannot_be_cropped_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="a cache of type dict cannot be cropped"):
        caches.check_rollback({})
