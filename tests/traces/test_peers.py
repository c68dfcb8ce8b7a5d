"""The benchmark of peers: rules written down anew, many settings in one pass, and tuning."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.step_cost import StepCost
from copyahead.traces.corpus import Corpus
from copyahead.traces.runs import Cost, plan_runs, run_all

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COST = Cost("0.1", StepCost.linear(0.1), 0.1)
texts = st.lists(st.integers(0, 2), min_size=1, max_size=50)


class Bench(NamedTuple):
    """Modules of benchmarks/, which are no package."""

    adapters: Any
    llama_rules: Any
    sweeps: Any
    tuning: Any
    worker: Any
    bench_peers: Any
    peer_tables: Any
    figures: Any


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    # As for a program, its own folder is where it finds its other files.
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = [f"peers.{name}" for name in Bench._fields[:5]]
        yield Bench(*(importlib.import_module(name) for name in (*names, *Bench._fields[5:])))
    finally:
        sys.path.remove(str(BENCHMARKS))


def tokens(values: Sequence[int]) -> Any:
    return np.array(values, dtype=np.int32)


def naive_simple(held: list[int], size: int, copied: int, most: int) -> list[int]:
    """The rule as a plain scan; the last token is searched with, and not in."""
    searched = held[:-1]
    if len(searched) <= size + copied + 1:
        return []
    for start in range(len(searched) - size - 1, 0, -1):
        if searched[start : start + size] == held[-size:]:
            found = searched[start + size : start + size + copied]
            return found[:most] if len(found) >= size else []
    return []


@settings(max_examples=200, deadline=None)
@given(text=texts, start=st.integers(1, 50), most=st.integers(1, 5))
def test_the_simple_rule_is_that_of_a_plain_scan(
    bench: Bench, text: list[int], start: int, most: int
) -> None:
    rule = bench.llama_rules.Simple(100, 2, 4, most)
    rule.start(tokens(text[:start]))
    for end in range(min(start, len(text)), len(text) + 1):
        assert list(rule.propose()) == naive_simple(text[:end], 2, 4, most)
        if end < len(text):
            rule.settle([text[end]])


@settings(max_examples=200, deadline=None)
@given(text=texts, start=st.integers(1, 50), size=st.integers(1, 3))
def test_the_first_place_is_that_of_a_plain_scan(
    bench: Bench, text: list[int], start: int, size: int
) -> None:
    places = bench.sweeps.FirstPlaces(100, range(1, 4))
    places.start(tokens(text[:start]))
    for end in range(min(start, len(text)), len(text) + 1):
        held = text[:end]
        found = [n for n in range(size, end) if held[n - size : n] == held[end - size :]]
        assert places.find(size) == (found[0] if found and end >= size else None)
        if end < len(text):
            places.settle([text[end]])


def drafts(rule: Any, following: Sequence[int], kept: int) -> list[list[int]]:
    """What is drafted before each of some tokens, with `kept` right of every draft."""
    found = []
    for token in following:
        draft = list(rule.propose())
        if draft:
            rule.accepted(kept)
        found.append(draft)
        rule.settle([token])
    return found


def test_the_map_drafts_no_more_than_was_right_the_last_time(bench: Bench) -> None:
    rule = bench.llama_rules.Map(300, 2, 4, 48, choose=False)
    text = [1, 2, 3, 4, 5, 6, *range(10, 30)]
    rule.start(tokens([0, *text, 1, 2]))
    assert drafts(rule, [50, 51, 52], 2) == [[3, 4, 5, 6], [], []]
    assert drafts(rule, [1, 2, 60], 0) == [[], [], [3, 4]]
    # Nothing of it was right, so it is not drafted any more.
    assert drafts(rule, [1, 2, 60], 0) == [[], [], []]


def test_the_map_of_values_wants_one_that_is_clearly_the_most_frequent(bench: Bench) -> None:
    def asked(*values: int) -> list[int]:
        rule = bench.llama_rules.Map(300, 2, 2, 48, choose=True)
        held = [0, 0, 0]
        for number, value in enumerate(values):
            held += [1, 2, value, value, 100 + number, 200 + number]
        rule.start(tokens([*held, 1, 2]))
        return list(rule.propose())

    assert asked(7, 7, 7) == [7, 7]
    assert asked(7, 8, 7) == []
    assert asked(7, 8, 7, 7) == [7, 7]


def test_the_map_of_values_waits_for_hits(bench: Bench) -> None:
    rule = bench.llama_rules.Map(300, 2, 2, 48, choose=True, hits=2)
    rule.start(tokens([0, 1, 2, 7, 7, *range(10, 20), 1, 2]))
    assert drafts(rule, [50, 1, 2, 51], 2) == [[], [], [], [7, 7]]


def test_the_table_chains_and_forgets_when_it_is_mostly_wrong(bench: Bench) -> None:
    rule = bench.llama_rules.Mod(5000, 2, 2, 4)
    text = list(range(10, 40))
    rule.start(tokens([*text, 10, 11]))
    assert list(rule.propose()) == [12, 13, 14, 15]
    # Another request knows it too.
    rule.start(tokens([5, 6, 7, 20, 21]))
    assert list(rule.propose()) == [22, 23, 24, 25]
    for _ in range(5):
        rule.propose()
        rule.accepted(0)
    assert list(rule.propose()) == []


class Alone:
    """One setting of a sweep as a drafter that is driven alone."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    def start(self, prompt: Any) -> None:
        self.rule.start(prompt)

    def propose(self) -> list[int]:
        self.draft = list(self.rule.propose())
        return self.draft

    def settle(self, emitted: list[int]) -> None:
        kept = len(emitted) - 1 if self.draft[: len(emitted)] != emitted else len(emitted)
        if self.draft:
            self.rule.accepted(kept)
        self.rule.settle(emitted)

    def stop(self) -> None:
        pass


