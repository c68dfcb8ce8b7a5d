"""Counters for Prometheus, under the names that vLLM and llama.cpp use where they have one.

`copyahead:` names are for what only copying has. All are fed when a request ends, from its own
counters; gauges are read when somebody asks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from copyahead.server.generation import Outcome
from copyahead.server.http.limits import Queue
from copyahead.stats import CopyStats
from copyahead.types import Exactness

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


_QUEUE: tuple[tuple[str, str, Callable[[Queue], float]], ...] = (
    ("vllm:num_requests_running", "Requests that hold a slot", lambda q: q.num_running),
    ("vllm:num_requests_waiting", "Requests that wait for one", lambda q: q.num_waiting),
    ("llamacpp:requests_processing", "Requests that hold a slot", lambda q: q.num_running),
    ("llamacpp:requests_deferred", "Requests that wait for one", lambda q: q.num_waiting),
)
"""Gauges: name, help, and what is read when somebody asks."""

_HELD = (
    ("copyahead:requests_held", "Requests in the engine", "requests"),
    ("copyahead:slots_held", "Slots that requests hold", "slots"),
    ("copyahead:cells_held", "Tokens in the slots that requests hold", "cells"),
    ("copyahead:history_rows_held", "Rows of history that requests hold", "history_rows"),
)
"""Gauges of the engine, each 0 when no request runs: name, help, and its name in `Engine.held`."""

_TIMES: tuple[tuple[str, str, Callable[[Outcome], Iterable[float]], tuple[float, ...]], ...] = (
    (
        "vllm:time_to_first_token_seconds",
        "From arrival to the first token",
        lambda o: [] if o.first_token_seconds is None else [o.first_token_seconds],
        _SECONDS,
    ),
    (
        "vllm:inter_token_latency_seconds",
        "Between the rounds of an answer",
        lambda o: o.gaps,
        _GAPS,
    ),
    (
        "vllm:e2e_request_latency_seconds",
        "From arrival to end",
        lambda o: [o.total_seconds],
        _SECONDS,
    ),
    ("vllm:request_queue_time_seconds", "Wait for a slot", lambda o: [o.queue_seconds], _SECONDS),
)
"""Histograms: name, help, what a request adds to it, and its buckets."""

_TOTALS: tuple[tuple[str, str, Callable[[CopyStats], float]], ...] = (
    ("vllm:prompt_tokens", "Tokens of prompts", lambda s: s.num_prompt_tokens),
    ("vllm:generation_tokens", "Tokens written", lambda s: s.num_output_tokens),
    (
        "vllm:prefix_cache_queries",
        "Tokens of prompts that were looked for among kept prefixes",
        lambda s: s.num_prompt_tokens,
    ),
    (
        "vllm:prefix_cache_hits",
        "Tokens of prompts that were kept from an earlier request",
        lambda s: s.num_cached_tokens,
    ),
    ("vllm:num_preemptions", "Times that a request gave its place up", lambda s: s.preemptions),
    ("vllm:spec_decode_num_drafts", "Drafts verified", lambda s: s.rounds - s.plain_rounds),
    ("vllm:spec_decode_num_draft_tokens", "Drafted tokens verified", lambda s: s.num_draft_tokens),
    (
        "vllm:spec_decode_num_accepted_tokens",
        "Drafted tokens kept",
        lambda s: s.num_accepted_tokens,
    ),
    (
        "llamacpp:prompt_tokens",
        "Tokens of prompts that were computed",
        lambda s: s.num_prompt_tokens - s.num_cached_tokens,
    ),
    (
        "llamacpp:prompt_seconds",
        "Seconds from admission to the first token",
        lambda s: s.prefill_seconds,
    ),
    ("llamacpp:tokens_predicted", "Tokens written", lambda s: s.num_output_tokens),
    (
        "llamacpp:tokens_predicted_seconds",
        "Seconds from the first token to the last",
        lambda s: s.decode_seconds,
    ),
    (
        "copyahead:rounds",
        "Rounds: passes in which a request took part with a row of its own",
        lambda s: s.rounds,
    ),
    (
        "copyahead:kept_drafts",
        "Drafts of which at least one token was kept",
        lambda s: s.kept_drafts,
    ),
    ("copyahead:draft_seconds", "Seconds spent on proposing", lambda s: s.draft_seconds),
    (
        "copyahead:verify_seconds",
        "Seconds spent in target passes after the prompt",
        lambda s: s.verify_seconds,
    ),
    (
        "copyahead:drafter_faults",
        "Rounds that ran plain because a drafter failed",
        lambda s: s.drafter_faults,
    ),
    (
        "copyahead:retries",
        "Passes repeated without drafts because they failed",
        lambda s: s.retries,
    ),
    (
        "copyahead:draft_model_passes",
        "Passes of the draft model, once for each request that took part",
        lambda s: s.num_model_passes,
    ),
    (
        "copyahead:draft_model_skips",
        "Rounds in which the draft model was not asked",
        lambda s: s.num_model_skips,
    ),
    (
        "copyahead:draft_model_seconds",
        "Seconds spent in the draft model's passes",
        lambda s: s.model_seconds,
    ),
    (
        "copyahead:drafts_compared",
        "Rounds with both a copy and a draft of the draft model",
        lambda s: s.num_compared,
    ),
    (
        "copyahead:drafts_agreed",
        "Those of them in which both began with the same token",
        lambda s: s.num_agreed,
    ),
)
"""Counters: name, help, and what a request adds to it."""

_SHARES: tuple[tuple[str, str, str, Callable[[CopyStats], Iterable[tuple[str, float]]]], ...] = (
    (
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Drafted tokens kept",
        "position",
        lambda s: ((str(place), times) for place, times in enumerate(s.accepted_per_position)),
    ),
    (
        "copyahead:draft_tokens_by_source",
        "Drafted tokens",
        "source",
        lambda s: ((str(source), n.num_draft_tokens) for source, n in s.by_source.items()),
    ),
    (
        "copyahead:accepted_tokens_by_source",
        "Drafted tokens kept",
        "source",
        lambda s: ((str(source), n.num_accepted_tokens) for source, n in s.by_source.items()),
    ),
)
"""Counters in shares: name, help, the label of a share, and what a request adds to each."""


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(
        self,
        model: str,
        queue: Queue,
        exactness: Exactness | None,
        cells_in_use: Callable[[], float],
        held: Callable[[], Mapping[str, int]],
    ) -> None:
        """`cells_in_use`: the share of the KV cells that hold something, from 0 to 1. `held`: what
        running requests hold; see `Engine.held`."""
        # Otherwise every counter has a twin that says when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._model = model
        for name, about, read in _QUEUE:
            self._watch(name, about, partial(read, queue))
        self._success = self._counter(
            "vllm:request_success", "Answers that ended", "finished_reason"
        )
        self._refused = self._counter(
            "copyahead:requests_refused", "Requests that ended with an error object", "code"
        )
        self._times = [
            (self._histogram(name, about, buckets), read) for name, about, read, buckets in _TIMES
        ]
        self._totals = [(self._counter(name, about), read) for name, about, read in _TOTALS]
        self._shares = [
            (self._counter(name, about, label), read) for name, about, label, read in _SHARES
        ]
        for name in ("vllm:kv_cache_usage_perc", "llamacpp:kv_cache_usage_ratio"):
            self._watch(name, "Share of the KV cells that hold something", cells_in_use)
        for name, about, what in _HELD:
            self._watch(name, about, partial(_read, held, what))
        self._watch(
            "process_resident_memory_bytes", "Memory of the server; 0: unknown", _memory_bytes
        )
        level = exactness.level if exactness is not None else "not_measured"
        rows = exactness.rows if exactness is not None else 0
        gauge = self._gauge("copyahead:exact_rows", "Rows of a pass proven exact", "level")
        gauge.labels(model, level).set(rows)

    def page(self) -> bytes:
        """What `GET /metrics` answers."""
        return generate_latest(self._registry)

    def refuse(self, code: str) -> None:
        """Count a request that ended with an error object."""
        self._refused.labels(self._model, code).inc()

    def record(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        for reason in outcome.reasons:
            self._success.labels(self._model, reason).inc()
        for histogram, seconds in self._times:
            for value in seconds(outcome):
                histogram.labels(self._model).observe(value)
        for total, amount in self._totals:
            total.labels(self._model).inc(amount(outcome.stats))
        for counter, shares in self._shares:
            for label, value in shares(outcome.stats):
                counter.labels(self._model, label).inc(value)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, ["model_name", *labels], registry=self._registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(name, about, ["model_name", *labels], registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, about, ["model_name"], registry=self._registry, buckets=buckets)

    def _watch(self, name: str, about: str, read: Callable[[], float]) -> None:
        self._gauge(name, about).labels(self._model).set_function(read)


def _memory_bytes() -> float:
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return float(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    except OSError:
        return 0.0


def _read(held: Callable[[], Mapping[str, int]], what: str) -> float:
    return held()[what]
