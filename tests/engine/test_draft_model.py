"""A draft model in the engine: whatever it drafts, and whatever happens to it, the text is the
one of plain decoding, and its books agree after every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import copyahead
from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.config import DraftModelOptions, LookupOptions, ModelOptions
from copyahead.contracts import Logits, Part
from copyahead.drafters.model import ModelDrafter
from copyahead.drafters.pass_seconds import PassSeconds
from copyahead.engine import Completion, Engine, Request
from copyahead.engine.handle import collector
from copyahead.engine.request import Choice
from copyahead.errors import ConfigError, ModelError
from copyahead.evaluate.workloads import WORKLOADS, workload
from copyahead.loading import make_engine
from copyahead.loading.draft_model import load_draft_model
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import Source
from tests.small_models import quantized, with_layers
from tests.tiny_models import write_plain

MODES = (
    "model", "priced+off", "priced+priced", "priced+agree", "priced+longer", "priced+first",
    "fixed+agree", "window+longer", "hysteresis+first",
)  # fmt: skip
CHEAP = {1: 1e-6, 2: 1.1e-6}
WARM = SamplingOptions(temperature=1.0, seed=3)


def toy_engine(
    *, seed: int = 1, draft_seed: int = 1, num_slots: int = 3, num_cells: int | None = None,
    fail_on: object = None, draft_sample: bool = False, sharpness: float = 3.0,
) -> Engine:  # fmt: skip
    """A toy that is drafted for by another one; the same one where the seeds are equal."""
    model, other = (ToyLM(seed=n, sharpness=sharpness) for n in (seed, draft_seed))
    target = FakeBackend(model, num_slots=num_slots, num_cells=num_cells)
    small = FakeBackend(other, num_slots=num_slots)
    if fail_on is not None:
        small._fail_on = fail_on  # type: ignore[assignment]
    options = DraftModelOptions(draft_model="toy", draft_sample=draft_sample)
    drafter = ModelDrafter(small, options, seconds=PassSeconds(CHEAP, 128))
    return make_engine(
        target, lookup=LookupOptions(policy="priced"), draft=options, model_drafter=drafter
    )


def run_checked(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """All of them together, the books checked after every step."""
    answers = [[Choice(index=i) for i in range(request.n)] for request in requests]
    handles = [
        engine.submit(request, collector(choices))
        for request, choices in zip(requests, answers, strict=True)
    ]
    while not all(handle.done for handle in handles):
        engine.step()
        engine.check()
    return [
        Completion(choices=choices, stats=handle.stats)
        for choices, handle in zip(answers, handles, strict=True)
    ]


def softmax(logits: Logits) -> npt.NDArray[np.float64]:
    exps = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(exps / exps.sum())


def texts(done: Completion) -> list[object]:
    return [(c.tokens, c.text, c.finish_reason, c.error) for c in done.choices]


def toy_requests(mode: str | None) -> list[Request]:
    drafting = mode is not None
    return [
        Request(prompt=[1, 2, 3, 4] * 6, max_tokens=40, policy=mode, lookup=drafting),
        Request(prompt=[5, 6, 7], max_tokens=30, sampling=WARM, policy=mode, lookup=drafting),
        Request(
            prompt=[8, 9, 3] * 15, max_tokens=20, n=2, sampling=WARM, policy=mode, lookup=drafting
        ),
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("draft_seed", [1, 2])
def test_the_text_is_that_of_plain_decoding(mode: str, draft_seed: int) -> None:
    with toy_engine(draft_seed=draft_seed) as engine:
        together = run_checked(engine, toy_requests(mode))
        for request, got in zip(toy_requests(None), together, strict=True):
            engine.reset()
            assert texts(got) == texts(engine.complete(request))


def test_a_model_that_is_always_right_is_kept() -> None:
    with toy_engine() as engine:
        (done,) = run_checked(engine, [Request(prompt=[1, 2], max_tokens=40, policy="model")])
    count = done.stats.by_source[Source.MODEL]
    assert count.num_accepted_tokens == count.num_draft_tokens > 20
    assert done.stats.tokens_per_round > 4
    assert done.stats.num_model_passes >= count.num_draft_tokens
    assert done.stats.model_seconds > 0


@pytest.mark.parametrize("mode", ["model", "priced+first"])
def test_drawn_drafts_keep_the_distribution(mode: str) -> None:
    """The second token, of many runs with seeds, against the model's own probabilities."""
    wanted = np.zeros(20)
    lm = ToyLM(seed=1, sharpness=1.5)
    for token in range(20):
        wanted += softmax(lm.logits([4, 7]))[token] * softmax(lm.logits([4, 7, token]))
    found = np.zeros(20)
    with toy_engine(draft_seed=2, draft_sample=True, sharpness=1.5) as engine:
        for seed in range(800):
            sampling = SamplingOptions(temperature=1.0, seed=seed)
            request = Request(
                prompt=[4, 7], max_tokens=3, ignore_eos=True, sampling=sampling, policy=mode
            )
            found[engine.complete(request).choices[0].tokens[1]] += 1
        assert engine.stats.by_source[Source.MODEL].num_accepted_tokens > 80
    error = np.abs(found / 800 - wanted)
    assert (error < 5 * np.sqrt(wanted * (1 - wanted) / 800) + 1e-3).all()


