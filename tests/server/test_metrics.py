"""The page that `GET /metrics` answers: what dashboards find by name stays where it is."""

from __future__ import annotations

from collections.abc import Sequence

from copyahead.config import Limits
from copyahead.server.generation import Outcome
from copyahead.server.http.limits import Queue
from copyahead.server.metrics import Metrics
from copyahead.stats import CopyStats, SourceCount
from copyahead.types import Exactness, Source

PAGE = [
    ("gauge", "vllm:num_requests_running", "Requests that hold a slot"),
    ("gauge", "vllm:num_requests_waiting", "Requests that wait for one"),
    ("gauge", "llamacpp:requests_processing", "Requests that hold a slot"),
    ("gauge", "llamacpp:requests_deferred", "Requests that wait for one"),
    ("counter", "vllm:request_success_total", "Answers that ended"),
    ("counter", "copyahead:requests_refused_total", "Requests that ended with an error object"),
    ("histogram", "vllm:time_to_first_token_seconds", "From arrival to the first token"),
    ("histogram", "vllm:inter_token_latency_seconds", "Between the rounds of an answer"),
    ("histogram", "vllm:e2e_request_latency_seconds", "From arrival to end"),
    ("histogram", "vllm:request_queue_time_seconds", "Wait for a slot"),
    ("counter", "vllm:prompt_tokens_total", "Tokens of prompts"),
    ("counter", "vllm:generation_tokens_total", "Tokens written"),
    (
        "counter",
        "vllm:prefix_cache_queries_total",
        "Tokens of prompts that were looked for among kept prefixes",
    ),
    (
        "counter",
        "vllm:prefix_cache_hits_total",
        "Tokens of prompts that were kept from an earlier request",
    ),
    ("counter", "vllm:num_preemptions_total", "Times that a request gave its place up"),
    ("counter", "vllm:spec_decode_num_drafts_total", "Drafts verified"),
    ("counter", "vllm:spec_decode_num_draft_tokens_total", "Drafted tokens verified"),
    ("counter", "vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens kept"),
    ("counter", "llamacpp:prompt_tokens_total", "Tokens of prompts that were computed"),
    ("counter", "llamacpp:prompt_seconds_total", "Seconds from admission to the first token"),
    ("counter", "llamacpp:tokens_predicted_total", "Tokens written"),
    (
        "counter",
        "llamacpp:tokens_predicted_seconds_total",
        "Seconds from the first token to the last",
    ),
    (
        "counter",
        "copyahead:rounds_total",
        "Rounds: passes in which a request took part with a row of its own",
    ),
    ("counter", "copyahead:kept_drafts_total", "Drafts of which at least one token was kept"),
    ("counter", "copyahead:draft_seconds_total", "Seconds spent on proposing"),
    (
        "counter",
        "copyahead:verify_seconds_total",
        "Seconds spent in target passes after the prompt",
    ),
    ("counter", "copyahead:drafter_faults_total", "Rounds that ran plain because a drafter failed"),
    ("counter", "copyahead:retries_total", "Passes repeated without drafts because they failed"),
    (
        "counter",
        "copyahead:draft_model_passes_total",
        "Passes of the draft model, once for each request that took part",
    ),
    (
        "counter",
        "copyahead:draft_model_skips_total",
        "Rounds in which the draft model was not asked",
    ),
    (
        "counter",
        "copyahead:draft_model_seconds_total",
        "Seconds spent in the draft model's passes",
    ),
    (
        "counter",
        "copyahead:drafts_compared_total",
        "Rounds with both a copy and a draft of the draft model",
    ),
    (
        "counter",
        "copyahead:drafts_agreed_total",
        "Those of them in which both began with the same token",
    ),
    ("counter", "vllm:spec_decode_num_accepted_tokens_per_pos_total", "Drafted tokens kept"),
    ("counter", "copyahead:draft_tokens_by_source_total", "Drafted tokens"),
    ("counter", "copyahead:accepted_tokens_by_source_total", "Drafted tokens kept"),
    ("gauge", "vllm:kv_cache_usage_perc", "Share of the KV cells that hold something"),
    ("gauge", "llamacpp:kv_cache_usage_ratio", "Share of the KV cells that hold something"),
    ("gauge", "copyahead:requests_held", "Requests in the engine"),
    ("gauge", "copyahead:slots_held", "Slots that requests hold"),
    ("gauge", "copyahead:cells_held", "Tokens in the slots that requests hold"),
    ("gauge", "copyahead:history_rows_held", "Rows of history that requests hold"),
    ("gauge", "process_resident_memory_bytes", "Memory of the server; 0: unknown"),
    ("gauge", "copyahead:exact_rows", "Rows of a pass proven exact"),
]
"""Type, name and help of each metric, in the order of the page."""

HELD = {"requests": 4, "slots": 3, "cells": 200, "history_rows": 2}

STATS = CopyStats(
    rounds=100,
    plain_rounds=20,
    num_draft_tokens=300,
    num_accepted_tokens=200,
    kept_drafts=70,
    drafter_faults=2,
    retries=3,
    preemptions=4,
    num_prompt_tokens=1000,
    num_cached_tokens=600,
    num_output_tokens=290,
    prefill_seconds=1.5,
    decode_seconds=2.5,
    draft_seconds=0.25,
    verify_seconds=2.25,
    num_model_passes=40,
    num_model_skips=30,
    model_seconds=0.5,
    num_compared=9,
    num_agreed=7,
    by_source={Source.PROMPT: SourceCount(180, 120), Source.OUTPUT: SourceCount(120, 80)},
    accepted_per_position=[70, 60, 50],
)

