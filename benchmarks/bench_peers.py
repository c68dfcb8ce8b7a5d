"""copyahead beside its peers: the same tokens, the same rounds, the same machine, one run.

    python benchmarks/bench_peers.py [TRACE...] [--fresh] [--peer-python PATH] [--tokens N]

Without a trace it makes one: edits of files of the standard library, written out whole.
Every drafter runs in a process of its own, driven by one loop (benchmarks/peers/worker.py). A
peer that is not installed is named and left out.

Peers are tuned: their settings (benchmarks/peers/sweeps.py) are chosen for each category and cost
on the first half of its sessions, or of the text where there is one session, and scored on the
second half. So is copyahead, which has nothing to choose. Where a category has fewer than four
sessions peers get the best of their settings in hindsight. `--tokens`: most written tokens of a
category that are scored, in whole sessions; `--tune-tokens`: that are chosen on. `--fresh`: first
requests of sessions only, with a new drafter for each. Prints a card, and one JSON document as its
last line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from peers.adapters import OWN as PREFIX
from peers.adapters import PEERS, STORE
from peers.edits import write_edits
from peers.sweeps import SWEEPS
from peers.tuning import Score, choose, halves, save, score

from copyahead.traces.corpus import Corpus, build_corpus
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
PRICED, SHARED = OWN[:2]
COSTS = (0.01, 0.03, 0.1, 0.3)
DEFAULT = ", default"
"""Ends the name of a peer's row at its defaults."""
PARTLY = ", p 0.1"
"""Ends the name of suffix trees whose least probability is the default; the factor is chosen."""


