"""Which settings make a pass over many rows give the logits of passes over one, bit for bit.

Every candidate is measured in a process of its own (`probe.measure`) and the result is kept on
disk (`probe.cache`). `load` takes the fastest settings that are exact. See docs/exactness.md.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.gguf import find_model, fingerprint, read_header
from copyahead.backends.llama_cpp.load import ROWS_PER_REQUEST, LlamaSettings
from copyahead.backends.probe import cache
from copyahead.backends.probe.measure import STEADY, Measurement, MeasurementRequest, Stage, score
from copyahead.children.process import ChildProcess
from copyahead.config import ModelOptions
from copyahead.contracts import Capabilities
from copyahead.errors import ModelError
from copyahead.step_cost import StepCost
from copyahead.types import Exactness

logger = logging.getLogger(__name__)

PROGRAM = ("-m", "copyahead.backends.probe.measure")
_BUILD_ANEW = (
    "build it anew with CMAKE_ARGS=-DGGML_NATIVE=OFF pip install --force-reinstall --no-cache-dir "
    "--no-binary llama-cpp-python llama-cpp-python"
)
PREFIX = 736
"""Tokens before the probed rows: beyond 512, where llama.cpp may split the KV cache over its
threads, and so that a block of 64 crosses a multiple of 256, where the cache grows."""

_K_QUANTS = frozenset({10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 29})
"""ggml's type numbers of the K and IQ quants, whose repacked and tiled products depend on rows."""
_SLOW_PROBE = 20.0
"""Seconds; an exact result that took longer is taken without a look at its equals."""
_TIE = 1.03


class ProbeResult(msgspec.Struct, frozen=True):
    """What a probe found about one model under one set of settings."""

    settings: LlamaSettings
    exactness: Exactness
    step_seconds: dict[int, float]
    """Median seconds of a pass, by its rows."""
    spread: float
    """How far the times of one size lay apart; see `Measurement`."""
    any_threads: bool
    """Whether the logits are the same on one thread; see `Measurement`."""
    prefix: int
    """Tokens that stood before the probed rows."""
    seconds: float
    """How long the probe took."""
    library: str
    fingerprint: str
    capabilities: Capabilities
    """Of the probe's own context: what counts is `max_rewind`, `can_fork` and `note`."""
    refreshed: dict[int, float] = {}
    """T(n) as the passes of real requests had it since; empty where there were none."""

    @property
    def step_cost(self) -> StepCost:
        """The cost of a pass in units of a one-row pass, as the probe measured it."""
        return StepCost(self.step_seconds)

    @property
    def latest_cost(self) -> StepCost:
        """The same as real passes had it last; as measured where there were none."""
        return StepCost(self.refreshed or self.step_seconds)

    @property
    def steady(self) -> bool:
        """Whether the times agreed: nothing else was using the machine."""
        return self.spread <= STEADY

    @property
    def proven(self) -> bool:
        """Whether a whole draft's rows are exact, alone and beside other sequences."""
        return self.exactness.level == "exact" and self.exactness.batched

    @property
    def score(self) -> float:
        """Seconds: the geometric mean of a one-row pass and one of 16 rows."""
        return score(self.step_seconds)


def probe(
    path: str | os.PathLike[str] | None,
    settings: LlamaSettings,
    *,
    prefix: int = PREFIX,
    quick: bool = False,
    again: bool = False,
) -> ProbeResult:
    """Measure a model under `settings`, or read what was measured before, unless `again`.

    `quick` measures the cost of two sizes and proves nothing. Only what the numbers depend on
    counts: `ctx`, `parallel` and `verbose` do not. Raises ModelError when the model cannot be
    loaded that way, or when llama.cpp crashes on it.
    """
    model = find_model(path)
    settings = _measured_settings(settings)
    library, identity = cache.library_build(), fingerprint(model)
    name = _name(model, settings, prefix, quick)
    result = None if again else cache.read(name, ProbeResult)
    if result is None:
        logger.info(
            "measuring how exact and how fast passes of %s over several rows are, with %s: once, "
            "seconds for a small model and minutes for one of some billion weights",
            model.name,
            settings.numerics(),
        )
        begin = time.perf_counter()
        found = _run(
            MeasurementRequest(path=str(model), settings=settings, prefix=prefix, quick=quick)
        )
        seconds = time.perf_counter() - begin
        result = ProbeResult(
            settings=settings,
            exactness=exactness_of(found),
            step_seconds=found.step_seconds,
            spread=found.spread,
            any_threads=found.any_threads,
            prefix=found.prefix,
            seconds=seconds,
            library=library,
            fingerprint=identity,
            capabilities=found.capabilities,
        )
        logger.info("measured in %.0f s: %s", seconds, result.exactness, extra={"left": 0.0})
        if not result.steady:
            logger.warning("%s", unsteady_text(result.spread))
        cache.write(name, result)
    return result


