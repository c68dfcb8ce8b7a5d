"""A replay on a Ray cluster: the same tasks as on this machine, each done by whoever is free.

What is drafted may depend on the requests before, and then all sessions of a category are one task;
a policy, a cost and a category are apart from each other always. A task's counts are whole numbers
and are added up here, in the order of the tasks, so the figures are those of a replay without Ray.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from copyahead.errors import ClusterError, MissingExtraError
from copyahead.traces.corpus import BASE, END, Corpus
from copyahead.traces.drafts.draft_file import RecordedDrafts
from copyahead.traces.replay import Phases

LOCAL = "local"
"""Instead of an address: a cluster is started on this machine, and ended."""
_TRIES = 2
_PATIENCE_SECONDS = 5.0

Spans = tuple[tuple[int, int], ...]


class Share(NamedTuple):
    """Some sessions, and the part of the corpus that they need."""

    corpus: Corpus
    spans: Spans


class Part(NamedTuple):
    """A task of a replay."""

    run: Any
    """A `traces.runs.Run`."""
    spans: Spans
    """First and last request (exclusive) of each session."""


def replay_on_ray(
    address: str,
    corpus: Corpus,
    drafts: RecordedDrafts | None,
    parts: Sequence[Part],
    *,
    jobs: int | None = None,
    on_part: Callable[[Part], None] = lambda _: None,
) -> list[Phases]:
    """The phases of each part, in order, from the cluster at `address`.

    `jobs`: processors of a cluster that is started here. `on_part` is told each part that is done.
    Raises MissingExtraError without Ray, and ClusterError where a cluster cannot be reached, or a
    worker has died twice over one part.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "ray") from None
    options: dict[str, Any] = {"address": address}
    if address == LOCAL:
        # Ray reports on the clusters that it starts unless it is told not to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"num_cpus": jobs, "include_dashboard": False}
    try:
        _check_listens(address)
        ray.init(log_to_driver=False, logging_level="error", **options)
    except (OSError, ValueError, RuntimeError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ClusterError(
            f"the Ray cluster at {address} cannot be reached ({reason}): start one with "
            "`ray start --head`, or give --ray local"
        ) from None
    try:
        return _collected(ray, _sent(ray, corpus, drafts, parts), parts, on_part)
    finally:
        ray.shutdown()


def _check_listens(address: str) -> None:
    """Raise OSError where nobody listens at `HOST:PORT`: Ray tries for minutes to find out."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_SECONDS):
            return
    if address not in (LOCAL, "auto"):
        raise ValueError("an address is HOST:PORT, auto or local")


def _sent(
    ray: Any, corpus: Corpus, drafts: RecordedDrafts | None, parts: Sequence[Part]
) -> list[Any]:
    """A task of Ray for each part. Parts over the same sessions share what they read."""
    # Ray tries a task once more whose worker dies; what it raises itself is not tried again.
    remote = ray.remote(max_retries=_TRIES - 1, num_cpus=1)(work)
    shares: dict[Any, Any] = {}
    recorded = ray.put(drafts)
    tasks = []
    for part in parts:
        # Recorded drafts are numbered as the requests of the whole corpus are.
        is_whole = part.run.beside is not None
        key = None if is_whole else part.spans
        if key not in shares:
            shares[key] = ray.put(corpus if is_whole else share_of(corpus, part.spans))
        tasks.append(remote.remote(part, shares[key], recorded if is_whole else None))
    return tasks


def share_of(corpus: Corpus, spans: Spans) -> Share:
    """What the sessions of `spans` need of `corpus`, numbered from 0."""
    rows = np.concatenate([np.arange(first, last) for first, last in spans])
    requests = corpus.requests[rows].copy()
    start = int(requests[:, BASE].min())
    end = int((requests[:, BASE] + requests[:, END]).max())
    requests[:, BASE] -= start
    numbers = np.cumsum([0, *(last - first for first, last in spans)]).tolist()
    own = tuple(pairwise(numbers))
    return Share(replace(corpus, tokens=corpus.tokens[start:end], requests=requests), own)


def work(part: Part, share: Share | Corpus, drafts: RecordedDrafts | None) -> Phases:
    """Do one part. Runs in a worker."""
    from copyahead.traces.runs import do_run

    corpus, spans = share if isinstance(share, Share) else (share, part.spans)
    # Ray's arrays are shared and may not be written; kernels take no others than those that may.
    own = replace(corpus, tokens=np.array(corpus.tokens), requests=np.array(corpus.requests))
    return do_run(own, drafts, part.run, spans)


def _collected(
    ray: Any, tasks: Sequence[Any], parts: Sequence[Part], on_part: Callable[[Part], None]
) -> list[Phases]:
    numbers: Mapping[Any, int] = {task: number for number, task in enumerate(tasks)}
    found: dict[int, Phases] = {}
    pending = list(tasks)
    while pending:
        done, pending = ray.wait(pending, num_returns=1)
        for task in done:
            number = numbers[task]
            try:
                found[number] = ray.get(task)
            except ray.exceptions.RayError as error:
                for other in pending:
                    ray.cancel(other, force=True)
                raise _fault(error) from error
            on_part(parts[number])
    return [found[number] for number in range(len(parts))]


def _fault(error: Any) -> ClusterError:
    cause = getattr(error, "cause", None)
    if isinstance(cause, ImportError) or "ModuleNotFoundError" in str(error):
        return ClusterError(
            "the workers of the Ray cluster cannot import copyahead: install this version of it "
            "where they run"
        )
    if cause is not None:
        return ClusterError(f"a worker of the Ray cluster met a fault ({cause})")
    kind = type(error).__name__
    return ClusterError(
        f"a worker of the Ray cluster died {_TRIES} times over the same part of the traces "
        f"({kind}): give its machine more memory, or replay without --ray"
    )
