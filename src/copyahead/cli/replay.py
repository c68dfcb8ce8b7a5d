"""`copyahead replay`: what each policy would have saved on recorded traffic; runs no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from copyahead.cli.options import (
    DRAFTING,
    Flat,
    Json,
    Names,
    Quiet,
    Shared,
    TraceOptions,
    Traces,
)
from copyahead.cli.terminal import output
from copyahead.config import HybridRule, SharedOptions
from copyahead.errors import ConfigError
from copyahead.ranges import Range, check_ranges

if TYPE_CHECKING:
    from copyahead.traces.corpus import Corpus
    from copyahead.traces.drafts.beside import Beside
    from copyahead.traces.drafts.draft_file import DraftHeader
    from copyahead.traces.formats.importers import Trace
    from copyahead.traces.rows import Row

_PROBLEMS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """Recorded drafts of a draft model, and what they cost."""

    drafts: Path | None = None
    """File that `copyahead record-drafts` wrote for these traces: also score its draft model,
    alone and beside the copies of the first policy. Only requests that it holds are replayed."""
    draft_cost: tuple[str, ...] = ("0.1",)
    """What a pass of the draft model costs over one row, in passes of the target: numbers, joined
    by commas, or repeated."""
    draft_row_cost: Annotated[float, Range(0.0, 100.0)] = 0.001
    """What each further row of such a pass costs, as when the draft model reads a prompt."""
    hybrid: Annotated[tuple[HybridRule, ...], Parameter(consume_multiple=True)] = (
        "priced",
        "agree",
        "longer",
        "first",
    )
    """Rules between copies and the draft model to score."""
    draft_max: Annotated[int | None, Range(1, 32)] = None
    """Most tokens that the draft model drafts in a row; the recorded depth when not given."""
    draft_min_prob: Annotated[float, Range(0.0, 1.0)] = 0.0
    """A chain ends before the first token that the draft model gives a lower probability."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.drafts is None:
            changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
            for field in changed:
                raise ConfigError(
                    f"{field.name} needs --drafts: name a file that record-drafts has written"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What to replay, and how it is scored."""

    tokenizer: str | None = None
    """GGUF model, `tokenizer.json`, or folder of a transformers model to tokenise with; the bundled
    model when not given."""
    policy: Names = ("priced", "hysteresis", "window", "single")
    """Policies to replay: a name, or `name:knob=value,knob=value`. May be repeated."""
    cost: tuple[str, ...] = ("0.01,0.03,0.1,0.3",)
    """What a further row costs, in passes of one row: numbers, `stair`, or a file that
    `copyahead probe --json` wrote. Joined by commas, or repeated."""
    fresh: bool = False
    """Score only the first request of each session, each with a new drafter that has learnt
    nothing, as the first request of a new process. Each chat of a chat history is a session."""
    prior: Path | None = None
    """Have `priced` start from this file of tables, which benchmarks/train_prior.py wrote; from
    those that are shipped when not given."""
    lengths: bool = False
    """Also simulate K = 1, 2, 4, 8 tokens of the newest place, and adaptive K."""
    jobs: Annotated[int | None, Range(1, 1024)] = None
    """Processes to use; one a core when not given. Figures other than times do not depend on it."""
    ray: str | None = None
    """Have the Ray cluster at this address do the work: `HOST:PORT`, `auto` for the one that runs
    here, or `local` to start one on this machine. Figures other than times are the same."""
    html: Path | None = None
    """Also write a report with plots to this file."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.policy:
            raise ConfigError("policy must name at least one policy")
        # Known before the work, that none of it is lost.
        if self.html is not None and not self.html.expanduser().parent.is_dir():
            raise ConfigError(f"html file {self.html} lies in no directory that there is: make it")


_DEFAULTS = ReplayOptions()
_DEFAULT_TRACES = TraceOptions()
_DEFAULT_DRAFTS = DraftOptions()
_NOT_SHARED = SharedOptions()


def replay(
    *traces: Traces,
    options: Annotated[ReplayOptions, Flat] = _DEFAULTS,
    trace_options: Annotated[TraceOptions, Flat] = _DEFAULT_TRACES,
    draft_options: Annotated[DraftOptions, Flat, Parameter(group=DRAFTING)] = _DEFAULT_DRAFTS,
    shared: Shared = _NOT_SHARED,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Draft against what a model really wrote, and score each policy. No model is run.

    Reads logs of chat, Anthropic's and Responses APIs, sessions of coding agents, trajectories,
    ShareGPT, pairs of prompt and completion, token ids, copyahead's own traces, and chat-history
    markdown. Text that cannot be read, or is of an unknown kind, is reported.

    Example: `copyahead replay traces/ --policy priced window --cost 0.03`
    """
    from copyahead.drafters.prior import read_prior
    from copyahead.traces.costs import parse_costs
    from copyahead.traces.drafts.draft_file import join, read_drafts
    from copyahead.traces.formats.importers import read_traces
    from copyahead.traces.rows import make_rows
    from copyahead.traces.runs import (
        LIMIT,
        Run,
        length_policies,
        num_written,
        plan_beside,
        plan_runs,
        policies_of,
        run_all,
    )

    output.be_quiet(quiet)
    if not traces:
        raise ConfigError(
            "there is nothing to replay: name files or directories of traces, before the options"
        )
    costs = parse_costs(options.cost)
    extra = length_policies() if options.lengths else ()
    policies = policies_of((*options.policy, *extra))
    runs = plan_runs(policies, costs, shared)
    path, recorded, header, drafts = draft_options.drafts, None, None, None
    if path is not None:
        runs += plan_beside(policies[0], costs, _besides(draft_options, policies[0]), shared)
        recorded = read_drafts(path.expanduser())
    prior = read_prior(options.prior).tobytes() if options.prior is not None else None
    # A session is a conversation where every session counts by itself.
    chat = "chats" if options.fresh and trace_options.chat == "turns" else trace_options.chat
    read = read_traces(traces, chat=chat, after=trace_options.after, by_file=trace_options.by_file)
    report_problems(read)
    name, corpus = tokenised(read, options.tokenizer)
    if path is not None and recorded is not None:
        header, requests = recorded
        corpus, drafts = join(corpus, path, header, requests)
    all_runs = [replace(run, fresh=options.fresh, prior=prior) for run in [*runs, Run(LIMIT)]]
    with output.bar("replaying", num_written(corpus, all_runs)) as bar:
        found = run_all(
            corpus,
            all_runs,
            drafts=drafts,
            jobs=options.jobs,
            ray=options.ray,
            on_progress=bar.advance,
        )
    rows = make_rows(corpus, runs, found[:-1], found[-1], costs)
    if options.html is not None:
        _write_report(options.html, read, name, rows)
    if json:
        asked = {"fresh": options.fresh, "prior": options.prior and str(options.prior)}
        output.print_json(document(read, name, rows, shared, header) | asked)
    else:
        show(name, rows, shared, header, fresh=options.fresh)
    return 0


def _besides(options: DraftOptions, policy: str) -> list[Beside]:
    """The ways in which recorded drafts take part; by rules that copies of `policy` can have."""
    from copyahead.traces.drafts.beside import ALONE, Beside, parse_draft_costs
    from copyahead.traces.drafts.recorded import DraftPrice
    from copyahead.traces.runs import rules_for

    return [
        Beside(
            rule,
            DraftPrice(cost, options.draft_row_cost),
            max_chain=options.draft_max,
            min_prob=options.draft_min_prob,
        )
        for cost in parse_draft_costs(options.draft_cost)
        for rule in (ALONE, *rules_for(policy, options.hybrid))
    ]


def document(
    traces: Sequence[Trace],
    tokenizer: str,
    rows: Sequence[Row],
    shared: SharedOptions = _NOT_SHARED,
    header: DraftHeader | None = None,
) -> dict[str, Any]:
    """The JSON of `replay`; `header` that of the recorded drafts that took part."""
    return {
        "traces": [
            {
                "path": trace.path,
                "category": trace.category,
                "sessions": trace.num_sessions,
                "problems": trace.problems,
            }
            for trace in traces
        ],
        "tokenizer": tokenizer,
        "shared_tokens": shared.shared_tokens if shared.shared else 0,
        "drafts": header,
        "results": list(rows),
    }


def show(
    tokenizer: str,
    rows: Sequence[Row],
    shared: SharedOptions = _NOT_SHARED,
    header: DraftHeader | None = None,
    *,
    fresh: bool = False,
) -> None:
    """The same for people: a table a category."""
    from copyahead.traces.rows import categories_shown

    console = output.stdout()
    store = f"; a shared store of {shared.shared_tokens} tokens" if shared.shared else ""
    model = f"; drafts of {header.model}, context {header.window}" if header is not None else ""
    first = "; first requests only, each with a new drafter" if fresh else ""
    heading = f"tokenised with {tokenizer}{store}{model}{first}; speed-up 1.00 is plain decoding"
    console.print(heading, soft_wrap=True)
    for category in categories_shown(rows):
        mine = [row for row in rows if row.category == category]
        any_row = mine[0]
        repeated = f", {any_row.repeated} repeated" if any_row.repeated else ""
        size = f"{any_row.requests} requests{repeated}, {any_row.emitted} tokens written"
        console.print(_table(f"\n{category}: {size}", mine, fresh))


def _table(title: str, rows: Sequence[Row], fresh: bool) -> Any:
    """Where a draft model took part its passes are shown, and less of what JSON has as well."""
    drafted = any(row.draft_cost is not None for row in rows)
    middle = ("draft cost", "passes/round", "their share") if drafted else ("of limit", "silent")
    phases = ("first 32",) if fresh else ("cold", "warm")
    last = () if drafted else ("draft µs",)
    table = output.table(
        "policy", "cost", *middle, "speed-up", "tok/round", "drafted/round", "accepted",
        *phases, *last, "accepted from", title=title,
    )  # fmt: skip
    for r in rows:
        apart = (r.opening,) if fresh else (r.cold, r.warm)
        table.add_row(
            r.policy, str(r.cost), *(_model_cells(r) if drafted else _limit_cells(r)),
            f"{r.speedup:.2f}", f"{r.tokens_per_round:.2f}", f"{r.drafted_per_round:.2f}",
            f"{r.accepted_share:.0%}",
            *(f"{f.speedup:.2f}" if f else "-" for f in apart),
            *(() if drafted else (f"{r.draft_us:.1f}",)),
            ", ".join(f"{source} {share:.0%}" for source, share in r.accepted_from.items()) or "-",
        )  # fmt: skip
    return table


def _limit_cells(row: Row) -> tuple[str, str]:
    of_limit = "-" if row.limit_share is None else output.share_of_limit(row.limit_share)
    return of_limit, f"{row.silent_share:.0%}"


def _model_cells(row: Row) -> tuple[str, str, str]:
    if row.draft_cost is None:
        return "-", "-", "-"
    return (
        f"{row.draft_cost:g}",
        f"{row.model_passes_per_round:.2f}",
        f"{row.model_share:.0%}",
    )


def tokenised(
    traces: Sequence[Trace], tokenizer: str | None, *, always: bool = False
) -> tuple[str, Corpus]:
    """What the tokenizer is called, and the corpus. Recorded ids alone need none, unless `always`
    one is wanted."""
    from copyahead.traces.corpus import build_corpus
    from copyahead.traces.tokenizers import find_tokenizer

    if tokenizer is None and not always and not any(trace.conversations for trace in traces):
        return "recorded token ids", build_corpus(traces, None)
    name, found = find_tokenizer(tokenizer)
    size = sum(len(m.text) for t in traces for c in t.conversations for m in c.messages)
    with output.bar("tokenising", size) as bar:
        return name, build_corpus(traces, found, bar.advance)


def report_problems(traces: Sequence[Trace]) -> None:
    """Say what of the traces could not be read."""
    found = [problem for trace in traces for problem in trace.problems]
    problems = sorted(found, key=lambda problem: -problem.count)
    for problem in problems[:_PROBLEMS_SHOWN]:
        output.remark(f"{'skipped' if problem.skipped else 'note:'} {problem}")
    if len(problems) > _PROBLEMS_SHOWN:
        output.remark(f"skipped {len(problems) - _PROBLEMS_SHOWN} more parts; --json lists them")


def _write_report(path: Path, traces: Sequence[Trace], name: str, rows: Sequence[Row]) -> None:
    from copyahead.traces.report import html_report

    try:
        path.expanduser().write_text(html_report(traces, name, rows), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"html file {path} cannot be written ({error.strerror})") from None
