"""Writes the tables of docs/peers.md and docs/figures.md from what `figures.py` printed.

    python benchmarks/peer_tables.py FIGURES.log docs/peers.md docs/figures.md

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


def promised(figures: Rows) -> str:
    """Speed-ups that are asked for by themselves."""
    lines = ["| figure | here | asked | |", "| --- | --- | --- | --- |"]
    lines += [
        "| {what} | {here:.2f} x | ≥ {asked:g} | {verdict} |".format(**figure)
        for figure in figures
        if " a row, " in figure["what"] or "worst cost" in figure["what"]
    ]
    return "\n".join(lines)


def verdicts(figures: Rows, first: str, last: str) -> str:
    """Margins over the best peer by text and cost; what is asked where it is missed."""
    pattern = re.compile(rf"{first}(\S+) at (\S+), over the best peer{last}")
    cells: dict[tuple[str, str], str] = {}
    for figure in figures:
        match = pattern.fullmatch(figure["what"])
        if match:
            missed = "" if figure["verdict"] == "met" else f", asked {figure['asked']:g}"
            cells[match[1], f"{match[2]} a row"] = f"{figure['here']:.3f}{missed}"
    texts, columns = (list(dict.fromkeys(names)) for names in zip(*cells, strict=True))
    return table("text", columns, texts, lambda text, column: cells[text, column])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("log", type=Path)
    parser.add_argument("pages", type=Path, nargs="+")
    options = parser.parse_args()
    found = json.loads(options.log.read_text(encoding="utf-8").splitlines()[-1])
    warm, cold, figures = found["results"], found["cold"], found["figures"]
    tables = {
        "speed-ups": speedups(warm, list(NAMES)),
        "margins": margins(warm, PRICED, store=False),
        "margins with stores": margins(warm, SHARED, store=True),
        "settings": chosen(warm, [TREE, TREE + STORE, "vllm n-gram", "transformers"]),
        "cold": speedups(cold, COLD),
        "openings": speedups(cold, COLD[:2], "opening"),
        "cold margins": margins(cold, PRICED, store=False),
        "promised": promised(figures),
        "verdicts": verdicts(figures, "", ""),
        "verdicts with stores": verdicts(figures, "", ", stores too"),
        "cold verdicts": verdicts(figures, "cold: ", ""),
    }
    for page in options.pages:
        page.write_text(filled(page, tables), encoding="utf-8")


def filled(page: Path, tables: dict[str, str]) -> str:
    """The text of a page with every table in it new."""

    def new(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            raise SystemExit(f"{page} has a place for {name}, and there is no such table")
        return f"<!-- {name} -->\n\n{tables[name]}\n\n<!-- end of {name} -->"

    text = page.read_text(encoding="utf-8")
    text, count = re.subn(r"<!-- ([\w -]+) -->\n.*?<!-- end of \1 -->", new, text, flags=re.DOTALL)
    if count == 0:
        raise SystemExit(f"{page} has no place for a table")
    return text


if __name__ == "__main__":
    main()