def unsteady_text(spread: float) -> str:
    """What to make of times that did not agree."""
    return (
        f"unsteady: passes of one size differed by {spread:.0%}, as they do on a machine that is "
        "busy with something else; measure again when it is not, with `copyahead probe --again`"
    )


def keep_step_cost(
    path: str | os.PathLike[str] | None, settings: LlamaSettings, cost: StepCost
) -> None:
    """Keep `cost`, which real passes had, with what the probe of these settings found.

    The next `load` begins with it. Where nothing was probed nothing is kept.
    """
    model = find_model(path)
    name = _name(model, _measured_settings(settings), PREFIX, quick=False)
    result = cache.read(name, ProbeResult)
    if result is not None:
        refreshed = {rows: cost(rows) for rows in result.step_seconds}
        cache.write(name, msgspec.structs.replace(result, refreshed=refreshed))


def _measured_settings(settings: LlamaSettings) -> LlamaSettings:
    """Those of `settings` that logits and costs depend on; the others as they come."""
    return LlamaSettings(
        kv_type=settings.kv_type,
        repack=settings.repack,
        tiled=settings.tiled,
        threads=settings.threads,
        gpu_layers=settings.gpu_layers,
    )


def _name(model: Path, settings: LlamaSettings, prefix: int, quick: bool) -> str:
    parts = (fingerprint(model), msgspec.to_builtins(settings), prefix, quick)
    return cache.key(*parts, cache.library_build())


def find_settings(
    path: str | os.PathLike[str] | None,
    options: ModelOptions,
    *,
    prefix: int = PREFIX,
    again: bool = False,
) -> ProbeResult:
    """The fastest settings within `options` that are exact; the fastest of all when none are.

    What was measured before is not measured again, unless `again`.

    With `options.exact`: the settings exact for most rows when none are exact for a whole
    draft's, and ModelError when none are exact for more than one row.
    """
    model = find_model(path)
    results: list[ProbeResult] = []
    errors: list[ModelError] = []
    for group in _candidates(model, options):
        proven: ProbeResult | None = None
        for settings in group:
            try:
                if proven and not _promises(model, settings, proven, prefix, again):
                    continue
                results.append(probe(model, settings, prefix=prefix, again=again))
            except ModelError as error:
                errors.append(error)
                continue
            if results[-1].proven and (proven is None or results[-1].score < proven.score):
                proven = results[-1]
        if proven:
            return proven
    if not results:
        raise errors[0]
    if options.exact:
        return _best_capped(model, results, options)
    return min(results, key=lambda result: result.score)


def _promises(
    model: Path, settings: LlamaSettings, proven: ProbeResult, prefix: int, again: bool
) -> bool:
    """Whether `settings` look faster than what is proven already."""
    if proven.seconds > _SLOW_PROBE:
        return False
    quick = probe(model, settings, prefix=prefix, quick=True, again=again)
    return quick.score * _TIE < proven.score


def load(
    path: str | os.PathLike[str] | None, options: ModelOptions, *, probe: bool = True
) -> LlamaBackend:
    """Load a model with the settings that `find_settings` takes, and what it found about them.

    Without `probe` nothing is measured: no exactness is known, and the step cost is a guess.
    """
    if not probe:
        return LlamaBackend(path, LlamaSettings.of(options))
    found = find_settings(path, options)
    settings = msgspec.structs.replace(
        found.settings, ctx=options.ctx, parallel=options.parallel, verbose=options.verbose
    )
    return LlamaBackend(
        path,
        settings,
        exactness=found.exactness,
        step_cost=found.latest_cost,
        # A number that was asked for is kept.
        yields=options.threads is None and found.any_threads,
    )


