"""Counters for Prometheus, under the names that vLLM and llama.cpp use where they have one.

`copyahead:` names are for what only copying has. All are fed when a request ends, from its own
counters; gauges are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable

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
from copyahead.types import Exactness

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics:
    """The counters of one server, in a registry of its own."""

    def __init__(
        self,
        model: str,
        queue: Queue,
        exactness: Exactness | None,
        cells_in_use: Callable[[], float],
    ) -> None:
        """`cells_in_use`: the share of the KV cells that hold something, from 0 to 1."""
        # Otherwise every counter has a twin that says when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._model = model
        self._counters: dict[str, Counter] = {}
        self._requests(queue)
        self._times()
        self._copying()
        level = exactness.level if exactness is not None else "not_measured"
        for name in ("vllm:kv_cache_usage_perc", "llamacpp:kv_cache_usage_ratio"):
            self._watch(name, "Share of the KV cells that hold something", cells_in_use)
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
        self._queue_time.labels(self._model).observe(outcome.queue_seconds)
        self._latency.labels(self._model).observe(outcome.total_seconds)
        if outcome.first_token_seconds is not None:
            self._first_token.labels(self._model).observe(outcome.first_token_seconds)
        for gap in outcome.gaps:
            self._gap.labels(self._model).observe(gap)
        self._count_tokens(outcome)
        self._count_drafts(outcome)

    def _count_tokens(self, outcome: Outcome) -> None:
        stats = outcome.stats
        self._add("vllm:prompt_tokens", stats.num_prompt_tokens)
        self._add("vllm:generation_tokens", stats.num_output_tokens)
        self._add("vllm:prefix_cache_queries", stats.num_prompt_tokens)
        self._add("vllm:prefix_cache_hits", stats.num_cached_tokens)
        self._add("vllm:num_preemptions", stats.preemptions)
        self._add("llamacpp:prompt_tokens", stats.num_prompt_tokens - stats.num_cached_tokens)
        self._add("llamacpp:prompt_seconds", stats.prefill_seconds)
        self._add("llamacpp:tokens_predicted", stats.num_output_tokens)
        self._add("llamacpp:tokens_predicted_seconds", stats.decode_seconds)

    def _count_drafts(self, outcome: Outcome) -> None:
        stats = outcome.stats
        self._add("vllm:spec_decode_num_drafts", stats.rounds - stats.plain_rounds)
        self._add("vllm:spec_decode_num_draft_tokens", stats.num_draft_tokens)
        self._add("vllm:spec_decode_num_accepted_tokens", stats.num_accepted_tokens)
        self._add("copyahead:rounds", stats.rounds)
        self._add("copyahead:kept_drafts", stats.kept_drafts)
        self._add("copyahead:draft_seconds", stats.draft_seconds)
        self._add("copyahead:verify_seconds", stats.verify_seconds)
        self._add("copyahead:drafter_faults", stats.drafter_faults)
        self._add("copyahead:retries", stats.retries)
        for position, times in enumerate(stats.accepted_per_position):
            self._per_position.labels(self._model, str(position)).inc(times)
        for source, count in stats.by_source.items():
            self._drafted.labels(self._model, str(source)).inc(count.num_draft_tokens)
            self._accepted.labels(self._model, str(source)).inc(count.num_accepted_tokens)

    def _requests(self, queue: Queue) -> None:
        for prefix, running, waiting in (
            ("vllm:", "num_requests_running", "num_requests_waiting"),
            ("llamacpp:", "requests_processing", "requests_deferred"),
        ):
            self._watch(prefix + running, "Requests that hold a slot", lambda: queue.num_running)
            self._watch(prefix + waiting, "Requests that wait for one", lambda: queue.num_waiting)
        name = "vllm:request_success"
        self._success = self._counter(name, "Answers that ended", "finished_reason")
        self._refused = self._counter(
            "copyahead:requests_refused", "Requests that ended with an error object", "code"
        )

    def _times(self) -> None:
        self._first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token"
        )
        self._gap = self._histogram(
            "vllm:inter_token_latency_seconds", "Between the rounds of an answer", _GAPS
        )
        self._latency = self._histogram("vllm:e2e_request_latency_seconds", "From arrival to end")
        self._queue_time = self._histogram("vllm:request_queue_time_seconds", "Wait for a slot")
        for name, about in _COUNTED.items():
            self._counters[name] = self._counter(name, about)

    def _copying(self) -> None:
        self._per_position = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Drafted tokens kept", "position"
        )
        self._drafted = self._counter(
            "copyahead:draft_tokens_by_source", "Drafted tokens", "source"
        )
        self._accepted = self._counter(
            "copyahead:accepted_tokens_by_source", "Drafted tokens kept", "source"
        )

    def _add(self, name: str, amount: float) -> None:
        self._counters[name].labels(self._model).inc(amount)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, ["model_name", *labels], registry=self._registry)

    def _gauge(self, name: str, about: str, *labels: str) -> Gauge:
        return Gauge(name, about, ["model_name", *labels], registry=self._registry)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(name, about, ["model_name"], registry=self._registry, buckets=buckets)

    def _watch(self, name: str, about: str, read: Callable[[], float]) -> None:
        self._gauge(name, about).labels(self._model).set_function(read)


_COUNTED = {
    "vllm:prompt_tokens": "Tokens of prompts",
    "vllm:generation_tokens": "Tokens written",
    "vllm:prefix_cache_queries": "Tokens of prompts that were looked for among kept prefixes",
    "vllm:prefix_cache_hits": "Tokens of prompts that were kept from an earlier request",
    "vllm:num_preemptions": "Times that a request gave its place up",
    "vllm:spec_decode_num_drafts": "Drafts verified",
    "vllm:spec_decode_num_draft_tokens": "Drafted tokens verified",
    "vllm:spec_decode_num_accepted_tokens": "Drafted tokens kept",
    "llamacpp:prompt_tokens": "Tokens of prompts that were computed",
    "llamacpp:prompt_seconds": "Seconds from admission to the first token",
    "llamacpp:tokens_predicted": "Tokens written",
    "llamacpp:tokens_predicted_seconds": "Seconds from the first token to the last",
    "copyahead:rounds": "Rounds: passes in which a request took part with a row of its own",
    "copyahead:kept_drafts": "Drafts of which at least one token was kept",
    "copyahead:draft_seconds": "Seconds spent on proposing",
    "copyahead:verify_seconds": "Seconds spent in target passes after the prompt",
    "copyahead:drafter_faults": "Rounds that ran plain because a drafter failed",
    "copyahead:retries": "Passes repeated without drafts because they failed",
}
