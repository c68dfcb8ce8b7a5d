"""`copyahead vllm-check`: what copying is worth inside vLLM, on your model and your machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from copyahead.cli.options import NONE_YET, Flat, Json, Names, Quiet
from copyahead.cli.terminal import output
from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.errors import ConfigError
from copyahead.evaluate.workloads import WORKLOADS, workload
from copyahead.ranges import Range, check_ranges

if TYPE_CHECKING:
    from copyahead.evaluate.vllm_methods import MethodResult, Prompt

_CHARS_A_TOKEN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCheckOptions:
    """What to compare."""

    method: Names = ("none", "ngram", "suffix", "copyahead")
    """Ways to draft: none, ngram, suffix, copyahead, draft_model, and beside (copies beside a draft
    model)."""
    workload: Annotated[Names, NONE_YET] = ()
    """Workloads to run (list, copy, rename, json, quote, prose, short); all when neither these nor
    traces are given."""
    trace: Annotated[Names, NONE_YET] = ()
    """Files of recorded conversations, in any form that `copyahead replay` reads: what was read
    before an answer is asked again."""
    trace_requests: Annotated[int, Range(1, 10_000)] = 8
    """Most answers of a trace to ask for, the last ones of each file."""
    num_speculative_tokens: Annotated[int, Range(1, MAX_DRAFT_TOKENS)] = 16
    """Longest draft, for every method."""
    draft_model: str | None = None
    """Model of the methods draft_model and beside."""
    engine: str = "{}"
    """Arguments of vLLM's LLM, as JSON: `{"dtype": "float32", "max_model_len": 4096}`."""
    together: Annotated[int, Range(1, 1024)] = 1
    """Requests that run at once, the same prompt each."""
    max_tokens: Annotated[int | None, Range(2, 2**20)] = None
    """Most tokens to write; each workload has its own when not given."""
    temperature: Annotated[float, Range(0.0, 2.0)] = 0.0
    """0 takes the likeliest token."""
    seed: Annotated[int, Range(0, 2**31)] = 0
    """Of every request."""
    repeat: Annotated[int, Range(1, 100)] = 1
    """How often the methods take turns, forth and back."""
    one_at_a_time: bool = False
    """Load one engine at a time, where more do not fit the GPU. Slower: each is loaded twice."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.method:
            raise ConfigError("method must name at least one method")


_DEFAULT = VllmCheckOptions()


def vllm_check(
    model: Annotated[str, Parameter(help="Name or folder of a model that vLLM loads.")],
    /,
    *,
    options: Annotated[VllmCheckOptions, Flat] = _DEFAULT,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Run vLLM with each way to draft, in turns, and compare speeds and texts.

    vLLM has to be installed beside copyahead. With a seed and a temperature copyahead runs with its
    hook, so that texts can be the same.

    Example: `copyahead vllm-check Qwen/Qwen3-8B --trace chats.jsonl --one-at-a-time`
    """
    from copyahead.evaluate.vllm_methods import Plan, run_methods

    output.be_quiet(quiet)
    plan = Plan(
        engine={"model": model, **engine_arguments(options.engine)},
        methods=options.method,
        num_speculative_tokens=options.num_speculative_tokens,
        draft_model=options.draft_model,
        temperature=options.temperature,
        seed=options.seed,
        together=options.together,
        repeat=options.repeat,
        one_at_a_time=options.one_at_a_time,
    )
    prompts = prompts_of(options)
    total = len(prompts) * 2 * len(plan.methods) * plan.repeat
    with output.bar("loading", total, counted=True) as bar:

        def advance(name: str, method: str) -> None:
            bar.describe(f"{name}, {method}")
            bar.advance()

        results = run_methods(plan, prompts, advance)
    if json:
        output.print_json({"model": model, "engine": plan.engine, "results": results})
    else:
        output.stdout().print(render(results))
    return 0


def engine_arguments(text: str) -> dict[str, Any]:
    """Arguments of vLLM's LLM. Raises ConfigError where `text` is no JSON object."""
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"engine must be a JSON object, not {text!r}")
    return found


def prompts_of(options: VllmCheckOptions) -> list[Prompt]:
    """What the model is asked. Raises ConfigError."""
    from copyahead.evaluate.vllm_methods import Prompt

    names = options.workload or (() if options.trace else tuple(WORKLOADS))
    found = []
    for name in names:
        work = workload(name)
        limit = options.max_tokens or work.max_tokens
        shortest = min(work.min_tokens, limit)
        found.append(Prompt(name=name, text=work.prompt, max_tokens=limit, min_tokens=shortest))
    return found + _of_traces(options)


def _of_traces(options: VllmCheckOptions) -> list[Prompt]:
    """Each of the last answers of the traces, and all that was read before it."""
    from copyahead.evaluate.vllm_methods import Prompt
    from copyahead.traces.formats.importers import read_traces

    found = []
    for trace in read_traces(options.trace) if options.trace else ():
        name, prompts = Path(trace.path).stem, []
        for conversation in trace.conversations:
            read = ""
            for message in conversation.messages:
                if message.written and read:
                    length = max(16, len(message.text) // _CHARS_A_TOKEN)
                    limit = min(length, options.max_tokens or length)
                    prompts.append((read, limit))
                read += message.text
        if not prompts:
            raise ConfigError(f"trace {trace.path} holds no answer in text")
        for number, (text, limit) in enumerate(prompts[-options.trace_requests :], start=1):
            found.append(Prompt(name=f"{name} {number}", text=text, max_tokens=limit))
    return found


def render(results: Sequence[MethodResult]) -> Any:
    """A table, a row a workload and method."""
    table = output.table(
        "workload", "method", "requests", "output", "tok/s", "speed-up", "drafted", "accepted",
        "as none",
    )  # fmt: skip
    for r in results:
        table.add_row(
            r.workload, r.method, str(r.requests), str(r.output_tokens),
            f"{r.tokens_per_second:.1f}", f"{r.speedup:.2f}" if r.speedup else "-",
            str(r.num_draft_tokens), str(r.num_accepted_tokens), "yes" if r.identical else "no",
        )  # fmt: skip
    return table
