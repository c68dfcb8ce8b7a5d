"""What an answer cost and how it came about: `usage` and `timings` of a response."""

from __future__ import annotations

from typing import Any

from copyahead.stats import CopyStats
from copyahead.types import Source


def usage(stats: CopyStats, num_reasoning_tokens: int = 0) -> dict[str, Any]:
    """OpenAI's `usage`.

    Prediction tokens: those that were drafted from the request's `prediction`, and accepted or
    not. What was never drafted counts as neither.
    """
    predicted = stats.by_source.get(Source.PREDICTION)
    drafted = predicted.num_draft_tokens if predicted else 0
    accepted = predicted.num_accepted_tokens if predicted else 0
    return {
        "prompt_tokens": stats.num_prompt_tokens,
        "completion_tokens": stats.num_output_tokens,
        "total_tokens": stats.num_prompt_tokens + stats.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": stats.num_cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": min(num_reasoning_tokens, stats.num_output_tokens),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def timings(stats: CopyStats) -> dict[str, Any]:
    """How long it took and what drafting did. The first ten names are those of llama.cpp's server.

    Times are in milliseconds; with several answers they are added up.
    """
    num_read = stats.num_prompt_tokens - stats.num_cached_tokens
    prompt_ms, predicted_ms = 1000 * stats.prefill_seconds, 1000 * stats.decode_seconds
    return {
        "cache_n": stats.num_cached_tokens,
        "prompt_n": num_read,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_second": _rate(num_read, stats.prefill_seconds),
        "predicted_n": stats.num_output_tokens,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_second": round(stats.tokens_per_second, 3),
        "draft_n": stats.num_draft_tokens,
        "draft_n_accepted": stats.num_accepted_tokens,
        "rounds": stats.rounds,
        "tokens_per_round": round(stats.tokens_per_round, 4),
        "draft_ms": round(1000 * stats.draft_seconds, 3),
        "verify_ms": round(1000 * stats.verify_seconds, 3),
        "longest_match": stats.longest_match,
        "by_source": {
            str(source): {"drafted": count.num_draft_tokens, "accepted": count.num_accepted_tokens}
            for source, count in sorted(stats.by_source.items())
        },
        "draft_model": {
            "passes": stats.num_model_passes,
            "skips": stats.num_model_skips,
            "ms": round(1000 * stats.model_seconds, 3),
            "compared": stats.num_compared,
            "agreed": stats.num_agreed,
        },
    }


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0
