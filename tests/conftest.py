"""Models that tests share: the bundled one, and tiny random ones written for the occasion."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from copyahead.backends.llama_cpp import LlamaBackend
from copyahead.backends.llama_load import LlamaSettings
from copyahead.models import bundled_model
from tests.tiny_models import TINY_MODELS


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A GGUF file for each name in `TINY_MODELS`."""
    folder = tmp_path_factory.mktemp("tiny-models")
    paths = {}
    for name, write in TINY_MODELS.items():
        paths[name] = folder / f"{name}.gguf"
        write(paths[name])
    return paths


@pytest.fixture(scope="session")
def bundled() -> Path:
    """The demo model's file."""
    return bundled_model()


@pytest.fixture(scope="session")
def llama(bundled: Path) -> Iterator[LlamaBackend]:
    """The demo model with four slots. Tests leave its slots empty."""
    backend = LlamaBackend(bundled, LlamaSettings(threads=2, ctx=1024, parallel=4))
    yield backend
    backend.close()
