"""What each part of `priced` adds: replay with one part taken out at a time.

    python benchmarks/bench_ablations.py TRACE... [--only NAME...] [--cost ...] [--after N] [--demo]

Every ablation is a change of a few lines, made in a copy of the package, and is refused if those
lines are no longer there. The copies compile their kernels anew, about a minute each. `--demo`
adds the demo model's own answers to the workloads of `copyahead compare`, at its measured step
cost: the lowest share of the best preset's speed-up over the workloads. Prints a table, and one
JSON document as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import copyahead

PACKAGE = Path(copyahead.__file__).parent
PRICED, VOTING = "kernels/priced.py", "kernels/voting.py"
CANDIDATES = "kernels/candidates.py"
PRICING = "kernels/pricing.py"
POLICY = "drafters/priced.py"
PRIOR = "drafters/prior.py"
PRESETS = ("hysteresis", "window", "single", "adaptive_k")

Change = tuple[str, str, str]
"""A file of the package, lines of it, and what stands there instead."""

ONE_PLACE = """        for c in range(voters):
            if candidates[SOURCE, c] == source:
                for column in range(len(candidates)):
                    candidates[column, 0] = candidates[column, c]
        voters = keep_agreeing(view, candidates, 1, token)
"""

ABLATIONS: dict[str, tuple[Change, ...]] = {
    "all of it": (),
    "online learning off": ((PRICED, "learn(node, scores[k], emitted[k], learned)", "pass"),),
    "token statistics off": ((VOTING, "BIAS] += error * step", "BIAS] += 0.0 * error * step"),),
    "1-token key off": (
        (
            CANDIDATES,
            "    for chain in range(NUM_CHAINS):\n        count, rank",
            "    for chain in range(2):\n        count, rank",
        ),
    ),
    "fitted prior replaced by a plain formula": (
        (
            PRIOR,
            "    model = model_of(json.loads(text))\n",
            "    from copyahead.training.train import plain_model\n    model = plain_model()\n",
        ),
    ),
    "choice among 4 tokens off": (
        (VOTING, "        if chance > best:", "        if scored == 0:"),
    ),
    "resume after a break off": (
        (
            CANDIDATES,
            "    older, older_gap = ",
            "    if gap > 0:\n        return count\n    older, older_gap = ",
        ),
    ),
    "echo off": ((CANDIDATES, "    if match >= _NO_ECHO_FROM:", "    if match >= 0:"),),
    "live set off (one place is followed)": (
        (PRICED, "    SCOPE,\n    TENANT,", "    SCOPE,\n    SOURCE,\n    TENANT,"),
        (
            PRICED,
            "        voters = keep_agreeing(view, candidates, voters, token)\n",
            ONE_PLACE,
        ),
    ),
    "shadow feedback off": (
        (PRICED, "foretold and k < state[PATH_LENGTH]", "foretold and k < num_draft_tokens"),
    ),
    "break odds off": ((PRICED, "chance /= chance + odds * (1.0 - chance)", "chance /= 1.0"),),
    "own rate off": ((PRICING, " / (OWN_RATE_PRIOR + own[OWN_COST])\n", "\n    rate = tenants\n"),),
    "caution off": ((PRICED, "(1.0 + prices[CAUTION] * (1.0 - survival))", "1.0"),),
    "stop-token cut off": ((PRICED, " or holds(ends, token)", ""),),
    "4 candidates a key": ((CANDIDATES, "PER_KEY = 8", "PER_KEY = 4"),),
    "16 candidates a key": (
        (CANDIDATES, "PER_KEY = 8", "PER_KEY = 16"),
        ("kernels/features.py", "MAX_CANDIDATES = 48", "MAX_CANDIDATES = 96"),
    ),
    "statistics reset per request": (
        (
            POLICY,
            "        state[features.TENANT] = self._statistics_of(tenant)\n",
            "        self._tenants.clear()\n        self.tables[:] = 0\n"
            "        state[features.TENANT] = self._statistics_of(tenant)\n",
        ),
    ),
}


def write_copy(folder: Path, changes: Sequence[Change]) -> None:
    """The package without its caches, changed. Raises SystemExit where a change does not fit."""
    shutil.copytree(PACKAGE, folder / "copyahead", ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in changes:
        path = folder / "copyahead" / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise SystemExit(f"{name} holds {text.count(old)} times, not once: {old.strip()}")
        path.write_text(text.replace(old, new), encoding="utf-8")


def replay(folder: Path, traces: Sequence[str], costs: str, *more: str) -> list[dict[str, Any]]:
    """The rows that `copyahead replay` of the package in `folder` prints."""
    command = [sys.executable, "-m", "copyahead", "replay", *traces, "--cost", costs, "--json"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [*command, *more], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise SystemExit(f"replay failed: {done.stderr.strip().splitlines()[-1:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return rows


def record_demo(folder: Path) -> tuple[list[str], str]:
    """What the demo model writes for each workload, one trace each, and its step cost."""
    from copyahead.config import LookupOptions
    from copyahead.engine import Request
    from copyahead.evaluate.workloads import WORKLOADS, workload
    from copyahead.loading import load
    from copyahead.traces.record import TraceWriter

    traces = []
    with load(None, lookup=LookupOptions(lookup=False)) as engine:
        tokenizer = engine.backend.tokenizer
        cost = folder / "measured.json"
        cost.write_text(json.dumps({"step_cost": engine.backend.step_cost.points()}))
        for task in map(workload, WORKLOADS):
            prompt = tokenizer.encode(task.prompt)
            done = engine.complete(
                Request(prompt=prompt, max_tokens=task.max_tokens, min_tokens=task.min_tokens)
            )
            path = folder / f"{task.name}.jsonl"
            with TraceWriter(path, vocab_size=tokenizer.vocab_size) as writer:
                writer.write(prompt, done.choices[0].tokens)
            traces.append(str(path))
    return traces, str(cost)


def lowest_share(rows: list[dict[str, Any]], best: dict[str, float]) -> tuple[float, str]:
    """The workload where `priced` is furthest behind the best preset, as a share of that one."""
    mine = {row["category"]: row["speedup"] for row in rows if row["policy"] == "priced"}
    return min((mine[name] / best[name], name) for name in best)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="what each part of priced adds")
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--cost", default="0.03,0.3")
    parser.add_argument("--only", nargs="+", choices=list(ABLATIONS), default=list(ABLATIONS))
    parser.add_argument("--after", default="0", help="tokens of a chat history only read")
    parser.add_argument("--demo", action="store_true")
    options = parser.parse_args()
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        demo: tuple[list[str], str] = ([], "")
        best: dict[str, float] = {}
        if options.demo:
            demo = record_demo(Path(name))
            presets = [word for preset in PRESETS for word in ("--policy", preset)]
            for row in replay(PACKAGE.parent, demo[0], demo[1], *presets):
                if row["category"] != "all":
                    best[row["category"]] = max(best.get(row["category"], 0.0), row["speedup"])
        for number, removed in enumerate(options.only):
            folder = Path(name) / str(number)
            write_copy(folder, ABLATIONS[removed])
            rows = replay(
                folder, options.traces, options.cost, "--after", options.after, "--policy", "priced"
            )
            found = {
                f"{row['category']} at {row['cost']}": row["speedup"]
                for row in rows
                if row["category"] != "all"
            }
            if demo[0]:
                share, slowest = lowest_share(
                    replay(folder, demo[0], demo[1], "--policy", "priced"), best
                )
                found["demo copies"] = share
                found["worst demo copy"] = slowest
            if not table:
                print(f"{'removed':42}", "  ".join(found))
            table.append({"removed": removed, **found})
            shown = (f"{v:.3f}" if isinstance(v, float) else v for v in found.values())
            print(f"{removed:42}", "  ".join(shown), flush=True)
    print(json.dumps({"ablations": table}))


if __name__ == "__main__":
    main()
