"""Which backend runs a model: llama.cpp a GGUF file, transformers a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from copyahead.config import ModelOptions
from copyahead.contracts import Backend, Tokenizer
from copyahead.step_cost import StepCost


class Probed(NamedTuple):
    """A backend with the settings that its probe chose."""

    backend: Backend
    keep_step_cost: Callable[[Path, Any, StepCost], None]
    """Keeps what real passes have cost with what the probe of these settings found."""


def find(path: str | os.PathLike[str] | None) -> Path:
    """The model to use: a GGUF file, or a folder of transformers; None takes the bundled one.

    Raises ModelError where `path` is neither.
    """
    from copyahead.backends.llama_cpp.gguf import find_model
    from copyahead.backends.transformers.folder import is_folder

    if path is not None and is_folder(folder := Path(path).expanduser()):
        return folder
    return find_model(path)


def load_probed(path: Path, options: ModelOptions) -> Probed:
    """Load what `find` has found, with the settings that the probe takes. Raises ModelError."""
    if path.is_dir():
        from copyahead.backends.probe import folders

        return Probed(folders.load(path, options), folders.keep_step_cost)
    from copyahead.backends.probe import search

    options.check_file()
    return Probed(search.load(path, options), search.keep_step_cost)


@contextmanager
def vocabulary(path: Path) -> Iterator[Tokenizer]:
    """The tokenizer of what `find` has found, without the model. Raises ModelError without one."""
    if path.is_dir():
        from copyahead.backends.transformers.tokenizer import FolderTokenizer

        yield FolderTokenizer(path)
        return
    from copyahead.backends.llama_cpp.tokenizer import load_vocabulary

    with closing(load_vocabulary(path)) as found:
        yield found
