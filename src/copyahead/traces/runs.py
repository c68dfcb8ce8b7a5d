"""Which replays a command asks for, cut into tasks, run by all cores."""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from copyahead.config import HybridRule, SharedOptions, usable_cpus
from copyahead.contracts import Drafter, Load
from copyahead.step_cost import StepCost
from copyahead.traces.corpus import END, START, Corpus
from copyahead.traces.drafts.beside import ALONE, Beside
from copyahead.traces.drafts.draft_file import RecordedDrafts
from copyahead.traces.drafts.recorded import RecordedDrafter
from copyahead.traces.replay import Phases, limit_sessions, replay_sessions

LIMIT = "limit"
"""Stands for the copying limit where a policy's name is asked for."""

_WRITTEN_PER_TASK = 200_000
_ONE_PROCESS = 300_000
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Cost:
    """A step cost, and what it is called: a row's cost for a straight line."""

    name: str
    curve: StepCost
    row_cost: float | None = None


_NOT_SHARED = SharedOptions()


@dataclass(frozen=True)
class Run:
    """One policy over the whole corpus; `cost` where its drafts depend on it."""

    policy: str
    cost: Cost | None = None
    shared: SharedOptions = _NOT_SHARED
    """Whether sessions also copy from those before them."""
    beside: Beside | None = None
    """How recorded drafts take part, where they do."""
    fresh: bool = False
    """Whether only the first request of each session is replayed, each by a drafter of its own."""
    prior: bytes | None = None
    """The float64 model that `priced` starts from (`drafters.prior`), where not the shipped one."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        if self.beside is None:
            return self.policy
        if self.beside.rule == ALONE:
            return "model alone"
        return f"{self.policy} + model, {self.beside.rule}"

    @property
    def learns(self) -> bool:
        """Whether what is drafted depends on the requests before, so that it is one task."""
        if self.policy == LIMIT or self.fresh:
            return False
        return self.shared.shared or self.beside is not None or is_priced(self.policy)


@dataclass(frozen=True)
class _Task:
    run: int
    category: int
    spans: tuple[tuple[int, int], ...]


Results = list[dict[int, Phases]]
"""For each run, what each category gave."""


def plan_runs(
    policies: Sequence[str], costs: Sequence[Cost], shared: SharedOptions = _NOT_SHARED
) -> list[Run]:
    """The runs that `policies` take: priced drafts depend on the cost, so once a cost."""
    runs: list[Run] = []
    for policy in policies:
        if is_priced(policy):
            runs.extend(Run(policy, cost, shared) for cost in costs)
        else:
            runs.append(Run(policy, shared=shared))
    return runs


def plan_beside(
    policy: str,
    costs: Sequence[Cost],
    besides: Sequence[Beside],
    shared: SharedOptions = _NOT_SHARED,
) -> list[Run]:
    """The runs of recorded drafts beside the copies of `policy`; rules price by the cost."""
    runs: list[Run] = []
    for beside in besides:
        if beside.rule == ALONE:
            runs.append(Run(policy, shared=shared, beside=beside))
        else:
            runs.extend(Run(policy, cost, shared, beside) for cost in costs)
    return runs


def rules_for(policy: str, rules: Sequence[HybridRule]) -> list[HybridRule]:
    """Those of `rules` that copies of `policy` can be arbitrated by: presets have no price."""
    return [rule for rule in rules if rule != "priced" or is_priced(policy)]


def policies_of(names: Sequence[str]) -> list[str]:
    """`names` written in full, each once. Raises ConfigError for an unknown policy."""
    from copyahead.policies import parse_policy

    return list(dict.fromkeys(str(parse_policy(name)) for name in names))


LENGTHS = (1, 2, 4, 8)


def length_policies() -> tuple[str, ...]:
    """How much of the newest place to copy: a fixed number of tokens, or an adaptive one.

    The simulation of the single-draft rule: the newest earlier occurrence of the last 3 tokens,
    then of the last 2; the `LENGTHS`; and a length that doubles after a full accept, up to 8, and
    falls to 1 on a miss. They are policies like any other, so the same replay runs them.
    """
    fixed = (f"fixed:num_draft_tokens={length}" for length in LENGTHS)
    return (*fixed, "adaptive_k")


def is_priced(policy: str) -> bool:
    """Whether a policy's drafts depend on the step cost, and it learns over requests."""
    from copyahead.policies import parse_policy

    return policy != LIMIT and not parse_policy(policy).is_preset


