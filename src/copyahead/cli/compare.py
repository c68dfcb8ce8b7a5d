"""`copyahead compare`: is the text the same, and how much faster is it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from copyahead.cli.options import (
    DEFAULT_MODEL,
    DEFAULT_SAMPLING,
    NO_DRAFT_MODEL,
    NONE_YET,
    DraftModel,
    Flat,
    Json,
    MaxDraftTokens,
    Model,
    ModelPath,
    Names,
    Quiet,
    Sampling,
    modes_named,
)
from copyahead.cli.terminal import output
from copyahead.cli.terminal.sentences import check_model_path
from copyahead.config import MAX_DRAFT_TOKENS, LookupOptions
from copyahead.errors import ConfigError
from copyahead.evaluate.workloads import WORKLOADS, Workload, workload
from copyahead.ranges import Range, check_ranges
from copyahead.step_cost import StepCost
from copyahead.types import Exactness

if TYPE_CHECKING:
    from copyahead.engine import Completion, Engine
    from copyahead.evaluate.compare import Comparison, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """What to compare."""

    workload: Annotated[Names, NONE_YET] = ()
    """Workloads to run (list, copy, rename, json, quote, prose, short); all when not given."""
    policy: Names = (LookupOptions().policy,)
    """Policies to run: a name, or `name:knob=value,knob=value`. May be repeated."""
    max_draft_tokens: MaxDraftTokens = MAX_DRAFT_TOKENS
    """Longest draft, whatever the policy asks for."""
    max_tokens: Annotated[int | None, Range(1, 2**24)] = None
    """Most tokens to write; each workload has its own when not given."""
    repeat: Annotated[int, Range(1, 100)] = 1
    """How often plain, every policy, every policy backwards, plain is run."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.policy:
            raise ConfigError("policy must name at least one policy")


_DEFAULT_COMPARE = CompareOptions()