def test_too_few_cells_take_places_away_and_change_no_text() -> None:
    requests = [
        Request(prompt=[1 + n, 5, 6] * 6, max_tokens=60, ignore_eos=True, policy="priced+first")
        for n in range(3)
    ]
    with toy_engine(num_cells=150) as engine:
        together = run_checked(engine, requests)
        assert engine.stats.preemptions > 0
    with toy_engine() as engine:
        for request, got in zip(requests, together, strict=True):
            engine.reset()
            plain = msgspec.structs.replace(request, policy=None, lookup=False)
            assert texts(got) == texts(engine.complete(plain))


@settings(max_examples=12, deadline=None)
@given(
    fails=st.sets(st.integers(1, 60)),
    mode=st.sampled_from(MODES),
    cancelled=st.integers(0, 12),
)
def test_a_draft_model_that_fails_costs_no_text(fails: set[int], mode: str, cancelled: int) -> None:
    def fail_on(number: int, _parts: Sequence[Part]) -> bool:
        return number in fails

    with toy_engine(draft_seed=2, fail_on=fail_on) as engine:
        first = engine.submit(toy_requests(mode)[1], lambda _chunk: None)
        for _ in range(cancelled):
            engine.step()
            engine.check()
        engine.cancel(first)
        together = run_checked(engine, toy_requests(mode))
        for request, got in zip(toy_requests(None), together, strict=True):
            engine.reset()
            assert texts(got) == texts(engine.complete(request))


def test_the_engine_closes_what_was_loaded_beside_it() -> None:
    closed: list[int] = []
    engine = toy_engine()
    engine.beside.callback(closed.append, 1)
    engine.close()
    engine.close()
    assert closed == [1]


# Tiny models, by llama.cpp


@pytest.fixture
def tiny(tiny_models: dict[str, Path]) -> Iterator[LlamaBackend]:
    backend = LlamaBackend(tiny_models["plain"], LlamaSettings(threads=1, ctx=512, parallel=2))
    yield backend
    backend.close()


@pytest.mark.parametrize("name", ["plain", "sliding_window"])
def test_tiny_models_draft_for_each_other(
    name: str, tiny: LlamaBackend, tiny_models: dict[str, Path]
) -> None:
    options = DraftModelOptions(draft_model=str(tiny_models[name]), hybrid="first", draft_max=4)
    drafter = load_draft_model(tiny, ModelOptions(threads=1), options)
    assert drafter is not None
    lookup = LookupOptions(policy="priced")
    with make_engine(tiny, lookup=lookup, draft=options, model_drafter=drafter) as engine:
        engine.beside.callback(drafter.backend.close)
        prompt = engine.backend.tokenizer.encode("the fox is in the dog on it")
        request = Request(prompt=prompt, max_tokens=40, ignore_eos=True)
        together = run_checked(engine, [request, msgspec.structs.replace(request, policy="model")])
        engine.reset()
        alone = engine.complete(msgspec.structs.replace(request, lookup=False))
    assert [texts(got) for got in together] == [texts(alone)] * 2
    if name == "plain":
        assert together[1].stats.num_accepted_tokens > 20