def run_all(
    corpus: Corpus,
    runs: Sequence[Run],
    *,
    drafts: RecordedDrafts | None = None,
    jobs: int | None = None,
    ray: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Results:
    """Do all `runs`; the result does not depend on `jobs`, the number of processes, nor on `ray`.

    `drafts`: of the requests of `corpus`, where a run has recorded drafts take part. `ray`: the
    address of a cluster that does the work; see `traces.cluster`.

    `on_progress` gets the number of written tokens done since its last call.
    """
    tasks = _tasks(corpus, runs)
    jobs, given = jobs or usable_cpus(), jobs
    results: Results = [{} for _ in runs]
    work = num_written(corpus, runs)
    done: Iterable[tuple[_Task, Phases]]
    if ray is not None:
        done = _on_ray(ray, corpus, drafts, runs, tasks, given, on_progress)
    elif jobs == 1 or len(tasks) == 1 or work <= _ONE_PROCESS:
        done = ((task, _do(corpus, drafts, runs, task, on_progress)) for task in tasks)
    else:
        done = _in_processes(corpus, drafts, runs, tasks, min(jobs, len(tasks)), on_progress)
    for task, phases in done:
        held = results[task.run].setdefault(task.category, Phases())
        held += phases
    return results


def num_written(corpus: Corpus, runs: Sequence[Run]) -> int:
    """Tokens that all `runs` replay together."""
    return sum(_written(corpus, task.spans) for task in _tasks(corpus, runs))


def _spans(corpus: Corpus, run: Run, category: int) -> list[tuple[int, int]]:
    """The requests of each session of a category that the run replays."""
    sessions = corpus.sessions(category)
    return [(first, first + 1) for first, _ in sessions] if run.fresh else sessions


def _tasks(corpus: Corpus, runs: Sequence[Run]) -> list[_Task]:
    """A task is some sessions of a category; all of them where one learns from those before."""
    tasks = []
    for number, run in enumerate(runs):
        for category in range(len(corpus.categories)):
            part: list[tuple[int, int]] = []
            written = 0
            for span in _spans(corpus, run, category):
                part.append(span)
                written += _written(corpus, [span])
                if written >= _WRITTEN_PER_TASK and not run.learns:
                    tasks.append(_Task(number, category, tuple(part)))
                    part, written = [], 0
            if part:
                tasks.append(_Task(number, category, tuple(part)))
    return tasks


def _do(
    corpus: Corpus,
    drafts: RecordedDrafts | None,
    runs: Sequence[Run],
    task: _Task,
    on_session: Callable[[int], None] | None,
) -> Phases:
    return do_run(corpus, drafts, runs[task.run], task.spans, on_session)


def do_run(
    corpus: Corpus,
    drafts: RecordedDrafts | None,
    run: Run,
    spans: Sequence[tuple[int, int]],
    on_session: Callable[[int], None] | None = None,
) -> Phases:
    """Do one run over the sessions in `spans`."""
    if run.policy == LIMIT:
        return limit_sessions(corpus, spans, on_session)
    recorded = None
    if run.beside is not None:
        assert drafts is not None, "a run beside recorded drafts needs them"
        recorded = run.beside.recorded(corpus, drafts)
    make = drafter_maker(run, corpus, recorded)
    if not run.fresh:
        return replay_sessions(corpus, spans, make, on_session, recorded)
    phases = Phases()
    for span in spans:
        phases += replay_sessions(corpus, [span], make, on_session, recorded)
    return phases


def drafter_maker(
    run: Run, corpus: Corpus, recorded: RecordedDrafter | None = None
) -> Callable[[int], Drafter]:
    """Makes the run's drafter over one row of a given capacity."""
    from copyahead.drafters.factory import make_drafter, make_store
    from copyahead.history.pool import HistoryPool

    prior = None if run.prior is None else np.frombuffer(run.prior)

    def make(capacity: int) -> Drafter:
        if run.beside is not None and run.beside.rule == ALONE and recorded is not None:
            return recorded
        store = make_store(run.shared, corpus.vocab_size)
        pool = HistoryPool(1, capacity, corpus.vocab_size, store)
        load = Load(step_cost=run.cost.curve) if run.cost is not None else Load()
        copies = make_drafter(run.policy, pool, load, corpus.end_tokens, prior)
        if run.beside is None or recorded is None:
            return copies
        return run.beside.drafter(copies, recorded, load)

    return make


_shared: dict[str, Any] = {}


def _in_processes(
    corpus: Corpus,
    drafts: RecordedDrafts | None,
    runs: Sequence[Run],
    tasks: Sequence[_Task],
    jobs: int,
    on_progress: Callable[[int], None] | None,
) -> list[tuple[_Task, Phases]]:
    """The tasks, largest first. Tokens go through a file that every process maps."""
    order = sorted(tasks, key=lambda task: -_written(corpus, task.spans))
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    folder = Path(tempfile.mkdtemp(prefix="copyahead-replay-"))
    try:
        np.save(folder / "tokens.npy", corpus.tokens)
        rest = (corpus.requests, corpus.categories, corpus.vocab_size, corpus.end_tokens)
        arguments = (str(folder / "tokens.npy"), rest, drafts, list(runs), counter)
        with context.Pool(jobs, _start_worker, arguments) as pool:
            pending = pool.map_async(_work, order, chunksize=1)
            reported = 0
            while not pending.ready():
                pending.wait(_POLL_SECONDS)
                reported = _report(counter.value, reported, on_progress)
            done = pending.get()
            pool.close()
            pool.join()
        _report(counter.value, reported, on_progress)
        return list(zip(order, done, strict=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _on_ray(
    address: str,
    corpus: Corpus,
    drafts: RecordedDrafts | None,
    runs: Sequence[Run],
    tasks: Sequence[_Task],
    jobs: int | None,
    on_progress: Callable[[int], None] | None,
) -> list[tuple[_Task, Phases]]:
    from copyahead.traces.cluster import Part, replay_on_ray

    def report(part: Part) -> None:
        if on_progress is not None:
            on_progress(_written(corpus, part.spans))

    parts = [Part(runs[task.run], task.spans) for task in tasks]
    found = replay_on_ray(address, corpus, drafts, parts, jobs=jobs, on_part=report)
    return list(zip(tasks, found, strict=True))


def _report(count: int, reported: int, on_progress: Callable[[int], None] | None) -> int:
    if on_progress is not None and count > reported:
        on_progress(count - reported)
    return count


def _written(corpus: Corpus, spans: Sequence[tuple[int, int]]) -> int:
    rows = [corpus.requests[first:last] for first, last in spans]
    return sum(int((part[:, END] - part[:, START]).sum()) for part in rows)


def _start_worker(
    path: str,
    rest: tuple[Any, ...],
    drafts: RecordedDrafts | None,
    runs: list[Run],
    counter: Any,
) -> None:
    # Copy on write: kernels take writable arrays, and nothing is ever written.
    tokens = np.load(path, mmap_mode="c")
    corpus = Corpus(np.asarray(tokens), *rest)
    _shared.update(corpus=corpus, drafts=drafts, runs=runs, counter=counter)


def _work(task: _Task) -> Phases:
    counter = _shared["counter"]

    def count(tokens: int) -> None:
        with counter.get_lock():
            counter.value += tokens

    return _do(_shared["corpus"], _shared["drafts"], _shared["runs"], task, count)