def compare(
    model: ModelPath = None,
    /,
    *,
    options: Annotated[CompareOptions, Flat] = _DEFAULT_COMPARE,
    sampling: Sampling = DEFAULT_SAMPLING,
    draft_options: DraftModel = NO_DRAFT_MODEL,
    model_options: Model = DEFAULT_MODEL,
    lookup: Annotated[bool, Parameter(show=False)] = True,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Decode plainly and with lookup, alternately, and compare texts and speeds.

    With a draft model, every policy is run without it (`POLICY+off`), the draft model alone
    (`model`), and both (`POLICY+RULE`). Without a seed, seed 0 is taken. The exit status is 1 if
    any text differs although the probe says that none can.

    Example: `copyahead compare model.gguf --workload list copy --policy priced window`
    """
    from copyahead.evaluate.compare import Plan
    from copyahead.loading import load

    output.be_quiet(quiet)
    check_model_path("compare", model)
    if not lookup:
        raise ConfigError("compare needs lookup: leave out --no-lookup and COPYAHEAD_LOOKUP=0")
    works = [workload(name) for name in options.workload or WORKLOADS]
    policies = modes_named(options.policy, draft_options)
    plan = Plan(sampling=sampling, repeat=options.repeat, max_tokens=options.max_tokens)
    drafting = LookupOptions(policy=policies[-1], max_draft_tokens=options.max_draft_tokens)
    with load(model, model=model_options, lookup=drafting, draft=draft_options) as engine:
        results = [result for result, _ in run_all(engine, works, policies, plan)]
        exactness = engine.backend.exactness
        if json:
            output.print_json(document(engine, results))
        else:
            show(engine, results)
    return 1 if broken(exactness, results) else 0


def run_all(
    engine: Engine, works: Sequence[Workload], policies: Sequence[str], plan: Plan
) -> list[tuple[Comparison, Completion]]:
    """Every workload under every policy, with a bar on standard error."""
    from copyahead.evaluate.compare import compare_all

    results = []
    total = len(works) * (1 + len(policies)) * 2 * plan.repeat
    with output.bar("", total, counted=True) as bar:
        for work in works:
            bar.describe(f"{work.name}, {', '.join(policies)}")
            results += compare_all(engine, work, policies, plan, on_run=bar.advance)
    return results


def broken(exactness: Exactness | None, results: Sequence[Comparison]) -> bool:
    """Whether a text differs although the probe says that none can."""
    exact = exactness is not None and exactness.level == "exact"
    return exact and not all(result.identical for result in results)


def document(engine: Engine, results: Sequence[Comparison]) -> dict[str, Any]:
    """The JSON of `compare`."""
    return {
        "model": engine.backend.name,
        "settings": output.settings(engine),
        "exactness": output.exactness_json(engine.backend.exactness),
        "step_cost": output.step_cost_json(_current_cost(engine)),
        "draft_model": engine.draft_model,
        "results": list(results),
    }


def show(engine: Engine, results: Sequence[Comparison]) -> None:
    """The same for people."""
    console = output.stdout()
    console.print(render(results))
    lines = [_limits_text(results), output.level(engine.backend.exactness)]
    if engine.draft_model is not None:
        lines.append(f"draft model: {engine.draft_model}")
    console.print("\n" + "\n".join(lines), soft_wrap=True)


_COLUMNS = (
    "workload", "policy", "prompt", "output", "plain tok/s", "lookup tok/s", "speed-up",
    "of limit", "rounds", "tok/round", "drafted", "accepted", "longest", "identical",
)  # fmt: skip
_MODEL_COLUMNS = ("of the model", "its passes", "its s")
_LEFT_OUT = frozenset({"prompt", "of limit", "longest"})
"""Columns that make way for those of a draft model."""


def render(results: Sequence[Comparison]) -> Any:
    """A table, a row a comparison."""
    models = any(r.num_model_passes or r.num_model_skips for r in results)
    columns = (*_COLUMNS, *_MODEL_COLUMNS) if models else _COLUMNS
    shown = [n for n, name in enumerate(columns) if not (models and name in _LEFT_OUT)]
    table = output.table(*(columns[n] for n in shown))
    for r in results:
        cells = (
            r.workload, r.policy, str(r.prompt_tokens), str(r.output_tokens),
            f"{r.plain_tps:.1f}", f"{r.lookup_tps:.1f}", f"{r.speedup:.2f}",
            output.share_of_limit(r.speedup / r.limit), str(r.rounds), f"{r.tokens_per_round:.2f}",
            str(r.num_draft_tokens), str(r.num_accepted_tokens), str(r.longest_match),
            "yes" if r.identical else "NO", *_model_cells(r),
        )  # fmt: skip
        table.add_row(*(cells[n] for n in shown))
    return table


def _model_cells(result: Comparison) -> tuple[str, str, str]:
    """What of the accepted tokens was a draft model's, and what that took."""
    count = result.by_source.get("model")
    kept = f"{count.num_accepted_tokens}/{count.num_draft_tokens}" if count is not None else "0/0"
    return kept, str(result.num_model_passes), f"{result.model_seconds:.2f}"


def _current_cost(engine: Engine) -> StepCost:
    """What passes of the sizes that were measured cost now."""
    return StepCost({rows: engine.step_cost(rows) for rows in engine.backend.step_cost.points()})


def _limits_text(results: Sequence[Comparison]) -> str:
    """What the passes of the runs allow, and whether a speed-up is larger."""
    limits = [f"{result.limit:.2f}" for result in results]
    low, high = min(limits, key=float), max(limits, key=float)
    between = low if low == high else f"{low} to {high}"
    text = (
        f"limit: a copy that never breaks could run {between} times as fast, "
        "by what the passes of these runs cost"
    )
    if any(result.speedup > result.limit for result in results):
        text += (
            "\nabove its limit: the machine's speed changed between the runs, "
            "so take none of these speeds for its own; compare again when it is idle"
        )
    return text


def limit_text(cost: StepCost) -> str:
    """What the machine allows a copy that never breaks."""
    curve = cost.curve(MAX_DRAFT_TOKENS)
    best = max(range(1, len(curve)), key=lambda rows: rows / curve[rows])
    return (
        f"limit: a copy that never breaks could run {cost.limit():.2f} times as fast "
        f"({best} rows cost as much as {curve[best]:.2f} passes of one)"
    )