def work(python: str, job: dict[str, Any], cache: Path | None = None) -> Any:
    """What the worker prints; None where the peer is not installed or fails."""
    kept = None if cache is None else cache / f"{digest(job)}.json"
    if kept is not None and kept.exists():
        return json.loads(kept.read_text())
    command = [python, str(WORKER), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        print(f"  {job['name']}: left out ({reason[0]})", flush=True)
        return None
    printed = done.stdout.splitlines()[-1]
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(printed)
    return json.loads(printed)


def digest(job: dict[str, Any]) -> str:
    """Names a job by what it reads and by the code that does it."""
    made = hashlib.blake2b(json.dumps({**job, "corpus": ""}).encode(), digest_size=12)
    for file in (Path(job["corpus"]), *sorted(WORKER.parent.glob("*.py"))):
        if file.name not in ("tuning.py", "edits.py"):
            made.update(file.read_bytes())
    return made.hexdigest()


def row_of(category: str, name: str, cost: float, found: Score) -> dict[str, Any]:
    return {"category": category, "drafter": name, "cost": cost, **found._asdict()}


def own_rows(name: str, options: Any, scored: Path) -> list[dict[str, Any]]:
    """A policy of this project; `priced` drafts by the cost, so it is run at each."""
    rows = []
    job = {"name": name, "corpus": str(scored), "mode": mode_of(options)}
    priced = name.startswith(f"{PREFIX}priced")
    found = None if priced else work(sys.executable, job)
    for cost in options.cost:
        if priced:
            asked = {"cost": cost, "prior": options.prior and str(options.prior)}
            found = work(sys.executable, {**job, **asked})
        for category, tallies in (found or {}).items():
            rows.append(row_of(category, name, cost, score(tallies[""], cost)))
    return rows


def peer_rows(name: str, options: Any, tuning: Path, scored: Path) -> list[dict[str, Any]]:
    """A peer with the settings that the first half chooses, and at its defaults."""
    jobs = [{"name": name, "corpus": str(p), "mode": mode_of(options)} for p in (tuning, scored)]
    tuned, found = (work(options.peer_python, job, options.cache) for job in jobs)
    if tuned is None or found is None:
        return []
    rows = []
    for cost in options.cost:
        for category, settings in found.items():
            scores = {s: score(tally, cost) for s, tally in settings.items()}
            best = max(scores, key=lambda s, of=scores: of[s].speedup)  # type: ignore[misc]
            hindsight = {"best_setting": best, "best_speedup": scores[best].speedup}
            for row, chosen in chosen_rows(name, tuned.get(category, settings), cost).items():
                made = row_of(category, row, cost, scores[chosen])
                rows.append({**made, "setting": chosen, **hindsight})
    return rows


def chosen_rows(name: str, tuned: dict[str, Any], cost: float) -> dict[str, str]:
    """A peer's rows in the table, and the setting of each."""
    names = SWEEPS[name].names
    found = {name: choose(tuned, cost), name + DEFAULT: names[0]}
    partly = {setting: tuned[setting] for setting in names if setting.endswith(PARTLY)}
    if partly:
        found[name + PARTLY] = choose(partly, cost)
    return found


def mode_of(options: Any) -> str:
    return "fresh" if options.fresh else "replay"


def replay_all(names: list[str], options: Any, tuning: Path, scored: Path) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        if name in SWEEPS:
            mine = peer_rows(name, options, tuning, scored)
        else:
            mine = own_rows(name, options, scored)
        show_line(name, mine, options.cost[0])
        rows += mine
    return rows


def show_line(name: str, rows: list[dict[str, Any]], cost: float) -> None:
    mine = [row for row in rows if row["drafter"] == name and row["cost"] == cost]
    shown = ", ".join(f"{row['category']} {row['speedup']:.2f}" for row in mine)
    print(f"  {name} at {cost:g} a row: {shown}", flush=True)


def show_replay(rows: list[dict[str, Any]], costs: list[float]) -> None:
    """A table a category: drafters, and by how much `priced` is ahead of the best peer."""
    for category in dict.fromkeys(row["category"] for row in rows):
        print(f"\n{category}: speed-up at a cost of {', '.join(map(str, costs))} a row")
        for name in dict.fromkeys(row["drafter"] for row in rows):
            mine = [r for r in rows if r["category"] == category and r["drafter"] == name]
            shown = "  ".join(f"{row['speedup']:5.2f}" for row in mine)
            chosen = "; ".join(dict.fromkeys(row.get("setting", "") for row in mine))
            print(f"  {name:29} {shown}   {chosen}")
        for own, store in ((PRICED, False), (SHARED, True)):
            shown = "  ".join(shown_margin(rows, category, cost, own, store) for cost in costs)
            print(f"  {own.removeprefix(PREFIX) + ' over the best peer':29} {shown}")


def best_peer(rows: list[dict[str, Any]], category: str, cost: float, *, store: bool) -> Any:
    """The row of the fastest peer, tuned or at its defaults; None where there is none."""
    of_peers = [
        row
        for row in rows
        if (row["category"], row["cost"]) == (category, cost)
        and not row["drafter"].startswith(PREFIX)
        and (store or STORE not in row["drafter"])
    ]
    return max(of_peers, key=lambda row: row["speedup"], default=None)


def shown_margin(
    rows: list[dict[str, Any]], category: str, cost: float, own: str, store: bool
) -> str:
    mine = [r for r in rows if (r["category"], r["cost"], r["drafter"]) == (category, cost, own)]
    best = best_peer(rows, category, cost, store=store)
    return f"{mine[0]['speedup'] / best['speedup']:5.3f}" if mine and best else "    -"


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
    parser.add_argument("--tokens", type=int, default=130_000)
    parser.add_argument("--tune-tokens", type=int, default=40_000)
    parser.add_argument("--cost", type=float, nargs="+", default=list(COSTS))
    parser.add_argument("--drafter", nargs="+", default=[*OWN, *SWEEPS])
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--prior", type=Path, help="tables that priced starts from")
    parser.add_argument("--cache", type=Path, help="folder that keeps what peers drafted")
    parser.add_argument("--skip", choices=["replay", "speed"], nargs="*", default=[])
    options = parser.parse_args()
    name, tokenizer = find_tokenizer(None)
    rows: list[dict[str, Any]] = []
    speeds: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        traces = options.traces or [str(write_edits(Path(folder)))]
        corpus = build_corpus(
            read_traces(traces, chat="chats" if options.fresh else "turns"), tokenizer
        )
        tuning, scored = save_halves(corpus, options, Path(folder))
        print(f"tokenised with {name}")
        if "replay" not in options.skip:
            rows = replay_all(options.drafter, options, tuning, scored)
            show_replay(rows, options.cost)
        if "speed" not in options.skip and not options.fresh:
            for drafter in (PRICED, *PEERS):
                python = sys.executable if drafter == PRICED else options.peer_python
                job = {"name": drafter, "corpus": str(scored), "mode": "speed"}
                found = work(python, job)
                if found:
                    speeds[drafter] = found
            show_speed(speeds)
    print(json.dumps({"tokenizer": name, "results": rows, "speed": speeds}))


def save_halves(corpus: Corpus, options: Any, folder: Path) -> tuple[Path, Path]:
    """The files of what settings are chosen on, and of what is scored."""
    rows = halves(corpus, tuning=options.tune_tokens, scored=options.tokens, fresh=options.fresh)
    tuning, scored = folder / "tuning.npz", folder / "scored.npz"
    chosen_on = save(corpus, rows.tuning, tuning)
    print(f"{chosen_on} written tokens to choose on, {save(corpus, rows.scored, scored)} scored")
    return tuning, scored


if __name__ == "__main__":
    main()
