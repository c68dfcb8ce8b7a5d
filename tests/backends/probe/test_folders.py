"""The probe of folders of transformers models: which settings it takes, and what it keeps."""

from __future__ import annotations

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-transformers")
pytest.importorskip("transformers", reason="needs transformers: make test-transformers")

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from copyahead.backends.probe import folders
from copyahead.backends.probe.measure import Measurer
from copyahead.config import ModelOptions
from copyahead.errors import ModelError
from copyahead.loading import load
from copyahead.step_cost import StepCost
from tests.backends.transformers.models import make_model, save

OPTIONS = ModelOptions(device="cpu", threads=1, ctx=256, parallel=2)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("llama").float(), tmp_path_factory.mktemp("llama"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COPYAHEAD_CACHE_DIR", str(tmp_path))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
def test_what_is_exact_is_taken_where_it_is_insisted_on(kind: str, tmp_path: Path) -> None:
    folder = save(make_model(kind).float(), tmp_path / kind)
    found = folders.find_settings(folder, ModelOptions(device="cpu", threads=1, exact=True))
    assert found.proven
    assert (found.exactness.level, found.exactness.max_abs_diff) == ("exact", 0.0)
    assert (found.settings.kernel, found.settings.width > 0) == ("rows", True)
    assert found.settings.experts == ("batched_mm" if kind == "qwen3_moe" else "")
    assert min(found.step_seconds) == 1


def test_what_is_exact_and_much_dearer_is_left(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "DEARER", 0.0)
    near = folders.find_settings(llama, OPTIONS)
    assert near.settings.width == 0
    monkeypatch.setattr(folders, "DEARER", 1e9)
    exact = folders.find_settings(llama, OPTIONS)
    assert exact.exactness.level == "exact"


def test_the_settings_that_were_found_are_run(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "DEARER", 1e9)
    with load(llama, model=OPTIONS) as engine:
        settings: Any = engine.backend.settings
        assert (settings.ctx, settings.parallel) == (256, 2)
        assert engine.backend.exactness is not None
        assert engine.backend.exactness.level == "exact"


def test_it_is_measured_once(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = folders.find_settings(llama, OPTIONS)
    with monkeypatch.context() as broken:
        broken.setattr(Measurer, "run_screen", lambda *_: 1 / 0)
        assert folders.find_settings(llama, OPTIONS) == first
        with pytest.raises(ZeroDivisionError):
            folders.find_settings(llama, OPTIONS, again=True)
    folders.keep_step_cost(llama, first.settings, StepCost.linear(0.07))
    kept = folders.find_settings(llama, OPTIONS)
    assert kept.latest_cost(2) == pytest.approx(1.07)
    assert kept.step_cost(2) == first.step_cost(2)


def test_a_recurrent_model_is_exact_for_the_one_row_it_has(tmp_path: Path) -> None:
    folder = save(make_model("mamba"), tmp_path / "mamba")
    found = folders.find_settings(folder, ModelOptions(device="cpu", threads=1, exact=True))
    assert found.capabilities.max_rewind == 0
    assert (found.exactness.level, found.exactness.rows) == ("exact", 1)
    # A prompt that is read in other parts rounds differently, so it is not proven beside others.
    with pytest.raises(ModelError, match="exact: no settings"):
        folders.find_settings(
            folder, ModelOptions(device="cpu", threads=1, exact=True, parallel=2), again=True
        )


def test_nothing_exact_fails_where_it_is_insisted_on(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Measurer.run_screen

    def near(measurer: Measurer, dearest: float) -> Any:
        found = screen(measurer, dearest)
        assert found is not None
        return msgspec.structs.replace(found, max_abs_diff=0.1)

    monkeypatch.setattr(Measurer, "run_screen", near)
    with pytest.raises(ModelError, match=r"exact: no settings give .* the same logits"):
        folders.find_settings(llama, ModelOptions(device="cpu", threads=1, exact=True))
