"""A draft model beside copies: each alone, and both by every rule, on the seven workloads.

`make bench-draft`, or `python -m benchmarks.bench_draft_model` in the folder of the repository,
prints a card for each draft model, and one JSON document as its last line.

The model is the bundled one in Q8_0. It is drafted for by itself in Q4_0 and in Q2_K, whose passes
cost nearly as much as its own, and by its own first two layers, which are nearly free and nearly
always wrong: small models that are good at drafting are not among what can be made of it. All are
made here, once. Runs alternate (plain, every mode, every mode backwards, plain), and speeds are
medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.small_models import quantized, with_layers

from copyahead.backends.llama_cpp.gguf import bundled_model
from copyahead.config import DraftModelOptions, LookupOptions, ModelOptions
from copyahead.engine import Engine, Request
from copyahead.evaluate.compare import Comparison, Plan, compare_all
from copyahead.evaluate.workloads import WORKLOADS, Workload, workload
from copyahead.loading import load
from copyahead.sampling import SamplingOptions

COPIES, MODEL, PRICED = "priced+off", "model", "priced+priced"
MODES = (COPIES, MODEL, PRICED, "priced+agree", "priced+longer", "priced+first")
DRAFTERS = ("Q4_0", "Q2_K", "two-layers")


def make_models(folder: Path) -> dict[str, Path]:
    """The files, made where they are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    for kind in ("Q8_0", "Q4_0", "Q2_K"):
        made[kind] = folder / f"{kind}.gguf"
        if not made[kind].exists():
            quantized(bundled_model(), kind, made[kind])
    made["two-layers"] = folder / "two-layers.gguf"
    if not made["two-layers"].exists():
        with_layers(made["Q4_0"], 2, made["two-layers"])
    return made


def last_pass(engine: Engine, work: Workload, max_tokens: int | None) -> dict[str, int]:
    """The round in which `priced` asked the draft model last, of how many, and how often it did."""
    request = Request(
        prompt=engine.backend.tokenizer.encode(work.prompt),
        max_tokens=work.max_tokens if max_tokens is None else max_tokens,
        policy=PRICED,
    )
    engine.reset()
    handle = engine.submit(request, lambda _chunk: None)
    stats = handle.answers[0].stats
    last = 0
    while not handle.done:
        before = stats.num_model_passes
        engine.step()
        if stats.num_model_passes > before:
            last = stats.rounds
    return {"last_round": last, "rounds": stats.rounds, "passes": stats.num_model_passes}


def measure(engine: Engine, works: Sequence[Workload], plan: Plan) -> list[dict[str, Any]]:
    """For each workload: every mode against plain decoding, and against the best single source."""
    found = []
    for work in works:
        results = [result for result, _ in compare_all(engine, work, MODES, plan)]
        speeds = {result.policy: result.lookup_tps for result in results}
        best = max(results[0].plain_tps, speeds[COPIES], speeds[MODEL])
        found.append(
            {
                "workload": work.name,
                "against_best_single": round(speeds[PRICED] / best, 3) if best > 0 else 1.0,
                "asked": last_pass(engine, work, plan.max_tokens),
                "results": results,
            }
        )
        print(_line(found[-1]), flush=True)
    return found


def _line(row: dict[str, Any]) -> str:
    results: list[Comparison] = row["results"]
    speedups = "".join(f"{result.speedup:>14.2f}" for result in results)
    asked = row["asked"]
    same = "identical" if all(result.identical for result in results) else "TEXTS DIFFER"
    return (
        f"{row['workload']:8}{speedups}{row['against_best_single']:>12.3f}"
        f"{asked['passes']:>8} passes, last in round {asked['last_round']} of {asked['rounds']}"
        f"  {same}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "draft-models")
    parser.add_argument("--drafters", nargs="+", choices=DRAFTERS, default=DRAFTERS)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    made = make_models(arguments.models)
    works = [workload(name) for name in arguments.workloads]
    plan = Plan(
        sampling=SamplingOptions(), repeat=arguments.repeat, max_tokens=arguments.max_tokens
    )
    document: dict[str, Any] = {"drafters": {}}
    for name in arguments.drafters:
        options = ModelOptions(ctx=4096, threads=arguments.threads, exact=True)
        draft = DraftModelOptions(draft_model=str(made[name]))
        with load(made["Q8_0"], model=options, lookup=LookupOptions(), draft=draft) as engine:
            print(f"\ndraft model: {engine.draft_model}")
            print(f"{'':8}" + "".join(f"{mode:>14}" for mode in MODES) + "  /best alone")
            rows = measure(engine, works, plan)
            document["model"] = engine.backend.name
            document["exactness"] = str(engine.backend.exactness)
            document["drafters"][name] = {"card": engine.draft_model, "workloads": rows}
    print(json.dumps(msgspec.to_builtins(document)))


if __name__ == "__main__":
    main()
