"""Trains the prior of `priced` on some recorded runs, and judges it on others.

    python benchmarks/train_prior.py TRAIN JUDGE [--out FILE]

Both are traces that `copyahead replay` reads; `agent-dev.jsonl.gz@:50` and `agent-dev.jsonl.gz@50:`
are the halves that every figure in docs/policies.md is about. Tokenised with the demo model's
vocabulary. Prints both halves' speed-ups with the shipped prior and with the new one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from copyahead.drafters.priced import PricedDrafter
from copyahead.drafters.prior import model_of, shipped
from copyahead.history.pool import HistoryPool
from copyahead.step_cost import StepCost
from copyahead.traces.corpus import BASE, END, START, Corpus, build_corpus
from copyahead.traces.costs import parse_costs
from copyahead.traces.formats.importers import read_traces
from copyahead.traces.replay import replay_sessions
from copyahead.traces.tokenizers import find_tokenizer
from copyahead.training.train import Example, Model, document_of, train

COSTS = ("0.03", "0.3", "stair")


def examples(corpus: Corpus) -> Iterator[Example]:
    """What each request read, and what it wrote."""
    for request in corpus.requests:
        stream = corpus.tokens[request[BASE] :]
        yield stream[: request[START]], stream[request[START] : request[END]]


def drafter_of(cost: StepCost, vocab_size: int, model: Model, capacity: int) -> PricedDrafter:
    return PricedDrafter(HistoryPool(1, capacity, vocab_size), cost, prior=model)


def speedups(corpus: Corpus, model: Model) -> str:
    """Tokens a step at every cost."""
    shown = []
    sessions = [
        span for number in range(len(corpus.categories)) for span in corpus.sessions(number)
    ]
    for cost in parse_costs(COSTS):
        make = partial(drafter_of, cost.curve, corpus.vocab_size, model)
        tally = replay_sessions(corpus, sessions, make).both()
        shown.append(f"{cost.name} {tally.speedup(cost.curve):.4f}")
    return "  ".join(shown)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("train")
    parser.add_argument("judge")
    parser.add_argument("--out", type=Path, default=Path("prior.json"))
    options = parser.parse_args()
    name, tokenizer = find_tokenizer(None)
    halves = {
        path: build_corpus(read_traces([path]), tokenizer)
        for path in (options.train, options.judge)
    }
    corpus = halves[options.train]
    longest = int(corpus.requests[:, END].max())
    model = train(lambda: examples(corpus), longest, corpus.vocab_size, on_pass=print)
    note = f"benchmarks/train_prior.py on {Path(options.train).name}, in the tokens of {name}"
    document = document_of(model, note)
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    options.out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    for path, judged in halves.items():
        for label, prior in (("shipped", shipped()), ("new", model_of(document))):
            print(f"{Path(path).name:28} {label:8} {speedups(judged, prior)}", flush=True)


if __name__ == "__main__":
    main()
