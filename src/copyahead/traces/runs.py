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

from copyahead.config import SharedOptions, usable_cpus
from copyahead.contracts import Drafter, Load
from copyahead.step_cost import StepCost
from copyahead.traces.corpus import END, START, Corpus
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
    jobs: int | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Results:
    """Do all `runs`; the result does not depend on `jobs`, the number of processes.

    `on_progress` gets the number of written tokens done since its last call.
    """
    jobs = jobs or usable_cpus()
    tasks = _tasks(corpus, runs)
    results: Results = [{} for _ in runs]
    work = corpus.num_written * len(runs)
    if jobs == 1 or len(tasks) == 1 or work <= _ONE_PROCESS:
        done: Iterable[tuple[_Task, Phases]] = (
            (task, _do(corpus, runs, task, on_progress)) for task in tasks
        )
    else:
        done = _in_processes(corpus, runs, tasks, min(jobs, len(tasks)), on_progress)
    for task, phases in done:
        held = results[task.run].setdefault(task.category, Phases())
        held += phases
    return results


def _tasks(corpus: Corpus, runs: Sequence[Run]) -> list[_Task]:
    """A task is some sessions of a category; all of them where one learns from those before."""
    tasks = []
    for number, run in enumerate(runs):
        together = run.shared.shared and run.policy != LIMIT
        for category in range(len(corpus.categories)):
            part: list[tuple[int, int]] = []
            written = 0
            for span in corpus.sessions(category):
                part.append(span)
                written += _written(corpus, [span])
                if written >= _WRITTEN_PER_TASK and not (together or is_priced(run.policy)):
                    tasks.append(_Task(number, category, tuple(part)))
                    part, written = [], 0
            if part:
                tasks.append(_Task(number, category, tuple(part)))
    return tasks


def _do(
    corpus: Corpus, runs: Sequence[Run], task: _Task, on_session: Callable[[int], None] | None
) -> Phases:
    run = runs[task.run]
    if run.policy == LIMIT:
        return limit_sessions(corpus, task.spans, on_session)
    return replay_sessions(corpus, task.spans, drafter_maker(run, corpus), on_session)


def drafter_maker(run: Run, corpus: Corpus) -> Callable[[int], Drafter]:
    """Makes the run's drafter over one row of a given capacity."""
    from copyahead.drafters.factory import make_drafter, make_store
    from copyahead.history.pool import HistoryPool

    def make(capacity: int) -> Drafter:
        store = make_store(run.shared, corpus.vocab_size)
        pool = HistoryPool(1, capacity, corpus.vocab_size, store)
        load = Load(step_cost=run.cost.curve) if run.cost is not None else Load()
        return make_drafter(run.policy, pool, load, corpus.end_tokens)

    return make


_shared: dict[str, Any] = {}


def _in_processes(
    corpus: Corpus,
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
        arguments = (str(folder / "tokens.npy"), rest, list(runs), counter)
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


def _report(count: int, reported: int, on_progress: Callable[[int], None] | None) -> int:
    if on_progress is not None and count > reported:
        on_progress(count - reported)
    return count


def _written(corpus: Corpus, spans: Sequence[tuple[int, int]]) -> int:
    rows = [corpus.requests[first:last] for first, last in spans]
    return sum(int((part[:, END] - part[:, START]).sum()) for part in rows)


def _start_worker(path: str, rest: tuple[Any, ...], runs: list[Run], counter: Any) -> None:
    # Copy on write: kernels take writable arrays, and nothing is ever written.
    tokens = np.load(path, mmap_mode="c")
    _shared.update(corpus=Corpus(np.asarray(tokens), *rest), runs=runs, counter=counter)


def _work(task: _Task) -> Phases:
    counter = _shared["counter"]

    def count(tokens: int) -> None:
        with counter.get_lock():
            counter.value += tokens

    return _do(_shared["corpus"], _shared["runs"], task, count)