def _candidates(model: Path, options: ModelOptions) -> Iterator[list[LlamaSettings]]:
    """Settings to try, in groups of equals, the fastest first."""
    base = LlamaSettings.of(options)
    kinds = ["q8_0", "bf16"] if options.kv_type == "auto" else [options.kv_type]
    # Repacking and tiling make K-quants inexact, and cost nothing to leave out there.
    kernels = [True, False]
    if _K_QUANTS & read_header(model).tensor_types.keys():
        kernels.reverse()
    for on in kernels:
        yield [
            msgspec.structs.replace(
                base, kv_type=kind, repack=on, tiled=on, ctx=4096, parallel=1, verbose=False
            )
            for kind in kinds
        ]


def _best_capped(model: Path, results: list[ProbeResult], options: ModelOptions) -> ProbeResult:
    usable = [r for r in results if r.exactness.batched or options.parallel == 1]
    best = max(usable or results, key=lambda result: result.exactness.rows)
    exactness = best.exactness
    if not usable or (exactness.rows < 2 and exactness.level != "exact"):
        raise ModelError(
            f"exact: no settings give {model} the same logits in passes of several rows; the best, "
            f"{best.settings.numerics()}, is {exactness}: leave --exact out, or take a file in "
            "Q8_0, Q4_0 or a K-quant"
        )
    capped = Exactness(
        level="exact", rows=exactness.rows, max_abs_diff=0.0, batched=exactness.batched
    )
    return msgspec.structs.replace(best, exactness=capped)


def exactness_of(found: Measurement) -> Exactness:
    """A draft's rows exact is the level exact; so is one row where nothing can be drafted."""
    rewind = found.capabilities.max_rewind
    needed = ROWS_PER_REQUEST if rewind is None else min(1 + rewind, ROWS_PER_REQUEST)
    return Exactness(
        level="exact" if found.rows >= needed else "near",
        rows=found.rows,
        max_abs_diff=found.max_abs_diff,
        batched=found.batched,
    )


def _run(request: MeasurementRequest) -> Measurement:
    """Measure in a process of its own, which ends with this one."""
    arguments = [*PROGRAM, msgspec.json.encode(request).decode()]
    child = ChildProcess(arguments, stderr=subprocess.PIPE)
    output, error = (
        text.decode("utf-8", "replace").splitlines() for text in child.read(_note_stage)
    )
    status = child.status or 0
    if status == 0 and output:
        return msgspec.json.decode(output[-1], type=Measurement)
    if status < 0:
        raise ModelError(_crash(request.path, -status))
    try:
        reason = msgspec.json.decode(output[-1] if output else "", type=dict[str, str])["error"]
    except (msgspec.MsgspecError, KeyError):
        reason = _failure(request.path, error[-1] if error else "no reason given")
    raise ModelError(reason)


def _crash(path: str, number: int) -> str:
    """What a signal that ended the measurement says, and what helps."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    what = f"llama.cpp crashed ({name}) when {path} was probed"
    if name == "SIGILL":
        return f"{what}: it was built for another processor; {_BUILD_ANEW}"
    if name in ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE"):
        return (
            f"{what}: the file may be damaged, then fetch it again; or the build is, then "
            f"{_BUILD_ANEW}"
        )
    if name == "SIGKILL":
        return (
            f"the probe of {path} was killed ({name}), as systems do when memory runs out: free "
            "some, or take a smaller model or quantisation"
        )
    return f"the probe of {path} was ended from outside ({name}): start again"


def _note_stage(line: bytes) -> None:
    """Log what a measurement is about to do; `left` of the record: the seconds that it may take."""
    try:
        stage = msgspec.json.decode(line, type=Stage)
    except msgspec.MsgspecError:
        return
    left = stage.seconds_left
    about = "" if left is None else f"; about {duration(left)} to go"
    logger.info("%s%s", stage.stage, about, extra={"left": left})


def duration(seconds: float) -> str:
    """A length of time as people say it."""
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{max(1, round(seconds))} s"


def _failure(path: str, last: str) -> str:
    """What the last line of a traceback says, and what helps."""
    kind = last.partition(":")[0]
    if kind == "MemoryError":
        return f"memory ran out when {path} was probed: take a smaller model or quantisation"
    if kind in ("OSError", "ImportError", "ModuleNotFoundError"):
        return (
            f"the probe of {path} cannot load a library ({last}): install what it names, or "
            "llama-cpp-python anew with pip install --force-reinstall llama-cpp-python"
        )
    return f"the probe of {path} failed ({last}): start again with --verbose, and report it"
