"""Plain decoding and lookup side by side, on one prompt: is the text the same, is it faster?

Runs alternate (plain, lookup, lookup, plain; with several policies each of them on the way there
and on the way back), so that a machine that grows slower or faster
favours neither, and each begins with an engine that remembers nothing. Speeds are medians, of
the tokens after the first: reading the prompt is not decoding. What a copy that never breaks could
reach is reckoned from the passes of the same runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import msgspec

from copyahead.engine import Choice, Completion, Engine, Request
from copyahead.engine.passes import PassTimes
from copyahead.errors import BackendError
from copyahead.evaluate.workloads import Workload
from copyahead.sampling import SamplingOptions
from copyahead.stats import SourceCount
from copyahead.step_cost import StepCost
from copyahead.types import FinishReason

_WARM_UP_TOKENS = 24


class Comparison(msgspec.Struct, frozen=True):
    """One workload under one policy. Also one entry of `results` in the JSON of `compare`."""

    workload: str
    policy: str
    temperature: float
    prompt_tokens: int
    output_tokens: int
    plain_tps: float
    """Tokens a second of plain decoding; 0 where fewer than two tokens were written."""
    lookup_tps: float
    speedup: float
    """`lookup_tps / plain_tps`; 1 where there is nothing to time."""
    limit: float
    """The speed-up of a copy that never breaks, by what the passes of these runs cost."""
    rounds: int
    tokens_per_round: float
    num_draft_tokens: int
    num_accepted_tokens: int
    longest_match: int
    identical: bool
    """Whether every run gave the same tokens, text and finish reason."""
    by_source: dict[str, SourceCount] = {}
    """Drafted and accepted tokens by where they came from."""
    num_model_passes: int = 0
    """Passes of a draft model."""
    num_model_skips: int = 0
    """Rounds in which it was not asked."""
    model_seconds: float = 0.0
    num_compared: int = 0
    """Rounds in which there were a copy and a draft of its."""
    num_agreed: int = 0
    """Those of them in which both began with the same token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every comparison of a run has in common."""

    sampling: SamplingOptions
    repeat: int = 1
    """How often plain, lookup, lookup, plain is run."""
    max_tokens: int | None = None
    """Longest answer; that of the workload when not given."""

    @property
    def seeded(self) -> SamplingOptions:
        """The sampling with a seed: runs with different ones cannot be compared."""
        return self.sampling if self.sampling.seed is not None else replace(self.sampling, seed=0)


def compare(
    engine: Engine,
    workload: Workload,
    policy: str,
    plan: Plan,
    *,
    on_run: Callable[[], None] = lambda: None,
) -> tuple[Comparison, Completion]:
    """Run `workload` both ways; the comparison, and the last run with lookup.

    `on_run` is called after every timed run. Raises BackendError where a run fails.
    """
    return compare_all(engine, workload, [policy], plan, on_run=on_run)[0]


def compare_all(
    engine: Engine,
    workload: Workload,
    policies: Sequence[str],
    plan: Plan,
    *,
    on_run: Callable[[], None] = lambda: None,
) -> list[tuple[Comparison, Completion]]:
    """`compare` for several policies against the same plain runs, all of them alternated."""
    max_tokens = workload.max_tokens if plan.max_tokens is None else plan.max_tokens
    request = Request(
        prompt=engine.backend.tokenizer.encode(workload.prompt),
        sampling=plan.seeded,
        max_tokens=max_tokens,
        min_tokens=min(workload.min_tokens, max_tokens),
    )
    _warm_up(engine, request, policies)
    before = engine.pass_times
    runs: dict[str | None, list[Completion]] = {None: [], **{policy: [] for policy in policies}}
    for policy in [*runs, *reversed(runs)] * plan.repeat:
        runs[policy].append(_run(engine, request, policy))
        on_run()
    limit = partial(limit_of, engine.step_cost, passes_since(before, engine.pass_times))
    plain, temperature = runs[None], plan.sampling.temperature
    return [
        (judge(workload.name, policy, temperature, plain, runs[policy], limit), runs[policy][-1])
        for policy in policies
    ]


def passes_since(before: PassTimes, now: PassTimes) -> PassTimes:
    """What came to `before` until `now`."""
    found = {}
    for rows, (count, seconds) in now.items():
        earlier, earlier_seconds = before.get(rows, (0, 0.0))
        if count > earlier:
            found[rows] = count - earlier, seconds - earlier_seconds
    return found


def limit_of(cost: StepCost, passes: PassTimes, plain_tps: float) -> float:
    """The speed-up of a copy that never breaks and takes no time to find.

    Sizes that ran cost what they took, the others what `cost` says. As no pass emits more than its
    rows, no speed-up of these runs is larger, but for what the machine's speed changed meanwhile.
    """
    if plain_tps <= 0:
        return cost.limit()
    # A plain step against a mere pass: sampling and drafting take their time as well.
    ran = [rows * count / (seconds * plain_tps) for rows, (count, seconds) in passes.items()]
    return max(cost.limit(), *ran)


def judge(
    workload: str,
    policy: str,
    temperature: float,
    plain: list[Completion],
    lookup: list[Completion],
    limit: Callable[[float], float],
) -> Comparison:
    """Sum up the runs of one comparison: at least one of each kind.

    `limit`: from tokens a second of plain decoding to the speed-up that the passes allow.
    """
    answers = {_answer(run.choices[0]) for run in plain + lookup}
    plain_tps = median(run.stats.tokens_per_second for run in plain)
    lookup_tps = median(run.stats.tokens_per_second for run in lookup)
    stats = lookup[-1].stats
    return Comparison(
        workload=workload,
        policy=policy,
        temperature=temperature,
        prompt_tokens=stats.num_prompt_tokens,
        output_tokens=stats.num_output_tokens,
        plain_tps=round(plain_tps, 2),
        lookup_tps=round(lookup_tps, 2),
        speedup=round(lookup_tps / plain_tps, 3) if plain_tps > 0 else 1.0,
        limit=round(limit(plain_tps), 3),
        rounds=stats.rounds,
        tokens_per_round=round(stats.tokens_per_round, 3),
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_tokens=stats.num_accepted_tokens,
        longest_match=stats.longest_match,
        identical=len(answers) == 1,
        by_source={str(source): count for source, count in stats.by_source.items()},
        num_model_passes=stats.num_model_passes,
        num_model_skips=stats.num_model_skips,
        model_seconds=round(stats.model_seconds, 4),
        num_compared=stats.num_compared,
        num_agreed=stats.num_agreed,
    )


def _run(engine: Engine, request: Request, policy: str | None) -> Completion:
    engine.reset()
    done = engine.complete(_with_policy(request, policy))
    choice = done.choices[0]
    if choice.finish_reason is FinishReason.ERROR:
        raise BackendError(choice.error or "the request failed")
    return done


def _with_policy(request: Request, policy: str | None) -> Request:
    """`request` under `policy`; None: plainly."""
    return msgspec.structs.replace(request, policy=policy, lookup=policy is not None)


def _warm_up(engine: Engine, request: Request, policies: Sequence[str]) -> None:
    """A short run each way, so that nothing is loaded or compiled in a timed one."""
    limit = request.max_tokens
    tokens = _WARM_UP_TOKENS if limit is None else min(_WARM_UP_TOKENS, limit)
    short = msgspec.structs.replace(request, max_tokens=tokens, min_tokens=0)
    for policy in (*policies, None):
        # Each keeps the prompt of the one before it: this is no timed run.
        engine.complete(_with_policy(short, policy))


def _answer(choice: Choice) -> tuple[tuple[int, ...], str, FinishReason | None]:
    return tuple(choice.tokens), choice.text, choice.finish_reason
