"""What a loaded model can do: found by trying it, as there are hundreds of architectures.

A short text is read at once and in parts, and in one pass beside another text. What gives the same
logits may be used; where nothing does, the model is refused.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, NamedTuple

from copyahead.backends.transformers import attention
from copyahead.backends.transformers import cache as caches
from copyahead.backends.transformers.apart import ApartMemory
from copyahead.backends.transformers.packed import PackedMemory
from copyahead.contracts import Part
from copyahead.errors import ModelError
from copyahead.types import Token

logger = logging.getLogger(__name__)

_TOLERANCES = {"float64": 1e-3, "float32": 1e-2}
_COARSE = 0.1
"""For types of 16 bits. A mask or a state that is wrong changes logits by as much as they vary."""
_FIRST, _REST = 13, 7
"""Lengths of the parts."""


class Abilities(NamedTuple):
    """How a model may be run."""

    windows: list[int | None] | None
    """By layer, where ragged rows of several sequences may share a pass; None where not."""
    recurrent: str
    """The kind of layer whose state cannot be taken back; empty where all can."""
    convolves: bool
    """Whether a layer convolves: then only what the last pass has read can be taken back."""
    resumes: bool
    """Whether a call of several rows goes on from what was read before."""
    experts: str
    """How the model computes its experts, in transformers' words; empty where it has none."""


def find_abilities(model: Any) -> Abilities:
    """Try out what `model` can do, and set it up for that. Raises ModelError for none."""
    import torch

    names = inspect.signature(type(model).forward).parameters
    if "cache" not in names:
        raise ModelError(
            f"models of type {model.config.model_type} keep their state in no cache of "
            "transformers, or need a newer one: take another model"
        )
    recurrent = caches.recurrent_layer(model.config)
    windows = None if recurrent else caches.windows(model.config)
    with torch.inference_mode():
        wanted, resumes = _read_apart(model, recurrent)
        packed = windows is not None and _runs_packed(model, windows, wanted)
    return Abilities(
        windows=windows if packed else None,
        recurrent=recurrent,
        convolves="conv" in caches.layer_types(model.config),
        resumes=resumes,
        experts=str(model.config._experts_implementation) if has_experts(model) else "",
    )


def has_experts(model: Any) -> bool:
    """Whether it has experts that can be computed in more than one way."""
    return bool(model._can_set_experts_implementation())


def _texts(model: Any) -> tuple[list[Token], list[Token]]:
    import torch

    size = int(model.config.get_text_config(decoder=True).vocab_size)
    random = torch.Generator().manual_seed(0)
    found = torch.randint(0, size, (2, _FIRST + _REST), generator=random).tolist()
    return found[0], found[1]


def _read_apart(model: Any, recurrent: str) -> tuple[Any, bool]:
    """Both texts' logits, each read at once, and whether reading in parts gives the same."""
    one, other = _texts(model)
    for resumes in (True, False):
        memory = ApartMemory(model, num_slots=3, recurrent=bool(recurrent), resumes=resumes)
        whole = memory.run([Part(0, 0, one, len(one)), Part(1, 0, other, len(other))])
        first = memory.run([Part(2, 0, one[:_FIRST], _FIRST)])
        second = memory.run([Part(2, _FIRST, one[_FIRST:], _REST)])
        if _alike(model, whole[: len(one)], first, second):
            return whole, resumes
    raise ModelError(
        f"models of type {model.config.model_type} do not go on from what they have read: "
        "take one that generates text token by token"
    )


def _runs_packed(model: Any, windows: list[int | None], wanted: Any) -> bool:
    """Whether ragged rows in one pass give the same; the model is left set up for it if so."""
    names = inspect.signature(type(model).forward).parameters
    before = model.config._attn_implementation
    if "position_ids" not in names or not model._can_set_attn_implementation():
        return False
    try:
        model.set_attn_implementation(attention.NAME)
        if _packed_is_right(model, windows, wanted):
            return True
    except Exception as error:
        # Whatever a model does that others do not: it is then run as transformers runs it.
        logger.debug("ragged passes fail: %r", error)
    model.set_attn_implementation(before)
    return False


def _packed_is_right(model: Any, windows: list[int | None], wanted: Any) -> bool:
    one, other = _texts(model)
    memory = PackedMemory(model, num_slots=2, windows=windows, kernel="sdpa", width=0)
    first = memory.run([Part(0, 0, one[:_FIRST], _FIRST)])
    rest = memory.run([Part(0, _FIRST, one[_FIRST:], _REST), Part(1, 0, other, len(other))])
    return _alike(model, wanted, first, rest)


def _alike(model: Any, whole: Any, *parts: Any) -> bool:
    import torch

    found = torch.cat(parts).double()
    wanted = whole.double()
    error = float((found - wanted).square().mean().sqrt())
    spread = float(wanted.std())
    kind = str(wanted.dtype if model.dtype is None else model.dtype).removeprefix("torch.")
    return error <= _TOLERANCES.get(kind, _COARSE) * spread
