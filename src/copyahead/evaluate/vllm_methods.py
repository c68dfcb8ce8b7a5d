"""vLLM with each of its ways to draft, timed in turns: an engine a method, each in its own process.

Methods take turns at every prompt, forth and back, so that a machine that grows slower or faster
favours none. Where one engine is all that fits, they are loaded one after the other, in that order.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from types import MappingProxyType
from typing import Any, Self

import msgspec

from copyahead.children.process import ChildProcess
from copyahead.errors import BackendError, ConfigError, MissingExtraError

LOAD_SECONDS = 3600.0
RUN_SECONDS = 3600.0
PROPOSER = "copyahead.plugins.vllm.Proposer"

METHODS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "none": {},
        "ngram": {"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 5},
        # Answers that it keeps would be those of the same prompt's earlier runs.
        "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
        "copyahead": {"method": "custom_class", "model": PROPOSER},
        "draft_model": {"method": "draft_model"},
        "beside": {"method": "draft_model"},
    }
)
"""What vLLM's `speculative_config` holds for each method, but for the length."""
HOOKED = frozenset({"beside"})
"""Methods that need the hook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a model is asked."""

    name: str
    text: str
    max_tokens: int
    min_tokens: int = 0


class MethodResult(msgspec.Struct, frozen=True):
    """One method over the prompts of one name. Also one entry of `results` in the JSON."""

    workload: str
    method: str
    requests: int
    """How many ran at once."""
    output_tokens: int
    tokens_per_second: float
    speedup: float
    """Against `none`; 0 where that was not run."""
    num_draft_tokens: int
    num_accepted_tokens: int
    identical: bool
    """Whether all answers are those of `none`, token by token."""


class Answered(msgspec.Struct):
    """What a process answers; `plugins.vllm.measure` writes it."""

    seconds: float
    tokens: list[list[int]]
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared."""

    engine: Mapping[str, Any]
    """Arguments of vLLM's `LLM`, the model among them."""
    methods: Sequence[str]
    num_speculative_tokens: int = 16
    draft_model: str | None = None
    temperature: float = 0.0
    seed: int = 0
    together: int = 1
    """Requests that run at once."""
    repeat: int = 1
    one_at_a_time: bool = False
    """Load one engine at a time."""

    def speculative_config(self, method: str) -> dict[str, Any] | None:
        """vLLM's setting for `method`; None for plain decoding. Raises ConfigError if unknown."""
        if method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, not {method!r}")
        if not METHODS[method]:
            return None
        config = {**METHODS[method], "num_speculative_tokens": self.num_speculative_tokens}
        if METHODS[method]["method"] == "draft_model":
            if self.draft_model is None:
                raise ConfigError(f"method {method} needs draft_model")
            config["model"] = self.draft_model
        return config


class EngineProcess:
    """One engine."""

    def __init__(self, plan: Plan, method: str) -> None:
        """Load it. Raises BackendError, with the end of its log, where that fails, and
        MissingExtraError where vLLM is not installed."""
        if find_spec("vllm") is None:
            raise MissingExtraError("vllm", "vllm")
        config = plan.speculative_config(method)
        arguments = dict(plan.engine)
        if config is not None:
            arguments["speculative_config"] = config
        if method in HOOKED:
            arguments["async_scheduling"] = False
        seeds = plan.temperature > 0 and method == "copyahead"
        hook = "1" if method in HOOKED or seeds else "0"
        self._method = method
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        try:
            self._child = ChildProcess(
                ["-m", "copyahead.plugins.vllm.measure"], stderr=self._log.fileno()
            )
        except OSError as error:
            self._log.close()
            raise BackendError(f"no process can be started for vLLM ({error})") from None
        load = {"engine": arguments, "environment": {"COPYAHEAD_VLLM_HOOK": hook}}
        try:
            self._ask(load, LOAD_SECONDS)
        except BaseException:
            self.close()
            raise

    def run(self, prompts: Sequence[Prompt], plan: Plan) -> Answered:
        """All `prompts` at once."""
        sampling = {
            "temperature": plan.temperature,
            "max_tokens": max(prompt.max_tokens for prompt in prompts),
            "min_tokens": min(prompt.min_tokens for prompt in prompts),
            "seed": plan.seed,
        }
        job = {"texts": [prompt.text for prompt in prompts], "sampling": sampling}
        return msgspec.json.decode(self._ask(job, RUN_SECONDS), type=Answered)

    def _ask(self, document: Any, seconds: float) -> bytes:
        try:
            return self._child.ask(msgspec.json.encode(document) + b"\n", seconds)
        except (ChildProcessError, TimeoutError) as error:
            self._log.seek(0)
            lines = self._log.read().decode(errors="replace").strip().splitlines()
            said = next((line for line in reversed(lines) if "Error" in line), "")
            raise BackendError(f"vLLM with method {self._method}: {error} {said}".strip()) from None

    def close(self) -> None:
        """End it. Idempotent."""
        self._child.end()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Runs = dict[tuple[str, str], list[Answered]]
"""By prompt and method."""


def run_methods(
    plan: Plan, prompts: Sequence[Prompt], on_run: Callable[[str, str], None]
) -> list[MethodResult]:
    """Every prompt with every method. Raises ConfigError, BackendError."""
    for method in plan.methods:
        plan.speculative_config(method)
    order = [*plan.methods, *reversed(plan.methods)] * plan.repeat
    runs: Runs = {}
    if plan.one_at_a_time:
        for method in order:
            with EngineProcess(plan, method) as engine:
                for prompt in prompts:
                    _run(engine, method, prompt, plan, runs, on_run)
        return _results(plan, prompts, runs)
    engines: dict[str, EngineProcess] = {}
    try:
        for method in plan.methods:
            engines[method] = EngineProcess(plan, method)
        for prompt in prompts:
            for method in order:
                _run(engines[method], method, prompt, plan, runs, on_run)
    finally:
        for engine in engines.values():
            engine.close()
    return _results(plan, prompts, runs)


def _run(
    engine: EngineProcess,
    method: str,
    prompt: Prompt,
    plan: Plan,
    runs: Runs,
    on_run: Callable[[str, str], None],
) -> None:
    answered = engine.run([prompt] * plan.together, plan)
    runs.setdefault((prompt.name, method), []).append(answered)
    on_run(prompt.name, method)


def _results(plan: Plan, prompts: Sequence[Prompt], runs: Runs) -> list[MethodResult]:
    results = []
    for prompt in prompts:
        plain = runs.get((prompt.name, "none"))
        speed = None if plain is None else median(map(_speed, plain))
        for method in plan.methods:
            mine = runs[prompt.name, method]
            same = plain is None or all(run.tokens == plain[0].tokens for run in mine)
            fast = median(map(_speed, mine))
            results.append(
                MethodResult(
                    workload=prompt.name,
                    method=method,
                    requests=plan.together,
                    output_tokens=sum(map(len, mine[-1].tokens)),
                    tokens_per_second=round(fast, 2),
                    speedup=round(fast / speed, 3) if speed else 0.0,
                    num_draft_tokens=mine[-1].num_draft_tokens,
                    num_accepted_tokens=mine[-1].num_accepted_tokens,
                    identical=same,
                )
            )
    return results


def _speed(run: Answered) -> float:
    return sum(map(len, run.tokens)) / max(run.seconds, 1e-9)
