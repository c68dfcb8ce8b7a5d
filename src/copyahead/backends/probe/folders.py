"""The same search for the folder of a transformers model, in this process and on one copy of it.

How many rows a pass has changes what its products round to, unless every call of the model has
the same number: the `width`. That makes a pass over one row dearer, so what is exact is taken where
it costs little, or where it is insisted on.
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path

import msgspec

from copyahead.backends.probe import cache
from copyahead.backends.probe.measure import SLOTS, Measurement, Measurer, Stage, score
from copyahead.backends.probe.search import (
    PREFIX,
    ProbeResult,
    duration,
    exactness_of,
    unsteady_text,
)
from copyahead.backends.transformers.backend import TransformersBackend
from copyahead.backends.transformers.folder import fingerprint
from copyahead.backends.transformers.load import (
    EXPERT_BY_EXPERT,
    LoadedModel,
    TransformersSettings,
    device_name,
    library_version,
    load_model,
)
from copyahead.config import MAX_DRAFT_TOKENS, ModelOptions
from copyahead.errors import ModelError
from copyahead.step_cost import StepCost

logger = logging.getLogger(__name__)

DEARER = 1.25
"""What is exact is taken where it costs at most this much more than what is not."""
WIDTHS = (8, 16, 32)
"""Numbers of rows that all calls may have."""
_SCREEN_PREFIX = 192


class FolderResult(ProbeResult, frozen=True):
    """What a probe found about a folder under one set of settings."""

    settings: TransformersSettings  # type: ignore[assignment]


def load(folder: Path, options: ModelOptions) -> TransformersBackend:
    """Load a folder with the settings that `find_settings` takes, and what it found about them."""
    base = _base(folder, options)
    loaded = load_model(folder, base)
    found = _find(loaded, base, options, again=False)
    settings = msgspec.structs.replace(
        found.settings, ctx=base.ctx, parallel=base.parallel, verbose=base.verbose
    )
    return TransformersBackend(
        loaded, settings, exactness=found.exactness, step_cost=found.latest_cost
    )


def find_settings(folder: Path, options: ModelOptions, *, again: bool = False) -> FolderResult:
    """The fastest exact settings where they cost little more than the fastest of all.

    With `options.exact` whatever they cost; ModelError where there are none. What was measured
    before is not measured again, unless `again`.
    """
    base = _base(folder, options)
    kept = None if again else cache.read(_name(folder, base, options.exact), FolderResult)
    return kept or _find(load_model(folder, base), base, options, again=again)


def keep_step_cost(folder: Path, settings: TransformersSettings, cost: StepCost) -> None:
    """Keep `cost`, which real passes had, with what the probes of these settings found."""
    for exact in (False, True):
        name = _name(folder, settings, exact)
        result = cache.read(name, FolderResult)
        if result is not None and _numerics(result.settings) == _numerics(settings):
            refreshed = {rows: cost(rows) for rows in result.step_seconds}
            cache.write(name, msgspec.structs.replace(result, refreshed=refreshed))


def _base(folder: Path, options: ModelOptions) -> TransformersSettings:
    options.check_folder()
    return TransformersSettings.of(folder, options)


def _find(
    loaded: LoadedModel, base: TransformersSettings, options: ModelOptions, *, again: bool
) -> FolderResult:
    name = _name(loaded.folder, base, options.exact)
    kept = None if again else cache.read(name, FolderResult)
    if kept is not None:
        return kept
    logger.info(
        "measuring how exact and how fast passes of %s over several rows are, in %s: once",
        loaded.folder.resolve().name,
        base.dtype,
    )
    began = time.perf_counter()
    result = _search(loaded, base, options)
    seconds = time.perf_counter() - began
    result = msgspec.structs.replace(result, seconds=seconds)
    logger.info("measured in %.0f s: %s", seconds, result.exactness, extra={"left": 0.0})
    if not result.steady:
        logger.warning("%s", unsteady_text(result.spread))
    cache.write(name, result)
    return result


def _search(loaded: LoadedModel, base: TransformersSettings, options: ModelOptions) -> FolderResult:
    nearest = _screen(loaded, base)
    assert nearest is not None
    dearest = math.inf if options.exact else DEARER * score(nearest.step_seconds)
    measured: dict[TransformersSettings, FolderResult] = {}
    for settings in _exact_ones(loaded, base, nearest, dearest):
        result = measured[settings] = _measure(loaded, settings)
        if result.proven or (options.exact and _serves_alone(result, options)):
            return result
    if options.exact:
        raise ModelError(
            f"exact: no settings give {loaded.folder} the same logits in passes of several rows; "
            "leave --exact out, or take --dtype float32"
        )
    return measured.get(base) or _measure(loaded, base, exact=_is_exact(nearest))


def _serves_alone(result: FolderResult, options: ModelOptions) -> bool:
    """Whether a whole draft's rows are exact, and no other sequence is ever in the pass."""
    return result.exactness.level == "exact" and options.parallel == 1


