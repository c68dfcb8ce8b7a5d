"""What the engine costs beside the model, and whether it ages.

`python benchmarks/bench_engine.py` prints a card, and one JSON document as its last line.

    overhead   time of a step outside the target pass, on the real model, with copying on
    ageing     5,000 short requests through a toy model: the first 500 against the last 500
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from copyahead.backends.probe.search import load
from copyahead.config import LookupOptions, ModelOptions
from copyahead.contracts import Backend, Logits, Part
from copyahead.engine import Request
from copyahead.loading import make_engine
from copyahead.testing import FakeBackend, ToyLM


class Timed:
    """A backend that adds up the time of its passes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, parts: Sequence[Part]) -> list[Logits]:
        """The backend's own pass, timed."""
        began = time.perf_counter()
        logits = self._backend.forward(parts)
        self.seconds += time.perf_counter() - began
        return logits


def overhead(model: Path | None, num_requests: int, policy: str) -> dict[str, float]:
    """Milliseconds a step outside the pass, once all prompts are in."""
    options = ModelOptions(ctx=2048, parallel=num_requests, threads=2)
    timed = Timed(load(model, options))
    with make_engine(timed, lookup=LookupOptions(policy=policy)) as engine:
        text = Path(json.__file__).read_text(encoding="utf-8")[:1200]
        tokens = engine.backend.tokenizer.encode(f"{text}\n\nThe same again:\n\n{text[:200]}")
        request = Request(prompt=tokens, max_tokens=900, ignore_eos=True)
        handles = [engine.submit(request, lambda _chunk: None)]
        while handles[0].answers[0].num_output_tokens == 0:
            engine.step()
        # The others fork the prompt that the first has read.
        handles += [engine.submit(request, lambda _chunk: None) for _ in range(num_requests - 1)]
        while any(handle.answers[0].num_output_tokens == 0 for handle in handles):
            engine.step()
        steps: list[float] = []
        while len(steps) < 40 and not any(handle.done for handle in handles):
            began, before = time.perf_counter(), timed.seconds
            engine.step()
            steps.append((time.perf_counter() - began) - (timed.seconds - before))
        for handle in handles:
            engine.cancel(handle)
    return {
        "requests": num_requests,
        "steps": len(steps),
        "median_ms": 1e3 * statistics.median(steps),
        "max_ms": 1e3 * max(steps),
    }


def ageing(num_requests: int, policy: str) -> dict[str, Any]:
    """Step time and resident memory over many short requests: the first tenth against the last."""
    backend = FakeBackend(ToyLM(seed=1), num_slots=4, context_size=256)
    engine = make_engine(backend, lookup=LookupOptions(policy=policy))
    step_us = np.zeros(num_requests)
    memory = np.zeros(num_requests)
    for number in range(400):
        engine.complete(_short_request(number))  # fills the toy's own table
    for number in range(num_requests):
        began = time.perf_counter()
        result = engine.complete(_short_request(number))
        step_us[number] = 1e6 * (time.perf_counter() - began) / result.stats.rounds
        memory[number] = _resident_bytes()
    engine.close()
    part = num_requests // 10
    ends = (slice(0, part), slice(-part, None))
    return {
        "requests": num_requests,
        "step_us": [float(np.median(step_us[end])) for end in ends],
        "memory_kb": [float(np.median(memory[end])) / 1e3 for end in ends],
    }


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _short_request(number: int) -> Request:
    prompt = [1 + (number * 7 + i * i) % 18 for i in range(20 + number % 30)]
    return Request(prompt=prompt, max_tokens=20, ignore_eos=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--policy", default=LookupOptions().policy)
    arguments = parser.parse_args()
    ages = ageing(5000, arguments.policy)
    print("ageing, 5,000 requests, first and last 500:")
    print(f"  step   {ages['step_us'][0]:8.1f} µs  {ages['step_us'][1]:8.1f} µs")
    print(f"  memory {ages['memory_kb'][0]:8.0f} kB  {ages['memory_kb'][1]:8.0f} kB")
    rows = [overhead(arguments.model, count, arguments.policy) for count in (1, 16)]
    print("time of a step outside the target pass:")
    for row in rows:
        print(f"  {row['requests']:3} requests: median {row['median_ms']:.3f} ms")
    print(json.dumps({"ageing": ages, "overhead": rows}))


if __name__ == "__main__":
    main()
