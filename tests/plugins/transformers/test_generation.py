"""`custom_generate=copyahead.generate`: the same text, whatever is drafted or asked for."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import copyahead  # noqa: E402
from copyahead.errors import ConfigError  # noqa: E402
from copyahead.testing import ForcedDrafter  # noqa: E402
from tests.plugins.transformers.models import (  # noqa: E402
    END,
    FAMILIES,
    PAD,
    VOCAB,
    drafted,
    knowing,
    model_of,
    plain,
    prompts,
    tokens_of,
)

MIXED = (9, 0, 2, 9, 1, 4, 9, 3)
"""Where drafts err: never, at once, in the middle."""


class EndsAtFive(transformers.StoppingCriteria):  # type: ignore[misc, name-defined]
    """A criterion of the user's own: a row ends after a token that 5 divides."""

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        return input_ids[:, -1] % 5 == 0


class Odd(transformers.LogitsProcessor):  # type: ignore[misc, name-defined]
    """A processor of the user's own: after an odd token comes no odd one."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        scores = scores.clone()
        odd = input_ids[:, -1] % 2 == 1
        scores[:, 1::2] -= 3.0 * odd[:, None]
        return scores


def allowed(batch: int, ids: Any) -> list[int]:
    """Every second token, other ones in other rows."""
    return list(range(4 + (batch + int(ids[-1])) % 2, VOCAB, 2))


OPTIONS: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"max_new_tokens": 17},
    "max_length": {"max_length": 40},
    "min_length": {"min_length": 60},
    "min_new_tokens": {"min_new_tokens": 40},
    "eos list": {"eos_token_id": [END, 7, 11]},
    "no eos": {"eos_token_id": None},
    "temperature": {"do_sample": True, "temperature": 0.6},
    "top_k": {"do_sample": True, "top_k": 4},
    "top_p": {"do_sample": True, "top_p": 0.7},
    "min_p": {"do_sample": True, "min_p": 0.2},
    "typical_p": {"do_sample": True, "typical_p": 0.6},
    "epsilon_cutoff": {"do_sample": True, "epsilon_cutoff": 0.02},
    "eta_cutoff": {"do_sample": True, "eta_cutoff": 0.02},
    "top_h": {"do_sample": True, "top_h": 0.5},
    "renormalize_logits": {"do_sample": True, "renormalize_logits": True, "top_k": 5},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.4},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[5], [6, 7], [8, 9, 10]]},
    "sequence_bias": {"sequence_bias": [[[9], 4.0], [[12, 13], -3.0]]},
    "suppress_tokens": {"suppress_tokens": [4, 5, 6, 20]},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(4, 30))},
    "forced_bos_token_id": {"forced_bos_token_id": 9},
    "forced_eos_token_id": {"forced_eos_token_id": END},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (4, 1.3)},
    "remove_invalid_values": {"remove_invalid_values": True},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": allowed},
    "watermarking_config": {
        "watermarking_config": {"bias": 3.0, "greenlist_ratio": 0.5, "seeding_scheme": "lefthash"}
    },
    "logits_processor": {"logits_processor": transformers.LogitsProcessorList([Odd()])},
    "stopping_criteria": {"stopping_criteria": [EndsAtFive()]},
    "stopping_criteria, no eos": {"stopping_criteria": [EndsAtFive()], "eos_token_id": None},
    "max_time": {"max_time": 1000.0},
    "use_cache off": {"use_cache": False},
    "prefill_chunk_size": {"prefill_chunk_size": 7},
    "cache_implementation": {"cache_implementation": "dynamic"},
    "num_return_sequences": {"do_sample": True, "top_k": 1, "num_return_sequences": 3},
}
"""Every option of `generate` that is honoured, one by one."""

ALONE = {"guidance_scale": {"guidance_scale": 1.5}}
"""What is honoured for one row only."""


def is_sampled(options: dict[str, Any]) -> bool:
    """Whether rows draw: in a batch each draws from a generator of its own."""
    return bool(options.get("do_sample")) and options.get("top_k") != 1


@pytest.mark.parametrize("name", [*OPTIONS, *ALONE])
def test_each_option_gives_the_text_of_plain_generate(name: str) -> None:
    model = model_of("Llama")
    options = {"max_new_tokens": 50, **prompts(1), **(OPTIONS | ALONE)[name]}
    if "max_length" in options:
        del options["max_new_tokens"]
    expected = plain(model, **options)
    for choice in ({"policy": "fixed"}, {"drafter": knowing(expected, MIXED)}):
        got, _ = drafted(model, **options, **choice)
        assert torch.equal(got, expected), choice


@pytest.mark.parametrize("name", [name for name in OPTIONS if not is_sampled(OPTIONS[name])])
def test_each_option_gives_the_text_of_plain_generate_in_a_batch(name: str) -> None:
    model = model_of("Llama")
    options = {"max_new_tokens": 50, **prompts(4), **OPTIONS[name]}
    if "max_length" in options:
        del options["max_new_tokens"]
    expected = plain(model, **options)
    for choice in ({"policy": "fixed"}, {"drafter": knowing(expected, MIXED)}):
        got, _ = drafted(model, **options, **choice)
        assert torch.equal(got, expected), choice


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_gives_the_same_text_in_fewer_passes(family: str, num_rows: int) -> None:
    model = model_of(family)
    options = {"max_new_tokens": 60, "eos_token_id": None, **prompts(num_rows)}
    expected = plain(model, **options)
    for wrong in ((9,), MIXED, (0,)):
        got, passes = drafted(model, **options, drafter=knowing(expected, wrong))
        assert torch.equal(got, expected), wrong
        assert passes.count <= (12 if wrong == (9,) else 60), wrong
    # Longer than the windows, for one row of the batch only.
    long = knowing(expected[:1], (40, 3), length=24)
    choices: tuple[Any, ...] = ({"drafter": long}, {})
    for choice in choices:
        got, _ = drafted(model, **options, **choice)
        assert torch.equal(got, expected), choice


@given(wrong=st.lists(st.integers(0, 8), min_size=1, max_size=24), length=st.integers(1, 9))
@settings(max_examples=8, deadline=None)
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
@pytest.mark.parametrize("returns", [False, True])
def test_no_draft_changes_the_text_of_a_batch(
    family: str, returns: bool, wrong: list[int], length: int
) -> None:
    model = model_of(family)
    options = {"max_new_tokens": 40, "return_dict_in_generate": returns, **prompts(3)}
    expected = plain(model, **options)
    drafter = knowing(tokens_of(expected), wrong, length)
    got, _ = drafted(model, **options, drafter=drafter)
    assert torch.equal(tokens_of(got), tokens_of(expected))


def test_a_drafter_that_raises_costs_drafts_and_no_text() -> None:
    def plan(history: tuple[int, ...]) -> list[int]:
        if len(history) > 30:
            raise RuntimeError("worn out")
        return [VOCAB + 5, 2**31 - 1, -7]

    model, options = model_of("Llama"), {"max_new_tokens": 30, **prompts(2)}
    got, _ = drafted(model, **options, drafter=ForcedDrafter(plan))
    assert torch.equal(got, plain(model, **options))


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("extra", [{}, {"repetition_penalty": 1.2}])
def test_scores_and_logits_are_those_of_plain_generate(num_rows: int, extra: Any) -> None:
    model = model_of("Llama")
    options = {
        "max_new_tokens": 40, "return_dict_in_generate": True, "output_scores": True,
        "output_logits": True, **prompts(num_rows), **extra,
    }  # fmt: skip
    expected = plain(model, **options)
    drafter = knowing(expected.sequences, MIXED)
    got, passes = drafted(model, **options, drafter=drafter)
    assert torch.equal(got.sequences, expected.sequences)
    assert passes.count < len(expected.scores) == len(got.scores) == len(got.logits)
    written = expected.sequences[:, options["input_ids"].shape[1] :]
    ended = (written == END).cumsum(-1) - (written == END).long()
    for j in range(written.shape[1]):
        for row in range(num_rows):
            if not ended[row, j]:
                for ours, theirs in ((got.scores, expected.scores), (got.logits, expected.logits)):
                    assert ours[j].shape == theirs[j].shape
                    assert torch.allclose(ours[j][row], theirs[j][row], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_the_cache_that_comes_back_is_that_of_plain_generate(family: str, num_rows: int) -> None:
    model = model_of(family)
    options = {"max_new_tokens": 40, "return_dict_in_generate": True, **prompts(num_rows)}
    expected = plain(model, **options)
    got, _ = drafted(model, **options, drafter=knowing(expected.sequences, MIXED))
    real = torch.cat([options["attention_mask"], torch.ones_like(got.sequences[:, 24:])], -1).bool()
    real[:, 24:] &= got.sequences[:, 24:] != PAD
    for ours, theirs in zip(got.cache.layers, expected.cache.layers, strict=True):
        assert type(ours) is type(theirs)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.keys.shape == theirs.keys.shape
        kept = real[:, : theirs.get_seq_length()][:, -theirs.keys.shape[2] :]
        for mine, own in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            places = kept[:, None, :, None]
            assert torch.allclose(mine * places, own * places, atol=1e-9)


@pytest.mark.parametrize("with_config", [True, False])
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_a_cache_of_the_callers_goes_on_over_turns(family: str, with_config: bool) -> None:
    model = model_of(family)

    def turns(generate: Any) -> list[Any]:
        cache = transformers.DynamicCache(config=model.config if with_config else None)
        ids, texts = prompts(1)["input_ids"], []
        for turn in range(3):
            ids = generate(input_ids=ids, cache=cache, max_new_tokens=20, eos_token_id=None)
            assert cache.get_seq_length() == ids.shape[1] - 1
            texts.append(ids)
            ids = torch.cat([ids, torch.tensor([[6 + turn, 9, 12]])], -1)
        assert all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
        return texts

    expected = turns(model.generate)
    ours = partial(model.generate, custom_generate=copyahead.generate)
    for choice in ({"policy": "fixed"}, {"drafter": knowing(expected[-1], MIXED)}):
        got = turns(partial(ours, **choice))
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_embeddings_in_the_place_of_ids() -> None:
    model, ids = model_of("Llama"), prompts(1)["input_ids"]
    options = {"inputs_embeds": model.get_input_embeddings()(ids), "max_new_tokens": 30}
    expected = plain(model, **options)
    got, passes = drafted(model, **options, policy="fixed")
    assert torch.equal(got, expected)
    assert passes.count < 30


class Heard(transformers.generation.streamers.BaseStreamer):  # type: ignore[misc, name-defined]
    """A streamer that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        self.heard.append(value.clone())

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("partially", [False, True])
def test_a_streamer_hears_what_plain_generate_says(num_rows: int, partially: bool) -> None:
    model, options = model_of("Llama"), {"max_new_tokens": 40, **prompts(num_rows)}
    first, second = Heard(), Heard()
    expected = plain(model, **options, streamer=first)
    ours: Any = copyahead.generate
    if partially:
        ours = partial(copyahead.generate, drafter=knowing(expected, MIXED))
    model.generate(**options, streamer=second, custom_generate=ours)
    assert second.ended == 1
    assert len(first.heard) == len(second.heard)
    assert all(torch.equal(a, b) for a, b in zip(first.heard, second.heard, strict=True))


