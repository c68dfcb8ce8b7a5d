"""The tokenizer of a GGUF model, without its weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from copyahead.backends.llama_cpp.library import library, take_errors
from copyahead.backends.llama_cpp.tokenizer import LlamaTokenizer
from copyahead.errors import ModelError


class Vocabulary(LlamaTokenizer):
    """A tokenizer that keeps its own model loaded: the vocabulary only."""

    def __init__(self, module: Any, model: Any) -> None:
        super().__init__(module, module.llama_model_get_vocab(model))
        self._module = module
        self._model = model

    def close(self) -> None:
        """Free the vocabulary; the tokenizer is then of no more use. Idempotent."""
        model, self._model = self._model, None
        if model:
            self._module.llama_model_free(model)


def load_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of the model at `path`. Raises ModelError where it has none."""
    module = library()
    take_errors()
    params = module.llama_model_default_params()
    params.vocab_only = True
    model = module.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        errors = take_errors()
        reason = errors[-1] if errors else "no reason given"
        raise ModelError(f"llama.cpp cannot read the vocabulary of {path}: {reason}")
    return Vocabulary(module, model)
