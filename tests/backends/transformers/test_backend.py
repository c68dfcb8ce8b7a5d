"""Eleven architectures of transformers, tiny and random, behind the backend's contract.

In float64, where rows of a pass differ by nothing that could move a choice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-transformers")
pytest.importorskip("transformers", reason="needs transformers: make test-transformers")

from copyahead.backends.transformers.backend import TransformersBackend
from copyahead.backends.transformers.load import LoadedModel, TransformersSettings, load_model
from copyahead.config import LookupOptions, ModelOptions
from copyahead.contracts import Part
from copyahead.engine import Choice, Engine, Request
from copyahead.errors import BackendError, ConfigError, ModelError
from copyahead.loading import load, make_engine
from copyahead.sampling import SamplingOptions
from tests.backends.transformers.models import (
    CONFIGS,
    REAL_VOCAB,
    RECURRENT,
    VOCAB,
    make_model,
    save,
)

KINDS = sorted(CONFIGS)
RAGGED = {"llama", "mistral", "gemma2", "gemma3", "qwen3", "qwen3_moe"}
"""Those whose sequences share a pass; of the others each has its own."""
POLICY = LookupOptions(policy="fixed:num_draft_tokens=6,shortest_key=1")
SETTINGS = TransformersSettings(dtype="float64", ctx=256)


@pytest.fixture(scope="session", params=KINDS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    kind = request.param
    return load_model(
        save(make_model(kind), tmp_path_factory.mktemp(kind, numbered=False)), SETTINGS
    )


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(save(make_model("llama"), tmp_path_factory.mktemp("plain")), SETTINGS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def kind_of(loaded: LoadedModel) -> str:
    return loaded.folder.name


def backend(loaded: LoadedModel, parallel: int = 1, **settings: Any) -> TransformersBackend:
    given = {"dtype": "float64", "ctx": 256, "parallel": parallel, **settings}
    return TransformersBackend(loaded, TransformersSettings(**given))


def engine(loaded: LoadedModel, parallel: int = 1, *, lookup: bool = True) -> Engine:
    return make_engine(
        backend(loaded, parallel), lookup=POLICY if lookup else LookupOptions(lookup=False)
    )


def requests(count: int = 5) -> list[Request]:
    """Prompts that repeat themselves, some of them longer than a window."""
    random = np.random.default_rng(4)
    made = []
    for number in range(count):
        run = random.integers(3, REAL_VOCAB, 4 + number).tolist()
        sampled = SamplingOptions(temperature=0.4, top_p=0.9, seed=number)
        made.append(
            Request(
                prompt=run * (3 + number),
                sampling=sampled if number % 2 else SamplingOptions(),
                max_tokens=24,
                ignore_eos=True,
            )
        )
    return made


def run_all(engine: Engine, asked: Sequence[Request], cancel: int = -1) -> tuple[Any, int]:
    """Answers of requests that arrive while others run; the one numbered `cancel` is cancelled."""
    random = np.random.default_rng(len(asked))
    choices = [Choice(index=0) for _ in asked]
    handles = []
    for request, choice in zip(asked, choices, strict=True):
        handles.append(engine.submit(request, choice.add))
        for _ in range(int(random.integers(0, 5))):
            engine.step()
            engine.check()
    if cancel >= 0:
        engine.cancel(handles[cancel])
    while not all(handle.done for handle in handles):
        engine.step()
        engine.check()
    assert not any(engine.held.values())
    drafted = sum(handle.stats.num_draft_tokens for handle in handles)
    return [choice.tokens for choice in choices], drafted


def test_lookup_changes_no_token(loaded: LoadedModel) -> None:
    asked = requests()
    with engine(loaded, lookup=False) as plain:
        wanted = [plain.complete(request).choices[0].tokens for request in asked]
    with engine(loaded) as alone:
        assert [alone.complete(request).choices[0].tokens for request in asked] == wanted
    with engine(loaded, parallel=3) as batched:
        found, drafted = run_all(batched, asked, cancel=3)
    assert (drafted > 0) == (kind_of(loaded) not in RECURRENT)
    for number, tokens in enumerate(found):
        whole = wanted[number]
        assert tokens == (whole[: len(tokens)] if number == 3 else whole), number


def test_logits_are_those_of_the_model_itself(loaded: LoadedModel) -> None:
    """Whatever the parts and neighbours, and whatever was taken back before."""
    random = np.random.default_rng(0)
    one, other = (random.integers(3, REAL_VOCAB, 60).tolist() for _ in range(2))
    with torch.inference_mode():
        # In its own way, without a cache and without our attention.
        fresh = make_model(kind_of(loaded))
        wanted = fresh(torch.tensor([one]), use_cache=False).logits[0].float().numpy()
    tested = backend(loaded, parallel=2)
    first = tested.forward([Part(0, 0, one[:25], 25)])[0].copy()
    second, _ = (
        rows.copy() for rows in tested.forward([Part(0, 25, one[25:40], 2), Part(1, 0, other, 1)])
    )
    start = 40
    if tested.capabilities.max_rewind != 0:
        tested.forward([Part(1, 60, [5], 1), Part(0, 40, [one[40], 9, 9, 9], 4)])
        tested.truncate(0, 41)
        start = 41
    third = tested.forward([Part(0, start, one[start:], 60 - start)])[0]
    tested.check()
    limit = 1e-3 if kind_of(loaded) in RECURRENT else 2e-5
    for rows, begin in ((first, 0), (second, 38), (third, start)):
        assert np.abs(rows - wanted[begin : begin + len(rows)]).max() < limit


def test_capabilities_say_what_cannot_be_had(loaded: LoadedModel) -> None:
    kind, found = kind_of(loaded), backend(loaded).capabilities
    assert (loaded.abilities.windows is not None) == (kind in RAGGED)
    if kind in RECURRENT:
        assert found.max_rewind == 0
        assert "a layer of type linear_attention keeps a recurrent state" in found.note
    else:
        assert found.note == ""
        assert found.max_rewind == (64 if kind == "lfm2" else None)
    assert found.can_fork == (found.max_rewind is None)


def test_a_next_turn_goes_on_from_what_is_kept(loaded: LoadedModel) -> None:
    first = Request(prompt=list(range(3, 63)), max_tokens=8, ignore_eos=True)
    with engine(loaded, parallel=2) as kept:
        answer = kept.complete(first).choices[0].tokens
        turn = Request(prompt=[*first.prompt, *answer, 9, 10], max_tokens=8, ignore_eos=True)
        again = kept.complete(turn)
        kept.check()
    assert again.stats.num_cached_tokens >= 60
    with engine(loaded, lookup=False) as fresh:
        assert fresh.complete(turn).choices[0].tokens == again.choices[0].tokens


@pytest.mark.parametrize("kernel", ["sdpa", "rows", "eager"])
@pytest.mark.parametrize("width", [0, 8])
def test_every_setting_gives_the_same_logits(kernel: Any, width: int, llama: LoadedModel) -> None:
    random = np.random.default_rng(1)
    one, other = (random.integers(3, REAL_VOCAB, 30).tolist() for _ in range(2))
    found = []
    for tested in (backend(llama, 2), backend(llama, 2, kernel=kernel, width=width)):
        tested.forward([Part(1, 0, other[:3], 0)])
        rows = tested.forward([Part(0, 0, one, 3), Part(1, 3, other[3:], 30 - 3)])
        found.append(np.concatenate(rows))
    assert np.abs(found[0] - found[1]).max() < 1e-4
    assert found[0].shape == (30, VOCAB)


def test_a_fork_is_a_copy(llama: LoadedModel) -> None:
    tested = backend(llama, 3)
    tested.forward([Part(0, 0, list(range(3, 33)), 1)])
    tested.fork(0, 2, 20)
    wanted = tested.forward([Part(2, 20, [7, 8], 2)])[0].copy()
    tested.truncate(0, 20)
    assert np.array_equal(tested.forward([Part(0, 20, [7, 8], 2)])[0], wanted)
    assert [tested.length(slot) for slot in range(3)] == [22, 0, 22]
    tested.check()
    with pytest.raises(BackendError, match="fewer than 23"):
        tested.fork(0, 1, 23)
    with pytest.raises(BackendError, match="onto itself"):
        tested.fork(0, 0, 3)


@pytest.mark.parametrize("kind", ["llama", "bloom", "mamba"])
def test_a_pass_that_fails_leaves_no_longer_slots(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(save(make_model(kind), tmp_path), SETTINGS)
    tested = backend(loaded, 2)
    tested.forward([Part(0, 0, [3, 4, 5], 1)])
    head = loaded.model.get_output_embeddings()
    with monkeypatch.context() as broken:
        broken.setattr(head, "forward", lambda _: 1 / 0)
        with pytest.raises(BackendError, match="could not run a pass: division by zero"):
            tested.forward([Part(0, 3, [6, 7], 1), Part(1, 0, [6], 1)])
    assert [tested.length(slot) for slot in range(2)] == [0 if kind == "mamba" else 3, 0]
    tested.check()
    held = tested.length(0)
    tokens = [3, 4, 5, 6][held:]
    again = tested.forward([Part(0, held, tokens, 1)])[0]
    fresh = backend(loaded).forward([Part(0, 0, [3, 4, 5, 6], 1)])[0]
    assert np.abs(again - fresh).max() < 1e-5


def test_wrong_passes_are_refused(llama: LoadedModel) -> None:
    tested = backend(llama)
    for part, reason in (
        (Part(0, 1, [3], 1), "holds 0 tokens, and the pass starts at 1"),
        (Part(0, 0, [3], 2), "2 rows of logits asked of 1"),
        (Part(0, 0, [3] * 513, 1), "takes 1 to 512 rows"),
    ):
        with pytest.raises(BackendError, match=reason):
            tested.forward([part])


def test_what_is_no_such_model_is_refused_by_name(tmp_path: Path) -> None:
    import transformers

    small = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2}
    bert = transformers.BertConfig(
        num_attention_heads=2, intermediate_size=16, initializer_range=1.0, **small
    )
    save(transformers.BertForMaskedLM(bert), tmp_path / "bert")
    t5 = transformers.T5Config(d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=300)
    save(transformers.T5ForConditionalGeneration(t5), tmp_path / "t5")
    rwkv = transformers.RwkvConfig(attention_hidden_size=16, intermediate_size=16, **small)
    save(transformers.RwkvForCausalLM(rwkv), tmp_path / "rwkv")
    whole = save(make_model("llama"), tmp_path / "whole")
    for name in ("cut", "unknown", "damaged", "wordless"):
        (tmp_path / name).mkdir()
        for file in whole.iterdir():
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    settings = json.loads((whole / "config.json").read_text())
    more = {**settings, "num_hidden_layers": 3, "layer_types": None}
    (tmp_path / "cut" / "config.json").write_text(json.dumps(more))
    (tmp_path / "unknown" / "config.json").write_text('{"model_type": "perpetuum"}')
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"nothing")
    (tmp_path / "wordless" / "tokenizer.json").unlink()
    for name, reason in {
        "bert": "do not go on from what they have read",
        "t5": "encoder-decoder model: name one that generates",
        "rwkv": "models of type rwkv keep their state in no cache",
        "cut": "lacks 9 of its weights, such as model.layers.2",
        "unknown": "perpetuum",
        "damaged": "transformers cannot load",
        "wordless": r"has no tokenizer\.json",
    }.items():
        with pytest.raises(ModelError, match=reason) as refused:
            load_model(tmp_path / name, TransformersSettings())
        assert "\n" not in str(refused.value)


def test_options_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    save(make_model("llama"), tmp_path)
    with pytest.raises(ConfigError, match="kv_type is for GGUF files"):
        load(tmp_path, model=ModelOptions(kv_type="q8_0"))
    with pytest.raises(ConfigError, match="gpu_layers is for GGUF files"):
        load(tmp_path, model=ModelOptions(gpu_layers=3))
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device cuda needs a GPU"):
            load(tmp_path, model=ModelOptions(device="cuda"))


def test_a_type_is_taken_from_the_folder(tmp_path: Path) -> None:
    save(make_model("llama"), tmp_path)
    assert TransformersSettings.of(tmp_path, ModelOptions(device="cpu")).dtype == "float64"
    settings = json.loads((tmp_path / "config.json").read_text())
    for stored, taken in (("bfloat16", "bfloat16"), ("float16", "float32")):
        (tmp_path / "config.json").write_text(json.dumps({**settings, "dtype": stored}))
        assert TransformersSettings.of(tmp_path, ModelOptions(device="cpu")).dtype == taken


def test_a_context_ends_where_positions_would_be_turned_anew(tmp_path: Path) -> None:
    import transformers

    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    config = CONFIGS["llama"]()
    config.rope_parameters = {**rope, "original_max_position_embeddings": 100}
    torch.manual_seed(1)
    save(transformers.LlamaForCausalLM(config).double(), tmp_path)
    loaded = load_model(tmp_path, SETTINGS)
    assert TransformersBackend(loaded, SETTINGS).capabilities.context_size == 100