@settings(max_examples=100, deadline=None)
@given(text=texts, start=st.integers(1, 49))
def test_many_settings_in_one_pass_are_as_many_runs(
    bench: Bench, text: list[int], start: int
) -> None:
    made = [(2, 4, 4), (2, 4, 1), (3, 6, 6)]
    start = min(start, len(text))
    rules = [bench.llama_rules.Simple(200, *setting) for setting in made]
    together = [bench.worker.Tally() for _ in made]
    bench.worker.all_settings(bench.sweeps.Each(rules), tokens(text), start, together)
    for setting, tally in zip(made, together, strict=True):
        one = bench.worker.Tally()
        peer = Alone(bench.llama_rules.Simple(200, *setting))
        bench.worker.one_peer(peer, tokens(text), start, one)
        one.nanoseconds = tally.nanoseconds
        assert one == tally


def corpus_of(sessions: Sequence[tuple[list[int], list[tuple[int, int]]]]) -> Corpus:
    rows, base = [], 0
    for number, (stream, spans) in enumerate(sessions):
        rows += [[base, a, b, number, 0, n == 0, 0] for n, (a, b) in enumerate(spans)]
        base += len(stream)
    text = np.array([token for stream, _ in sessions for token in stream], dtype=np.int32)
    return Corpus(text, np.array(rows, dtype=np.int64), ("a",), 1000, (999,))


def copies(seed: int) -> list[int]:
    text = np.random.default_rng(seed).integers(0, 900, 200).tolist()
    return [*text, *text[:150], 3, *text[150:]]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_own_policies_score_as_in_replay(
    bench: Bench, tmp_path: Path, fresh: bool, shared: bool
) -> None:
    corpus = corpus_of([(copies(n % 3), [(200, 300), (310, 401)]) for n in range(5)])
    (run,) = plan_runs(["priced"], [COST])
    run = replace(run, fresh=fresh, shared=replace(run.shared, shared=shared))
    expected = run_all(corpus, [run], jobs=1)[0][0].both()
    rows = range(len(corpus.requests))
    path = tmp_path / "corpus.npz"
    bench.tuning.save(corpus, [row for row in rows if not fresh or row % 2 == 0], path)
    name = bench.bench_peers.OWN[1 if shared else 0]
    job = {"name": name, "corpus": str(path), "mode": "fresh" if fresh else "replay", "cost": 0.1}
    found = bench.worker.replay(job, dict(np.load(path)))["a"][""]
    assert found["emitted"] == expected.emitted
    assert found["drafted"] == expected.drafted.tolist()


