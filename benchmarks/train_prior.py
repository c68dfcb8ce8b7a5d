"""Trains the prior of `priced` on the first 50 runs of `agent-dev.jsonl.gz`, and judges it.

    python benchmarks/train_prior.py TRACES [--out FILE] [--cache FOLDER]

Runs 1 to 50 of the file are trained on, 51 to 99 are what `bench_policy.py` calls `agent`, and
what every figure in docs/policies.md is measured on. Tokenised with the demo model's vocabulary.
Prints both halves' speed-ups with the shipped prior and with the new one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import bench_policy
from bench_policy import STAIR, Turn

from copyahead.history import HistoryPool
from copyahead.policies.priced import PricedDrafter
from copyahead.policies.prior import model_of, shipped
from copyahead.policies.training import Example, Model, document_of, train
from copyahead.step_cost import StepCost

NOTE = (
    "benchmarks/train_prior.py on runs 1 to 50 of agent-dev.jsonl.gz, in the tokens of "
    "SmolLM2-135M-Instruct"
)
COSTS = {"0.03": StepCost.linear(0.03), "0.3": StepCost.linear(0.3), "stair": StepCost(STAIR)}


def examples(turns: list[Turn]) -> Iterator[Example]:
    """What each request read, and what it wrote."""
    for turn in turns:
        yield turn.stream[: turn.start], turn.stream[turn.start : turn.end]


def speedups(turns: list[Turn], size: int, model: Model) -> str:
    """Tokens a step at every cost."""
    longest = max(turn.end for turn in turns)
    shown = []
    for name, cost in COSTS.items():
        drafter = PricedDrafter(HistoryPool(1, longest, size), cost, prior=model)
        score = bench_policy.replay_with(drafter, turns, cost)
        shown.append(f"{name} {score.emitted / score.cost:.4f}")
    return "  ".join(shown)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--out", type=Path, default=Path("prior.json"))
    parser.add_argument("--cache", type=Path, help="folder that keeps the tokenised traces")
    options = parser.parse_args()
    halves = dict(bench_policy.categories(options.traces, ["agent-train", "agent"], options.cache))
    turns, size = halves["agent-train"]
    longest = max(turn.end for turn in turns)
    model = train(lambda: examples(turns), longest, size, on_pass=print)
    document = document_of(model, NOTE)
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    options.out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for name, (judged, _) in halves.items():
        for label, prior in (("shipped", shipped()), ("new", model_of(document))):
            print(f"{name:12} {label:8} {speedups(judged, size, prior)}", flush=True)


if __name__ == "__main__":
    main()
