"""One engine of vLLM in a process of its own, timed: jobs in JSON lines in, answers out.

`copyahead vllm-check` starts one process a method. Run by hand:

    python -m copyahead.plugins.vllm.measure < job.json

It reads one job a line after the first, which loads the engine, so that methods can take turns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from copyahead.errors import MissingExtraError


class Load(msgspec.Struct):
    """The engine to load."""

    engine: dict[str, Any]
    """Arguments of vLLM's `LLM`, `speculative_config` among them."""
    environment: dict[str, str] = {}
    """Variables to set before vLLM is imported."""


class Job(msgspec.Struct):
    """Requests to run together."""

    prompts: list[list[int]] = []
    texts: list[str] = []
    """Prompts as text, in the place of token ids."""
    sampling: dict[str, Any] = {}
    """Arguments of vLLM's `SamplingParams`, the same for every request."""


class Answer(msgspec.Struct):
    """What came of a job."""

    seconds: float
    """From the first token to the last of all requests where there is one request, else of all."""
    tokens: list[list[int]]
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    copied: dict[str, list[int]] = {}
    """By source: tokens drafted and accepted, where copyahead drafts in this process."""


def run() -> None:
    """Serve jobs until the input ends. Answers are lines of JSON on standard output."""
    # vLLM's log goes to standard output, which is for answers here.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    lines = iter(sys.stdin)
    load = msgspec.json.decode(next(lines), type=Load)
    os.environ.update(load.environment)
    engine = _Engine(load.engine)
    _say(answers, {"ready": True})
    for line in lines:
        job = msgspec.json.decode(line, type=Job)
        _say(answers, msgspec.to_builtins(engine.run(job)))


def _say(answers: Any, document: Any) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


class _Engine:
    def __init__(self, arguments: Mapping[str, Any]) -> None:
        try:
            import vllm
        except ImportError:
            raise MissingExtraError("vllm", "vllm") from None
        self._vllm: Any = vllm
        self._llm: Any = vllm.LLM(disable_log_stats=False, **arguments)

    def run(self, job: Job) -> Answer:
        """All requests of the job together."""
        parameters = self._vllm.SamplingParams(**job.sampling)
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in job.prompts] or list(job.texts)
        before = self._counts()
        began = time.perf_counter()
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - began
        metrics = outputs[0].metrics if len(outputs) == 1 else None
        if metrics is not None and getattr(metrics, "last_token_ts", 0.0) > 0.0:
            seconds = metrics.last_token_ts - metrics.first_token_ts
        drafted, accepted = (now - then for now, then in zip(self._counts(), before, strict=True))
        return Answer(
            seconds=seconds,
            tokens=[list(output.outputs[0].token_ids) for output in outputs],
            num_draft_tokens=int(drafted),
            num_accepted_tokens=int(accepted),
            copied=self._copied(),
        )

    def _counts(self) -> tuple[float, float]:
        """vLLM's own counters of drafted and accepted tokens."""
        found = {metric.name: getattr(metric, "value", 0) for metric in self._llm.get_metrics()}
        return (
            found.get("vllm:spec_decode_num_draft_tokens", 0),
            found.get("vllm:spec_decode_num_accepted_tokens", 0),
        )

    def _copied(self) -> dict[str, list[int]]:
        """copyahead's own, by source, since the engine began."""
        from copyahead.plugins.vllm.counters import SOURCES
        from copyahead.plugins.vllm.proposer import LAST

        drafting = LAST[0] if LAST else None
        if drafting is None:
            return {}
        counts = drafting.rounds.counters.tolist()
        return {str(source): counts[number] for number, source in SOURCES.items()}


if __name__ == "__main__":
    run()
