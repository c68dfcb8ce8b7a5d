"""Writes the tables of docs/peers.md from what `figures.py` printed.

    python benchmarks/peer_tables.py FIGURES.log docs/peers.md

The last line of the log is the JSON document. Each table stands between two comments that name it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench_peers import DEFAULT, PARTLY, PRICED, SHARED, best_peer
from peers.adapters import OWN, STORE
from peers.sweeps import RULES_ONLY

Rows = list[dict[str, Any]]

TREE = "suffix tree"
NAMES = {
    PRICED: "`priced`",
    SHARED: "`priced`, `--shared`",
    TREE: "suffix tree, chosen",
    TREE + PARTLY: "suffix tree, factor chosen, p 0.1",
    TREE + DEFAULT: "suffix tree, default",
    TREE + STORE: "suffix tree and store, chosen",
    TREE + STORE + DEFAULT: "suffix tree and store, default",
    "vllm n-gram": "vLLM n-gram, chosen",
    "vllm n-gram" + DEFAULT: "vLLM n-gram, default",
    "transformers": "transformers, chosen",
    "transformers" + DEFAULT: "transformers, default",
    **{name: f"llama.cpp `ngram-{name.rpartition(' ')[2]}`, chosen" for name in RULES_ONLY},
}
COLD = [PRICED, TREE, TREE + PARTLY, TREE + DEFAULT, "vllm n-gram", "transformers"]
WIDE = 3
"""Categories side by side in one table."""
LEFT_OUT = ("random",)


def categories(rows: Rows) -> list[str]:
    return [c for c in dict.fromkeys(row["category"] for row in rows) if c not in LEFT_OUT]


def costs(rows: Rows) -> list[float]:
    return list(dict.fromkeys(row["cost"] for row in rows))


def speedups(rows: Rows, names: Sequence[str], field: str = "speedup") -> str:
    """Some categories side by side: a line a drafter, a cell of one figure a cost."""
    shown = categories(rows)
    return "\n\n".join(
        table("drafter", part, names, lambda name, category: cell(rows, name, category, field))
        for part in (shown[n : n + WIDE] for n in range(0, len(shown), WIDE))
    )


def cell(rows: Rows, name: str, category: str, field: str) -> str:
    mine = [r for r in rows if (r["category"], r["drafter"]) == (category, name)]
    return " / ".join(f"{row[field]:.2f}" for row in mine)


def table(
    first: str, columns: Sequence[str], names: Sequence[str], of: Callable[[str, str], str]
) -> str:
    lines = [f"| {first} | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    lines += [
        f"| {NAMES.get(name, name)} | {' | '.join(of(name, column) for column in columns)} |"
        for name in names
    ]
    return "\n".join(lines)


def margins(rows: Rows, own: str, *, store: bool) -> str:
    """How far ahead of the best peer; in brackets of the best of all settings in hindsight."""
    shown = [f"{cost:g} a row" for cost in costs(rows)]

    def margin(category: str, column: str) -> str:
        cost = float(column.split()[0])
        mine = next(
            row["speedup"]
            for row in rows
            if (row["category"], row["drafter"], row["cost"]) == (category, own, cost)
        )
        best = best_peer(rows, category, cost, store=store)["speedup"]
        hindsight = max(
            row["best_speedup"]
            for row in rows
            if (row["category"], row["cost"]) == (category, cost)
            and not row["drafter"].startswith(OWN)
            and (store or STORE not in row["drafter"])
        )
        return f"{mine / best:.3f} ({mine / hindsight:.3f})"

    return table("text", shown, categories(rows), margin)


def chosen(rows: Rows, names: Sequence[str]) -> str:
    """The settings that the first half chose, by category and cost."""
    shown = categories(rows)

    def settings(name: str, category: str) -> str:
        mine = [r["setting"] for r in rows if (r["category"], r["drafter"]) == (category, name)]
        return "; ".join(setting.removeprefix("factor ") for setting in mine)

    return "\n\n".join(
        table("drafter", part, names, settings)
        for part in (shown[n : n + WIDE] for n in range(0, len(shown), WIDE))
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("log", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    found = json.loads(options.log.read_text(encoding="utf-8").splitlines()[-1])
    warm, cold = found["results"], found["cold"]
    tables = {
        "speed-ups": speedups(warm, list(NAMES)),
        "margins": margins(warm, PRICED, store=False),
        "margins with stores": margins(warm, SHARED, store=True),
        "settings": chosen(warm, [TREE, TREE + STORE, "vllm n-gram", "transformers"]),
        "cold": speedups(cold, COLD),
        "openings": speedups(cold, COLD[:2], "opening"),
        "cold margins": margins(cold, PRICED, store=False),
    }
    page = options.page.read_text(encoding="utf-8")
    for name, text in tables.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page, count = pattern.subn(lambda m, text=text: f"{m[1]}\n{text}\n\n{m[2]}", page)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{options.page} has no place for the table {name}, or several")
    options.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