TOTALS = {
    "vllm:prompt_tokens": 1000,
    "vllm:generation_tokens": 290,
    "vllm:prefix_cache_queries": 1000,
    "vllm:prefix_cache_hits": 600,
    "vllm:num_preemptions": 4,
    "vllm:spec_decode_num_drafts": 80,
    "vllm:spec_decode_num_draft_tokens": 300,
    "vllm:spec_decode_num_accepted_tokens": 200,
    "llamacpp:prompt_tokens": 400,
    "llamacpp:prompt_seconds": 1.5,
    "llamacpp:tokens_predicted": 290,
    "llamacpp:tokens_predicted_seconds": 2.5,
    "copyahead:rounds": 100,
    "copyahead:kept_drafts": 70,
    "copyahead:draft_seconds": 0.25,
    "copyahead:verify_seconds": 2.25,
    "copyahead:drafter_faults": 2,
    "copyahead:retries": 3,
    "copyahead:draft_model_passes": 40,
    "copyahead:draft_model_skips": 30,
    "copyahead:draft_model_seconds": 0.5,
    "copyahead:drafts_compared": 9,
    "copyahead:drafts_agreed": 7,
}
SHARES = {
    ("vllm:spec_decode_num_accepted_tokens_per_pos", "position"): {"0": 70, "1": 60, "2": 50},
    ("copyahead:draft_tokens_by_source", "source"): {"output": 120, "prompt": 180},
    ("copyahead:accepted_tokens_by_source", "source"): {"output": 80, "prompt": 120},
    ("vllm:request_success", "finished_reason"): {"length": 1, "stop": 2},
    ("copyahead:requests_refused", "code"): {"invalid_value": 1},
}
TIMES = {
    "vllm:time_to_first_token_seconds": (1, 0.5),
    "vllm:inter_token_latency_seconds": (2, 0.75),
    "vllm:e2e_request_latency_seconds": (1, 4.0),
    "vllm:request_queue_time_seconds": (1, 0.125),
}


def metrics_of(queue: Queue) -> Metrics:
    exactness = Exactness(level="exact", rows=64, max_abs_diff=0.0)
    return Metrics("m", queue, exactness, lambda: 0.25, lambda: HELD)


def outcome(*, reasons: Sequence[str], first_token: float | None, gaps: Sequence[float]) -> Outcome:
    return Outcome(
        id="chatcmpl-1",
        route="chat",
        tenant="",
        stats=STATS,
        reasons=list(reasons),
        queue_seconds=0.125,
        first_token_seconds=first_token,
        total_seconds=4.0,
        gaps=list(gaps),
        written=[],
    )


def samples(metrics: Metrics) -> dict[str, float]:
    """The page's values, by name and labels."""
    lines = metrics.page().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.replace('model_name="m"', "").replace("{}", ""): float(v) for name, v in pairs}


def test_names_types_and_help_are_what_they_were() -> None:
    lines = metrics_of(Queue(4, Limits())).page().decode().splitlines()
    about = [line.split(" ", 3)[2:] for line in lines if line.startswith("# HELP")]
    kinds = [line.split(" ", 3)[2:] for line in lines if line.startswith("# TYPE")]
    assert [name for name, _ in about] == [name for name, _ in kinds]
    page = [(kind, name, help_) for (name, help_), (_, kind) in zip(about, kinds, strict=True)]
    assert page == PAGE


def test_a_request_adds_its_counters_where_they_belong() -> None:
    metrics = metrics_of(Queue(4, Limits()))
    metrics.refuse("invalid_value")
    metrics.record(outcome(reasons=("stop", "stop", "length"), first_token=0.5, gaps=(0.25, 0.5)))
    got = samples(metrics)
    assert {name: got[f"{name}_total"] for name in TOTALS} == TOTALS
    for (name, label), shares in SHARES.items():
        for value, count in shares.items():
            (key,) = (k for k in got if k.startswith(name) and f'{label}="{value}"' in k)
            assert got[key] == count, key
    for name, (count, total) in TIMES.items():
        assert (got[f"{name}_count"], got[f"{name}_sum"]) == (count, total), name


def test_a_request_without_a_token_has_no_time_of_its_first() -> None:
    metrics = metrics_of(Queue(4, Limits()))
    metrics.record(outcome(reasons=("refused",), first_token=None, gaps=()))
    got = samples(metrics)
    assert "vllm:time_to_first_token_seconds_count" not in got
    assert got["vllm:e2e_request_latency_seconds_count"] == 1


def test_gauges_are_read_when_the_page_is_asked_for() -> None:
    queue = Queue(4, Limits())
    metrics = metrics_of(queue)
    for _ in range(3):
        queue.enter(1)
    queue.num_running = 1
    got = samples(metrics)
    for running, waiting in (
        ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    ):
        assert (got[running], got[waiting]) == (1, 2)
    assert got["vllm:kv_cache_usage_perc"] == got["llamacpp:kv_cache_usage_ratio"] == 0.25
    assert got['copyahead:exact_rows{level="exact",}'] == 64
