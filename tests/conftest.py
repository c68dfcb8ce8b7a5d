"""What tests share: the bundled model, tiny random ones written for the occasion, a toy server."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.gguf import bundled_model
from copyahead.backends.llama_cpp.load import LlamaSettings
from tests.machine import THREADS
from tests.tiny_models import TINY_MODELS

if TYPE_CHECKING:
    import openai

    from tests.server.toys import Running

# How long an example takes is no property of the code: a busy machine fails no test.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")


def pytest_configure() -> None:
    """Where torch must be there, its tests are not left out for want of it."""
    if os.environ.get("COPYAHEAD_NEEDS_TORCH"):
        for package in ("torch", "transformers"):
            importlib.import_module(package)


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
    backend = LlamaBackend(bundled, LlamaSettings(threads=THREADS, ctx=1024, parallel=4))
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server over the toy that drafts whatever was copied."""
    from tests.server.toys import running

    with running(policy="fixed") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    """OpenAI's own client of that server."""
    import openai

    with openai.OpenAI(base_url=server.api, api_key="any", max_retries=0) as client:
        yield client
