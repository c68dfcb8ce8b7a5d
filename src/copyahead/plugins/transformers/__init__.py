"""Drafts for `generate` of transformers, which owns the loop.

    model.generate(**inputs, custom_generate=copyahead.generate)

generation  `generate`: propose, pass, choose, settle, for every row of the batch
target      the model's passes over ragged rows; cache: taking back what was rejected
choosing    transformers' own processors, draw and criteria, token by token
writing     the rows of a call: what each has written, and when it rests
drafting    the drafter of each model, kept from call to call, and the length of a batch's drafts
refusals    what cannot be honoured, by name
candidates  a `CandidateGenerator` for transformers' own assisted decoding

Names are found when they are used: importing the package loads neither torch nor transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from copyahead.errors import MissingExtraError

if TYPE_CHECKING:
    from copyahead.plugins.transformers.candidates import LookupCandidates
    from copyahead.plugins.transformers.generation import generate

_HOMES = {"LookupCandidates": "candidates", "generate": "generation"}

__all__ = ["LookupCandidates", "generate"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise MissingExtraError(error.name, "transformers") from error
    return getattr(module, name)