def _exact_ones(
    loaded: LoadedModel, base: TransformersSettings, nearest: Measurement, dearest: float
) -> list[TransformersSettings]:
    """Settings that a screening finds exact and no dearer than `dearest`, the fastest first."""
    screened = {base: nearest}
    if loaded.abilities.windows is not None:
        # How many rows go to an expert changes from pass to pass, unless each goes by itself.
        experts = EXPERT_BY_EXPERT if loaded.abilities.experts else ""
        for width in WIDTHS:
            settings = msgspec.structs.replace(base, kernel="rows", experts=experts, width=width)
            found = _screen(loaded, settings, dearest)
            if found is not None:
                screened[settings] = found
    exact = [settings for settings, found in screened.items() if _is_exact(found)]
    return sorted(exact, key=lambda settings: score(screened[settings].step_seconds))


def _screen(
    loaded: LoadedModel, settings: TransformersSettings, dearest: float = math.inf
) -> Measurement | None:
    logger.info("trying %s", settings.numerics())
    measurer = Measurer(_probed(loaded, settings, _SCREEN_PREFIX), _SCREEN_PREFIX, _note)
    return measurer.run_screen(dearest)


def _measure(
    loaded: LoadedModel, settings: TransformersSettings, *, exact: bool = True
) -> FolderResult:
    """Measure `settings`; `exact`: whether they may be, so that all of it is compared."""
    prefix = PREFIX if exact else _SCREEN_PREFIX
    measurer = Measurer(_probed(loaded, settings, prefix), prefix, _note)
    found = measurer.run() if exact else measurer.run_rows()
    return FolderResult(
        settings=_numerics(settings),
        exactness=exactness_of(found),
        step_seconds=found.step_seconds,
        spread=found.spread,
        any_threads=found.any_threads,
        prefix=found.prefix,
        seconds=0.0,
        library=library_version(),
        fingerprint=fingerprint(loaded.folder),
        capabilities=found.capabilities,
    )


def _probed(
    loaded: LoadedModel, settings: TransformersSettings, prefix: int
) -> TransformersBackend:
    room = prefix + 2 * (1 + MAX_DRAFT_TOKENS)
    if loaded.context_size:
        room = min(room, loaded.context_size)
    return TransformersBackend(loaded, msgspec.structs.replace(settings, ctx=room, parallel=SLOTS))


def _is_exact(found: Measurement) -> bool:
    return found.max_abs_diff == 0.0


def _numerics(settings: TransformersSettings) -> TransformersSettings:
    """Those of `settings` that logits and costs depend on; the others as they come."""
    return TransformersSettings(
        device=settings.device,
        dtype=settings.dtype,
        kernel=settings.kernel,
        experts=settings.experts,
        width=settings.width,
        threads=settings.threads,
    )


def _name(folder: Path, settings: TransformersSettings, exact: bool) -> str:
    asked = (settings.device, settings.dtype, settings.threads, exact, WIDTHS, DEARER)
    return cache.key(
        "folder", fingerprint(folder), asked, library_version(), device_name(settings.device)
    )


def _note(stage: Stage) -> None:
    left = stage.seconds_left
    about = "" if left is None else f"; about {duration(left)} to go"
    logger.info("%s%s", stage.stage, about, extra={"left": left})
