"""Loading a folder with transformers: the settings, the model, and what it can do."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from copyahead.backends.transformers import attention
from copyahead.backends.transformers.abilities import Abilities, find_abilities
from copyahead.backends.transformers.attention import Kernel
from copyahead.backends.transformers.cache import EXTRA
from copyahead.backends.transformers.folder import read_json
from copyahead.backends.transformers.tokenizer import FolderTokenizer
from copyahead.config import ModelOptions
from copyahead.errors import ConfigError, MissingExtraError, ModelError

logger = logging.getLogger(__name__)

EXPERT_BY_EXPERT = "batched_mm"
"""transformers' name for a product of its own for every row and expert."""
_GROWING_ROPES = ("dynamic", "longrope")
"""Kinds of rotary positions that turn older tokens anew once a text has become long."""


class TransformersSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model runs: what the numbers of a pass may depend on, and the room for it."""

    device: str = "cpu"
    dtype: str = "float32"
    kernel: Kernel = "sdpa"
    """How attention is computed; see `attention.Kernel`."""
    experts: str = ""
    """How experts are computed, in transformers' words; empty: as the model was loaded."""
    width: int = 0
    """Rows of every call of the model, missing ones padded; 0: as many as there are."""
    threads: int = 1
    ctx: int = 4096
    parallel: int = 1
    verbose: bool = False

    @classmethod
    def of(cls, folder: Path, options: ModelOptions) -> TransformersSettings:
        """The settings that `options` ask for."""
        device = _device(options.device)
        return cls(
            device=device,
            dtype=_stored_dtype(folder, device) if options.dtype == "auto" else options.dtype,
            threads=options.num_threads,
            ctx=options.ctx,
            parallel=options.parallel,
            verbose=options.verbose,
        )

    def numerics(self) -> str:
        """What the logits may depend on, in words, for people."""
        width = f"calls of {self.width} rows" if self.width else "calls of as many rows as needed"
        rows_of = {"rows": "attention row by row", "sdpa": "attention by sdpa"}
        attention = rows_of.get(self.kernel, "plain attention")
        experts = f", experts by {self.experts}" if self.experts else ""
        place = f"{self.threads} threads" if self.device == "cpu" else self.device
        return f"{self.dtype}, {attention}{experts}, {width}, {place}"


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory. Several backends may run it, one at a time."""

    folder: Path
    model: Any
    tokenizer: FolderTokenizer
    abilities: Abilities
    logits_width: int
    context_size: int
    """Most tokens that the model was made for."""


def load_model(folder: Path, settings: TransformersSettings) -> LoadedModel:
    """Load the model in `folder`. Raises ModelError where it cannot be used."""
    torch = import_torch()
    from transformers import AutoConfig, AutoModelForCausalLM

    if settings.device == "cpu":
        torch.set_num_threads(settings.threads)
    with _quiet(settings.verbose), _told(folder):
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        if config.is_encoder_decoder:
            raise ModelError(f"model {folder} is an encoder-decoder model: {_OTHER}")
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, settings.dtype),
            local_files_only=True,
            output_loading_info=True,
            **_experts(settings),
        )
        missing = sorted(found["missing_keys"])
        if missing:
            raise ModelError(
                f"model {folder} lacks {len(missing)} of its weights, such as {missing[0]}: fetch "
                "it again"
            )
        model = model.to(settings.device).eval()
        return describe(folder, model)


def describe(folder: Path, model: Any) -> LoadedModel:
    """What `model`, which is in memory, can do, with the tokenizer of `folder`."""
    text = model.config.get_text_config(decoder=True)
    attention.register()
    try:
        abilities = find_abilities(model)
    except ModelError as error:
        raise ModelError(f"model {folder}: {error}") from None
    width = int(text.vocab_size)
    return LoadedModel(
        folder=folder,
        model=model,
        tokenizer=FolderTokenizer(folder, width=width),
        abilities=abilities,
        logits_width=width,
        context_size=_most_tokens(text),
    )


_OTHER = "name one that generates text token by token"


def import_torch() -> Any:
    """torch, and transformers with it. Raises MissingExtraError where one is not installed."""
    for package in ("torch", "transformers"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError(package, EXTRA) from error
    import torch

    return torch


def library_version() -> str:
    """The versions that the numbers depend on."""
    torch = import_torch()
    import transformers

    return f"torch {torch.__version__}, transformers {transformers.__version__}"


def device_name(device: str) -> str:
    """The GPU's own name; empty for a CPU."""
    return str(import_torch().cuda.get_device_name()) if device == "cuda" else ""


def _device(asked: str) -> str:
    has_gpu = bool(import_torch().cuda.is_available())
    if asked == "cuda" and not has_gpu:
        raise ConfigError("device cuda needs a GPU, and torch finds none: take cpu or auto")
    return ("cuda" if has_gpu else "cpu") if asked == "auto" else asked


def _stored_dtype(folder: Path, device: str) -> str:
    settings = read_json(folder / "config.json")
    inner = settings.get("text_config") or {}
    stored = next(
        (
            str(at[name])
            for at in (settings, inner)
            for name in ("dtype", "torch_dtype")
            if name in at
        ),
        "float32",
    ).removeprefix("torch.")
    known = ("float32", "bfloat16", "float16", "float64")
    if stored not in known or (stored == "float16" and device == "cpu"):
        return "float32"
    return stored


def _experts(settings: TransformersSettings) -> dict[str, Any]:
    """torch's grouped products know no float64."""
    return {"experts_implementation": EXPERT_BY_EXPERT} if settings.dtype == "float64" else {}


def _most_tokens(text: Any) -> int:
    most = getattr(text, "max_position_embeddings", None) or 0
    ropes = getattr(text, "rope_parameters", None) or {}
    kinds = [ropes, *(one for one in ropes.values() if isinstance(one, dict))]
    for rope in kinds:
        if rope.get("rope_type") in _GROWING_ROPES:
            # Beyond it the tokens that are held would have to be computed anew.
            most = int(rope.get("original_max_position_embeddings") or most)
    return int(most)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Errors of transformers as a ModelError, in one sentence."""
    try:
        yield
    except (ModelError, MissingExtraError, ConfigError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0].rstrip(".: ") if lines else type(error).__name__
        raise ModelError(f"transformers cannot load {folder}: {reason}") from None


@contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    """Keep transformers' own remarks and bars off the terminal, unless `verbose`."""
    from transformers.utils import logging as remarks

    before, bars = remarks.get_verbosity(), remarks.is_progress_bar_enabled()
    if not verbose:
        remarks.set_verbosity(remarks.CRITICAL)
        remarks.disable_progress_bar()
    try:
        yield
    finally:
        remarks.set_verbosity(before)
        if bars:
            remarks.enable_progress_bar()
