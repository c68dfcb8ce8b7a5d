"""`copyahead chat` over the bundled model, unprobed: `python -m tests.cli.chat.real_chat ...`."""

from __future__ import annotations

from typing import Any
from unittest import mock

from copyahead import loading
from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.cli import main
from copyahead.config import ModelOptions
from tests.machine import THREADS


def load(path: Any, *, model: ModelOptions, lookup: Any, draft: Any) -> Any:
    settings = LlamaSettings(threads=THREADS, ctx=model.ctx, parallel=1)
    return loading.make_engine(LlamaBackend(path, settings), lookup=lookup)


if __name__ == "__main__":
    with mock.patch.object(loading, "load", load):
        main()