def test_a_worker_is_a_process_that_answers_in_json(bench: Bench, tmp_path: Path) -> None:
    corpus = corpus_of([(copies(n), [(200, 401)]) for n in range(4)])
    path = tmp_path / "corpus.npz"
    bench.tuning.save(corpus, [2, 3], path)
    job = {"name": "llama.cpp simple", "corpus": str(path), "mode": "replay"}
    cache = tmp_path / "cache"
    found = bench.bench_peers.work(sys.executable, job, cache)
    assert set(found["a"]) == set(bench.sweeps.SWEEPS["llama.cpp simple"].names)
    assert found["a"]["12, 48"]["emitted"] == 402
    (kept,) = cache.iterdir()
    assert json.loads(kept.read_text()) == found
    kept.write_text("{}")
    assert bench.bench_peers.work(sys.executable, job, cache) == {}


def test_halves_have_no_session_in_common(bench: Bench) -> None:
    corpus = corpus_of([(copies(n), [(200, 300), (310, 400)]) for n in range(9)])
    first, second = bench.tuning.halves(corpus, tuning=10**6, scored=10**6, fresh=False)
    assert sorted(first) == list(range(10))
    assert sorted(second) == list(range(10, 18))
    first, second = bench.tuning.halves(corpus, tuning=250, scored=10**6, fresh=True)
    assert len(first) == 2
    assert sorted(second) == [10, 12, 14, 16]
    few = corpus_of([(copies(n), [(200, 300)]) for n in range(3)])
    first, second = bench.tuning.halves(few, tuning=10**6, scored=10**6, fresh=False)
    assert sorted(first) == sorted(second) == [0, 1, 2]


def test_a_lone_session_is_halved_by_its_text_and_sampled_from_all_over(bench: Bench) -> None:
    spans = [(n, n + 1) for n in range(0, 4000, 2)]
    corpus = corpus_of([([1] * 4001, spans)])
    first, second = bench.tuning.halves(corpus, tuning=100, scored=320, fresh=False)
    assert max(first) < 1000 <= min(second)
    assert 80 <= len(first) <= 120
    assert 300 <= len(second) <= 340
    assert min(second) < 1100
    assert max(second) > 1880
    # Neighbours stay together.
    assert sum(b == a + 1 for a, b in pairwise(second)) > 0.9 * len(second)


def tally(emitted: int, drafted: dict[int, int]) -> dict[str, Any]:
    counts = [drafted.get(length, 0) for length in range(65)]
    opening = {"opening_emitted": emitted, "opening_drafted": counts}
    return {"emitted": emitted, "drafted": counts, "nanoseconds": 0, **opening}


def test_settings_are_chosen_by_the_first_half_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = tally(300, {8: 50}), tally(110, {8: 100})
    names = bench.sweeps.SWEEPS["suffix tree"].names
    printed = {
        "tuning.npz": {
            "a": dict.fromkeys(names, bad) | {names[1]: good, names[4]: tally(350, {8: 50})}
        },
        "scored.npz": {c: dict.fromkeys(names, bad) | {names[0]: good} for c in "ab"},
    }
    monkeypatch.setattr(bench.bench_peers, "work", lambda _, job, __: printed[job["corpus"]])
    options = SimpleNamespace(peer_python="python", cache=None, cost=[0.1], fresh=False)
    rows = bench.bench_peers.peer_rows(
        "suffix tree", options, Path("tuning.npz"), Path("scored.npz")
    )
    found = {(row["category"], row["drafter"]): row["setting"] for row in rows}
    # What is scored has no say, but where there was nothing to choose on.
    assert found == {
        ("a", "suffix tree"): names[4],
        ("a", "suffix tree, p 0.1"): names[1],
        ("a", "suffix tree, default"): names[0],
        ("b", "suffix tree"): names[0],
        ("b", "suffix tree, p 0.1"): names[0],
        ("b", "suffix tree, default"): names[0],
    }
    assert {row["best_setting"] for row in rows} == {names[0]}
    best = bench.bench_peers.best_peer(rows, "a", 0.1, store=False)
    assert best["speedup"] == pytest.approx(300 / (50 * 1.8), abs=1e-4)
    assert best["opening"] == best["speedup"]


