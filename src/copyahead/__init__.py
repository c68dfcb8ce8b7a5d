"""copyahead: prompt-lookup decoding, the same text in fewer passes.

    engine = copyahead.load("model.gguf")
    tokens = engine.backend.tokenizer.encode(prompt)
    print(engine.complete(copyahead.Request(prompt=tokens, max_tokens=200)).text)

Importing the package loads no engine and compiles nothing: names are found when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from copyahead._version import __version__

if TYPE_CHECKING:
    from copyahead.config import LookupOptions, ModelOptions
    from copyahead.engine import Choice, Chunk, Completion, Engine, Request
    from copyahead.errors import CopyaheadError
    from copyahead.loading import load
    from copyahead.plugins.transformers.generation import generate
    from copyahead.sampling import SamplingOptions
    from copyahead.types import Draft, Exactness, FinishReason, Source

_HOMES = {
    "Choice": "engine",
    "Chunk": "engine",
    "Completion": "engine",
    "CopyaheadError": "errors",
    "Draft": "types",
    "Engine": "engine",
    "Exactness": "types",
    "FinishReason": "types",
    "LookupOptions": "config",
    "ModelOptions": "config",
    "Request": "engine",
    "SamplingOptions": "sampling",
    "Source": "types",
    "generate": "plugins.transformers",
    "load": "loading",
}

__all__ = [
    "Choice",
    "Chunk",
    "Completion",
    "CopyaheadError",
    "Draft",
    "Engine",
    "Exactness",
    "FinishReason",
    "LookupOptions",
    "ModelOptions",
    "Request",
    "SamplingOptions",
    "Source",
    "__version__",
    "generate",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"copyahead.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'copyahead' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
