"""copyahead beside its peers: the same tokens, the same rounds, the same machine, one run.

    python benchmarks/bench_peers.py [TRACE...] [--peer-python PATH] [--tokens N] [--cost ...]

Without a trace it makes one: edits of files of the standard library, written out whole.
Every drafter runs in a process of its own, driven by one loop (benchmarks/peers/worker.py). A
peer that is not installed is named and left out. Replay takes at most about `--tokens` written
tokens of each category, whole sessions, or those after token 200,000 of a single long one: the
slowest peer takes milliseconds a round. Prints a card, and one JSON document as its last line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peers.adapters import PEERS, RULES_ONLY
from peers.edits import write_edits

from copyahead.step_cost import StepCost
from copyahead.traces.corpus import END, START, Corpus, build_corpus
from copyahead.traces.formats.importers import read_traces
from copyahead.traces.tokenizers import find_tokenizer

WORKER = Path(__file__).parent / "peers" / "worker.py"
OWN = (
    "copyahead priced",
    "copyahead priced + store",
    "copyahead hysteresis",
    "copyahead window",
    "copyahead single",
    "copyahead adaptive_k",
)
COSTS = (0.01, 0.03, 0.1, 0.3)
AFTER = 200_000
LONG = 240_000


def chosen(corpus: Corpus, budget: int) -> list[int]:
    """Requests of sessions in a fixed random order; of a lone one, those after token 200,000."""
    rows: list[int] = []
    for category in range(len(corpus.categories)):
        sessions = corpus.sessions(category)
        if len(sessions) == 1:
            first, last = sessions[0]
            candidates = [r for r in range(first, last) if corpus.requests[r, START] >= AFTER]
            rows += within(corpus, candidates or list(range(first, last)), budget)
            continue
        left = budget
        for place in np.random.default_rng(0).permutation(len(sessions)):
            members = list(range(*sessions[place]))
            size = int((corpus.requests[members, END] - corpus.requests[members, START]).sum())
            if size <= left:
                left -= size
                rows += members
    return rows


def within(corpus: Corpus, rows: list[int], budget: int) -> list[int]:
    written = np.cumsum(corpus.requests[rows, END] - corpus.requests[rows, START])
    return rows[: int(np.searchsorted(written, budget)) + 1]


def save(corpus: Corpus, budget: int, path: Path) -> int:
    """The chosen requests, and one long stream for the times; returns the tokens written."""
    requests = corpus.requests[chosen(corpus, budget)]
    longest = corpus.requests[np.argmax(corpus.requests[:, END])]
    stream = corpus.tokens[longest[0] : longest[0] + longest[END]]
    np.savez(
        path,
        tokens=corpus.tokens,
        requests=requests,
        categories=np.array(corpus.categories),
        vocab_size=corpus.vocab_size,
        long=np.resize(stream, LONG),
    )
    return int((requests[:, END] - requests[:, START]).sum())


def work(python: str, name: str, corpus: Path, mode: str, cost: float | None) -> Any:
    """What the worker prints; None where the peer is not installed or fails."""
    command = [python, str(WORKER), name, str(corpus), mode]
    command += [] if cost is None else [str(cost)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        print(f"  {name}: left out ({reason[0]})", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def replay_rows(name: str, found: Any, costs: list[float]) -> list[dict[str, Any]]:
    rows = []
    for category, tally in found.items():
        drafted = np.array(tally["drafted"])
        rounds, proposed = int(drafted.sum()), int(drafted @ np.arange(len(drafted)))
        for cost in costs:
            time = float(drafted @ StepCost.linear(cost).curve(len(drafted))[1:])
            rows.append({
                "category": category, "drafter": name, "cost": cost,
                "speedup": round(tally["emitted"] / time, 4),
                "tokens_per_round": round(tally["emitted"] / rounds, 4),
                "drafted_per_round": round(proposed / rounds, 4),
                "draft_us": round(tally["draft_us"], 2),
            })  # fmt: skip
    return rows


def replay_all(names: list[str], options: Any, corpus: Path) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        python = sys.executable if name in OWN else options.peer_python
        if name.startswith("copyahead priced"):
            for cost in options.cost:
                found = work(python, name, corpus, "replay", cost)
                rows += replay_rows(name, found, [cost]) if found else []
        else:
            found = work(python, name, corpus, "replay", None)
            rows += replay_rows(name, found, options.cost) if found else []
        show_line(name, rows, options.cost[0])
    return rows


def show_line(name: str, rows: list[dict[str, Any]], cost: float) -> None:
    mine = [row for row in rows if row["drafter"] == name and row["cost"] == cost]
    shown = ", ".join(f"{row['category']} {row['speedup']:.2f}" for row in mine)
    print(f"  {name} at {cost:g} a row: {shown}", flush=True)


def show_replay(rows: list[dict[str, Any]], costs: list[float]) -> None:
    for category in dict.fromkeys(row["category"] for row in rows):
        print(f"\n{category}: speed-up at a cost of {', '.join(map(str, costs))} a row")
        for name in dict.fromkeys(row["drafter"] for row in rows):
            mine = [r for r in rows if r["category"] == category and r["drafter"] == name]
            shown = "  ".join(f"{row['speedup']:5.2f}" for row in mine)
            middle = mine[min(1, len(mine) - 1)]
            time = "" if name in RULES_ONLY else f"  {middle['draft_us']:8.1f} us"
            print(f"  {name:24} {shown}  {middle['tokens_per_round']:5.2f} tok/round{time}")


def show_speed(speeds: dict[str, Any]) -> None:
    print("\n220,000-token prompt: index ms, attach ms, propose p50 / p99 us, bytes a token")
    for name, row in speeds.items():
        times = f"{row['propose_us_p50']:8.1f} / {row['propose_us_p99']:8.1f}"
        shown = f"{row['index_ms']:8.2f} {row['attach_ms']:8.2f} {times}"
        print(f"  {name:24} {shown} {row['bytes_a_token']:7.0f}")
    print("\nworst propose of adversarial texts, us")
    for name, row in speeds.items():
        shown = "  ".join(f"{text} {time:.0f}" for text, time in row["worst_us"].items())
        print(f"  {name:24} {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description="copyahead beside its peers")
    parser.add_argument("traces", nargs="*")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--tokens", type=int, default=40_000)
    parser.add_argument("--cost", type=float, nargs="+", default=list(COSTS))
    parser.add_argument("--drafter", nargs="+", default=[*OWN, *PEERS])
    parser.add_argument("--skip", choices=["replay", "speed"], nargs="*", default=[])
    options = parser.parse_args()
    name, tokenizer = find_tokenizer(None)
    rows: list[dict[str, Any]] = []
    speeds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        traces = options.traces or [str(write_edits(Path(folder)))]
        corpus = build_corpus(read_traces(traces), tokenizer)
        path = Path(folder) / "corpus.npz"
        print(f"{save(corpus, options.tokens, path)} written tokens, tokenised with {name}")
        if "replay" not in options.skip:
            rows = replay_all(options.drafter, options, path)
            show_replay(rows, options.cost)
        if "speed" not in options.skip:
            for drafter in (d for d in options.drafter if d not in RULES_ONLY):
                python = sys.executable if drafter in OWN else options.peer_python
                found = work(python, drafter, path, "speed", None)
                if found:
                    speeds[drafter] = found
            show_speed(speeds)
    print(json.dumps({"tokenizer": name, "results": rows, "speed": speeds}))


if __name__ == "__main__":
    main()