def test_a_dear_row_may_choose_another_setting(bench: Bench) -> None:
    tuned = {"long": tally(500, {16: 50}), "short": tally(150, {2: 50})}
    assert bench.tuning.choose(tuned, 0.03) == "long"
    assert bench.tuning.choose(tuned, 0.5) == "short"


def row(drafter: str, speedup: float, cost: float = 0.03, **more: Any) -> dict[str, Any]:
    made = {"category": "agent-dev", "drafter": drafter, "cost": cost, "speedup": speedup}
    return {**made, "opening": 1.0, **more}


def peer_row(drafter: str, speedup: float, best: float) -> dict[str, Any]:
    return row(drafter, speedup, setting="factor 1, p 0.1", best_speedup=best)


ROWS = [
    row("copyahead priced", 2.2),
    row("copyahead priced + store", 3.0),
    peer_row("suffix tree", 1.9, 2.1),
    peer_row("suffix tree, default", 2.0, 2.1),
    peer_row("suffix tree + store", 2.4, 2.5),
]


def test_a_peer_with_a_store_is_beside_ours_with_one(bench: Bench) -> None:
    margins = bench.peer_tables.margins
    # Over the best row, and over the best of all settings.
    assert "| agent-dev | 1.100 (1.048) |" in margins(ROWS, "copyahead priced", store=False)
    assert "| agent-dev | 1.250 (1.200) |" in margins(ROWS, "copyahead priced + store", store=True)


def test_figures_are_met_or_say_by_how_much_not(bench: Bench) -> None:
    found = {figure.what: figure for figure in bench.figures.of_traces(ROWS)}
    own = found["agent-dev at 0.03, over the best peer"]
    assert own.verdict == "met"
    assert own.peers == "priced 2.20, suffix tree, default (factor 1, p 0.1) 2.00"
    assert found["agent-dev at 0.03 a row, priced"].verdict == "missed: 0.94 of it"
    (cold,) = bench.figures.of_cold([row("copyahead priced", 1.8), *ROWS[2:]])
    assert (cold.asked, cold.verdict) == (1.0, "missed: 0.90 of it")


def test_the_page_of_peers_gets_its_tables(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "figures.log"
    figures = [*bench.figures.of_traces(ROWS), *bench.figures.of_cold(ROWS)]
    made = [asdict(figure) | {"verdict": figure.verdict} for figure in figures]
    document = {"results": ROWS, "cold": ROWS, "figures": made}
    log.write_text("a card\n" + json.dumps(document))
    pages = [tmp_path / "peers.md", tmp_path / "figures.md"]
    for page in pages:
        page.write_text((BENCHMARKS.parent / "docs" / page.name).read_text())
    monkeypatch.setattr(sys, "argv", ["peer_tables.py", str(log), *map(str, pages)])
    bench.peer_tables.main()
    peers, figures_page = (page.read_text() for page in pages)
    assert "| suffix tree, chosen | 1.90 |" in peers
    assert (
        "| agent-dev at 0.03 a row, priced | 2.20 x | ≥ 2.35 | missed: 0.94 of it |" in figures_page
    )
    assert "| agent-dev | 1.100 |" in figures_page
    bench.peer_tables.main()
    assert [page.read_text() for page in pages] == [peers, figures_page]
    for text, reason in (
        ("none", "no place for a table"),
        ("<!-- a -->\n<!-- end of a -->", "for a,"),
    ):
        pages[0].write_text(text)
        with pytest.raises(SystemExit, match=reason):
            bench.peer_tables.main()