def test_samples_of_one_row_are_those_of_plain_generate_for_every_seed() -> None:
    model = model_of("Llama")
    options = {"max_new_tokens": 40, "do_sample": True, "temperature": 0.9, **prompts(1)}
    accepted = 0
    for seed in range(8):
        expected = plain(model, seed=seed, **options)
        got, passes = drafted(model, seed=seed, **options, drafter=knowing(expected, MIXED))
        assert torch.equal(got, expected), seed
        accepted += expected.shape[1] - 24 - passes.count
        # Nor does a later draw notice that there were drafts.
        after = torch.rand(1)
        plain(model, seed=seed, **options)
        assert torch.equal(after, torch.rand(1))
    assert accepted > 50


def test_samples_of_a_batch_are_the_same_for_a_seed_whatever_was_drafted() -> None:
    model = model_of("Llama")
    options = {"max_new_tokens": 40, "do_sample": True, "temperature": 0.9, **prompts(4)}
    first, _ = drafted(model, **options, drafter=ForcedDrafter({}))
    for wrong in ((9,), MIXED, (0, 1, 9)):
        got, _ = drafted(model, **options, drafter=knowing(first, wrong))
        assert torch.equal(got, first), wrong
    other, _ = drafted(model, seed=2, **options, drafter=ForcedDrafter({}))
    assert not torch.equal(other, first)