def test_a_recurrent_draft_model_is_refused_by_name(
    tiny: LlamaBackend, tiny_models: dict[str, Path]
) -> None:
    options = DraftModelOptions(draft_model=str(tiny_models["recurrent"]))
    with pytest.raises(ModelError, match=r"draft_model .*recurrent\.gguf keeps a recurrent state"):
        load_draft_model(tiny, ModelOptions(threads=1), options)


def test_wrong_draft_models_are_refused_before_anything_is_loaded(
    tiny_models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from copyahead.backends.probe import search

    monkeypatch.setattr(search, "load", lambda *_: pytest.fail("the model was loaded"))
    other = tmp_path / "other.gguf"

    write_plain(other, last_ids="<unused{}>")
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"nothing")
    for path, sentence in (
        ("missing.gguf", "draft_model missing.gguf does not exist"),
        (str(junk), "is not a GGUF file"),
        (str(other), "has another tokenizer: it has 288 tokens, and the model has 272"),
    ):
        with pytest.raises(ModelError, match=sentence):
            copyahead.load(tiny_models["plain"], draft=DraftModelOptions(draft_model=path))
    sampled = DraftModelOptions(draft_model=str(tiny_models["plain"]), draft_sample=True)
    with pytest.raises(ConfigError, match="exact and draft_sample exclude each other"):
        copyahead.load(tiny_models["plain"], model=ModelOptions(exact=True), draft=sampled)
    preset = LookupOptions(policy="window")
    with pytest.raises(ConfigError, match="hybrid priced needs copies that know their chances"):
        copyahead.load(
            tiny_models["plain"],
            lookup=preset,
            draft=DraftModelOptions(draft_model=str(tiny_models["plain"])),
        )


# The real model


@pytest.fixture(scope="module")
def models(bundled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The bundled model in Q8_0, and three that draft for it."""
    folder = tmp_path_factory.mktemp("draft-models")
    made = {kind: quantized(bundled, kind, folder / f"{kind}.gguf") for kind in ("Q8_0", "Q4_0")}
    made["two layers"] = with_layers(made["Q4_0"], 2, folder / "two-layers.gguf")
    return made


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("draft", ["Q4_0", "two layers"])
def test_every_mode_writes_the_same_on_the_real_model(draft: str, models: dict[str, Path]) -> None:
    options = ModelOptions(ctx=2048, parallel=4, threads=1, exact=True)
    small = DraftModelOptions(draft_model=str(models[draft]))
    with copyahead.load(models["Q8_0"], model=options, draft=small) as engine:
        assert engine.draft_model is not None
        encode = engine.backend.tokenizer.encode
        requests = [
            Request(prompt=encode(workload(name).prompt), max_tokens=32) for name in WORKLOADS
        ]
        plain, kept = [], 0
        for request in requests:
            # The first reads the prompt, and the others find it kept.
            plain.append(texts(engine.complete(msgspec.structs.replace(request, lookup=False))))
            for mode in MODES[:6]:
                done = engine.complete(msgspec.structs.replace(request, policy=mode))
                assert texts(done) == plain[-1], (mode, request.prompt[:9])
                count = done.stats.by_source.get(Source.MODEL)
                kept += count.num_accepted_tokens if count is not None else 0
        for first in (0, 3):
            for mode in MODES[:6]:
                asked = [msgspec.structs.replace(r, policy=mode) for r in requests[first:][:4]]
                got = [texts(done) for done in engine.complete_all(asked)]
                assert got == plain[first:][:4], mode
        assert kept > 0 or draft == "two layers"
