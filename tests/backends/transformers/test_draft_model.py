"""A folder that drafts for another, and for itself."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-transformers")
pytest.importorskip("transformers", reason="needs transformers: make test-transformers")

from copyahead.config import DraftModelOptions, LookupOptions, ModelOptions
from copyahead.engine import Request
from copyahead.errors import ModelError
from copyahead.loading import load
from copyahead.types import Source
from tests.backends.transformers.models import make_model, save

MODEL = ModelOptions(dtype="float64", device="cpu", threads=1, ctx=512)
ALONE = LookupOptions(lookup=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    return {name: save(make_model(name).double(), home / name) for name in ("llama", "qwen3")}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPYAHEAD_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("other", ["llama", "qwen3"])
def test_the_text_is_that_of_plain_decoding(folders: dict[str, Path], other: str) -> None:
    draft = DraftModelOptions(draft_model=str(folders[other]), draft_max=3)
    with load(folders["llama"], model=MODEL, lookup=ALONE) as engine:
        prompt = engine.backend.tokenizer.encode("The list of files: main.py")
        request = Request(prompt=prompt, max_tokens=24, ignore_eos=True)
        plain = engine.complete(request).choices[0].tokens
    with load(folders["llama"], model=MODEL, lookup=ALONE, draft=draft) as engine:
        done = engine.complete(request)
    assert done.choices[0].tokens == plain
    count = done.stats.by_source[Source.MODEL]
    assert count.num_draft_tokens > 0
    if other == "llama":
        assert count.num_accepted_tokens == count.num_draft_tokens
        assert done.stats.rounds < 10


def test_another_tokenizer_is_refused_by_name(folders: dict[str, Path], bundled: Path) -> None:
    with pytest.raises(ModelError, match=f"draft_model {bundled.name} has another tokenizer"):
        load(folders["llama"], draft=DraftModelOptions(draft_model=str(bundled)))