def test_samples_of_a_batch_have_the_distribution_of_the_model() -> None:
    model = model_of("Llama")
    row = prompts(1, length=8)["input_ids"]
    ids = row.repeat(400, 1)
    options = {"input_ids": ids, "do_sample": True, "top_k": 3, "max_new_tokens": 2}
    greedy = plain(model, input_ids=row, max_new_tokens=2)
    # Everybody is offered the greedy continuation, which only some of them write.
    got, passes = drafted(model, **options, drafter=knowing(greedy, (9,)))
    seconds: dict[int, list[int]] = {}
    for first, second in got[:, -2:].tolist():
        seconds.setdefault(first, []).append(second)
    for first, those in seconds.items():
        if first == END or len(those) < 60:
            continue
        with torch.no_grad():
            logits = model(torch.cat([row, torch.tensor([[first]])], -1)).logits[0, -1]
        top = logits.topk(3)
        for token, share in zip(top.indices.tolist(), top.values.softmax(-1).tolist(), strict=True):
            spread = (share * (1 - share) / len(those)) ** 0.5
            assert abs(those.count(token) / len(those) - share) < 4 * spread + 1e-3
    assert passes.count == 2


def test_a_model_remembers_what_it_learnt_from_call_to_call() -> None:
    from copyahead.plugins.transformers.drafting import drafters_of

    # The cost is measured, and kept as well.
    model, options = model_of("Qwen3"), {"max_new_tokens": 40, "step_cost": None, **prompts(2)}
    drafted(model, **options)
    kept = drafters_of(model, on_cpu=True)
    drafter = kept.drafter("priced", 2, 64, VOCAB)
    kept.lock.release()
    drafted(model, **options)
    kept = drafters_of(model, on_cpu=True)
    try:
        assert kept.drafter("priced", 2, 64, VOCAB) is drafter
        drafter.check()
        # While it is in use a second call gets a drafter of its own, and the same text.
        got, _ = drafted(model, **options)
    finally:
        kept.lock.release()
    del options["step_cost"]
    assert torch.equal(got, plain(model, **options))


def test_options_of_the_plugin_are_checked() -> None:
    model, options = model_of("Llama"), {"max_new_tokens": 5, **prompts(1)}
    with pytest.raises(ConfigError, match="max_draft_tokens must be from 1 to 64, not 65"):
        drafted(model, **options, max_draft_tokens=65)
    with pytest.raises(ConfigError, match="policy"):
        drafted(model, **options, policy="no_such_rule")
    with pytest.raises(ConfigError, match=r"called by transformers: model\.generate"):
        copyahead.generate(model, options["input_ids"])


def test_max_draft_tokens_bounds_a_pass() -> None:
    model, options = model_of("Llama"), {"max_new_tokens": 40, **prompts(2)}
    expected = plain(model, **options)
    drafter = knowing(expected, (9,), length=12)
    _, passes = drafted(model, **options, drafter=drafter, max_draft_tokens=3)
    assert max(passes.widths[1:]) == 4


def test_importing_copyahead_loads_no_host() -> None:
    code = (
        "import sys, copyahead, copyahead.plugins, copyahead.plugins.transformers\n"
        "assert not {'torch', 'transformers', 'llama_cpp', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
