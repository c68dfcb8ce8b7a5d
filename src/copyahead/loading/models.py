"""Which backend runs a model: llama.cpp a GGUF file, transformers a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from copyahead.config import ModelOptions
from copyahead.contracts import Backend, Tokenizer
from copyahead.errors import ModelError
from copyahead.step_cost import StepCost


class Probed(NamedTuple):
    """A backend with the settings that its probe chose."""

    backend: Backend
    keep_step_cost: Callable[[Path, Any, StepCost], None]
    """Keeps what real passes have cost with what the probe of these settings found."""


def find(path: str | os.PathLike[str] | None) -> Path:
    """The model to use: a GGUF file, or a folder of transformers; None takes the bundled one.

    What is no path may be the name of a model that is on this machine already; a path that exists
    always wins. Raises ModelError where `path` is none of these.
    """
    from copyahead.backends.llama_cpp.gguf import find_model
    from copyahead.backends.transformers.folder import is_folder

    if path is None:
        return find_model(None)
    given = Path(path).expanduser()
    if may_be_name(given):
        from copyahead.loading.catalog import find_named, unknown

        entry = find_named(str(given))
        if entry is None:
            what = unknown(str(given))
            raise ModelError(f"model {given} does not exist: {what}")
        given = entry.path
    return given if is_folder(given) else find_model(given)


def may_be_name(path: Path) -> bool:
    """Whether `path` is no path that exists, and none that is written out from a root."""
    return bool(path.name) and not path.is_absolute() and not os.path.lexists(path)


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
