"""Replay: rounds, costs, the copying limit, the simulation of length, and the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.cli import run
from copyahead.config import SharedOptions
from copyahead.errors import ConfigError
from copyahead.step_cost import StepCost
from copyahead.traces.corpus import Corpus
from copyahead.traces.costs import parse_costs
from copyahead.traces.limit import limit_rounds, longest_earlier_matches
from copyahead.traces.record import TraceWriter
from copyahead.traces.report import html_report
from copyahead.traces.rows import Row, make_rows
from copyahead.traces.runs import (
    LENGTHS,
    LIMIT,
    Cost,
    Results,
    Run,
    length_policies,
    plan_runs,
    policies_of,
    run_all,
)
from copyahead.traces.tokenizers import find_tokenizer

LINEAR = Cost("0.1", StepCost.linear(0.1), 0.1)


def corpus_of(
    *sessions: tuple[list[int], Sequence[tuple[int, int]]], categories: int = 1
) -> Corpus:
    """A corpus of streams, each with the spans that were written; categories in turn."""
    rows, base = [], 0
    for number, (stream, spans) in enumerate(sessions):
        for place, (start, end) in enumerate(spans):
            rows.append([base, start, end, number, number % categories, place == 0, 0])
        base += len(stream)
    tokens = np.array([token for stream, _ in sessions for token in stream], dtype=np.int32)
    names = tuple("abcdef"[:categories])
    order = sorted(rows, key=lambda row: row[4])
    return Corpus(tokens, np.array(order, dtype=np.int64), names, 1000, (999,))


def figures(
    corpus: Corpus,
    policies: Sequence[str],
    costs: Sequence[Cost] = (LINEAR,),
    shared: bool = False,
) -> list[Row]:
    runs = plan_runs(policies_of(policies), costs, SharedOptions(shared=shared))
    found = run_all(corpus, [*runs, Run(LIMIT)], jobs=1)
    return make_rows(corpus, runs, found[:-1], found[-1], costs)


def naive_rounds(
    stream: Sequence[int], start: int, end: int, cap: int | None
) -> list[tuple[int, int]]:
    """The single-draft rule and its K, as a plain scan: `(drafted, accepted)` of each round.

    `cap` None: adaptive, from 1, doubled by a full accept up to 8, 1 after a miss.
    """
    rounds, at, length = [], start, cap or 1
    while at < end:
        draft: list[int] = []
        for key in (3, 2):
            tail = list(stream[at - key : at]) if at >= key else None
            places = [p for p in range(key, at) if list(stream[p - key : p]) == tail]
            if places:
                held = list(stream[:at])
                for offset in range(length):
                    held.append(held[places[-1] + offset])
                draft = held[at:]
                break
        kept = 0
        while kept < len(draft) and at + kept < end and draft[kept] == stream[at + kept]:
            kept += 1
        rounds.append((len(draft), kept))
        if cap is None and draft:
            length = min(2 * length, 8) if kept == len(draft) else 1
        at = min(end, at + kept + 1)
    return rounds


def naive_limit(stream: Sequence[int], start: int, end: int, cap: int) -> list[int]:
    """The greedy parse as a plain scan: the copied tokens of each round."""
    copies, at = [], start
    while at < end:
        best = 0
        for place in range(at):
            count = 0
            while count < cap and at + count < end and stream[place + count] == stream[at + count]:
                count += 1
            best = max(best, count)
        copies.append(best)
        at += best + 1
    return copies


texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@settings(deadline=None)
@given(texts, st.integers(1, 9), st.integers(0, 59))
def test_the_limit_is_that_of_a_plain_scan(stream: list[int], cap: int, start: int) -> None:
    start = min(start, len(stream) - 1)
    lengths = longest_earlier_matches(np.array(stream, dtype=np.int32), cap)
    counts = limit_rounds(lengths, start, len(stream))
    expected = np.bincount(naive_limit(stream, start, len(stream), cap), minlength=len(counts))
    assert counts.tolist() == expected.tolist()


@settings(max_examples=50, deadline=None)
@given(texts.filter(lambda t: len(t) > 4))
def test_the_simulated_lengths_are_those_of_a_plain_scan(stream: list[int]) -> None:
    corpus = corpus_of((stream, [(3, len(stream))]))
    rows = figures(corpus, length_policies())[: len(LENGTHS) + 1]
    for row, cap in zip(rows, [*LENGTHS, None], strict=True):
        rounds = naive_rounds(stream, 3, len(stream), cap)
        drafted = sum(count for count, _ in rounds)
        assert row.tokens_per_round == pytest.approx((len(stream) - 3) / len(rounds), abs=1e-4)
        assert row.drafted_per_round == pytest.approx(drafted / len(rounds), abs=1e-4)
        cost = sum(1 + 0.1 * count for count, _ in rounds)
        assert row.speedup == pytest.approx((len(stream) - 3) / cost, abs=1e-4)


def test_a_copy_is_counted_in_rounds_rows_and_sources() -> None:
    text = list(range(100, 140))
    corpus = corpus_of((text + text, [(44, 80)]))
    (row, total) = figures(corpus, ["fixed:num_draft_tokens=8"])
    # 36 tokens to copy: four rounds of 8 + 1.
    assert row.tokens_per_round == 9.0
    assert row.drafted_per_round == 8.0
    assert row.silent_share == 0.0
    assert row.accepted_share == 1.0
    assert row.accepted_from == {"prompt": 1.0}
    assert row.speedup == pytest.approx(36 / (4 * 1.8), abs=1e-4)
    # The limit takes one round: 35 copied tokens and one more.
    assert row.limit_share == pytest.approx(row.speedup / (36 / (1 + 0.1 * 36)), abs=1e-3)
    assert (total.category, total.speedup) == ("all", row.speedup)


def shares(rows: Sequence[Row]) -> list[float]:
    """Every share of the limit that would be printed."""
    figures = [f for row in rows for f in (row, row.cold, row.warm) if f is not None]
    return [f.limit_share for f in figures if f.limit_share is not None]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(texts, st.integers(0, 59)), min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 1.0, 3.0]),
)
def test_no_share_of_the_limit_is_above_one(
    sessions: list[tuple[list[int], int]], shared: bool, cost: float
) -> None:
    spans = [(min(start, len(stream) - 1), len(stream)) for stream, start in sessions]
    streams = [stream for stream, _ in sessions]
    corpus = corpus_of(*((s, [span]) for s, span in zip(streams, spans, strict=True)))
    policies = ["priced", "window", "fixed:num_draft_tokens=3"]
    rows = figures(corpus, policies, [Cost("c", StepCost.linear(cost), cost)], shared=shared)
    assert all(0.0 < share <= 1.0 for share in shares(rows))


def test_an_answer_too_short_for_the_limit_has_no_share_of_it() -> None:
    text = list(range(100, 140))
    corpus = corpus_of((text + text, [(60, 64)]))
    (row, _) = figures(corpus, ["fixed:num_draft_tokens=3"])
    # Four tokens are a draft of three and the model's own; the parse copies the fourth as well.
    assert row.speedup == pytest.approx(4 / 1.3, abs=1e-4)
    assert row.limit_share is None


def test_there_is_no_share_of_the_limit_with_a_store() -> None:
    text = list(range(100, 160))
    corpus = corpus_of((text, [(10, 60)]), (text, [(10, 60)]))
    assert shares(figures(corpus, ["single"]))
    assert not shares(figures(corpus, ["single"], shared=True))


def test_a_draft_past_the_end_is_paid_for() -> None:
    text = list(range(100, 120))
    corpus = corpus_of((text + text, [(24, 26)]))
    (row, _) = figures(corpus, ["fixed:num_draft_tokens=8"])
    assert row.tokens_per_round == 2.0
    assert row.accepted_share == 0.25


def test_turns_of_a_session_see_each_other_and_sessions_do_not() -> None:
    text = list(range(100, 120))
    together = corpus_of(([*text, 1, 2, *text], [(0, 20), (22, 42)]))
    apart = corpus_of((text, [(0, 20)]), (text, [(0, 20)]))
    warm, cold = (figures(corpus, ["single"])[0] for corpus in (together, apart))
    assert warm.cold is not None
    assert warm.warm is not None
    assert warm.cold.speedup == 1.0
    assert warm.warm.tokens_per_round > 1.5
    assert cold.tokens_per_round == 1.0
    assert cold.warm is None


@pytest.mark.parametrize("policy", ["single", "priced"])
def test_with_a_store_sessions_copy_from_those_before(policy: str) -> None:
    text = list(range(100, 160))
    corpus = corpus_of((text, [(10, 60)]), (text, [(10, 60)]))
    alone = figures(corpus, [policy])[0]
    shared = figures(corpus, [policy], shared=True)[0]
    assert alone.accepted_from == {}
    assert shared.accepted_from == {"shared": 1.0}
    assert shared.tokens_per_round > 1.3


@pytest.mark.parametrize(("options", "copied"), [([], True), (["--by-file"], False)])
def test_a_store_crosses_the_files_of_a_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], copied: bool
) -> None:
    text = list(range(20, 80))
    for name in ("a", "b"):
        with TraceWriter(tmp_path / f"{name}.jsonl", vocab_size=100) as writer:
            writer.write([1, 2], text)
    arguments = ["replay", str(tmp_path), "--shared", "--policy", "single", "--json", *options]
    assert run(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [trace["path"] for trace in found["traces"]] == [
        str(tmp_path / f) for f in ("a.jsonl", "b.jsonl")
    ]
    assert ("shared" in found["results"][-1]["accepted_from"]) is copied


def test_the_command_says_that_there_is_a_store(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["replay", str(recorded), "--policy", "single", "--shared"]
    assert run([*arguments, "--shared-tokens", "5000"]) == 0
    assert "a shared store of 5000 tokens" in capsys.readouterr().out
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shared_tokens"] == 2**20


def fresh_figures(corpus: Corpus, policy: str, shared: bool = False) -> list[Row]:
    planned = plan_runs(policies_of([policy]), [LINEAR], SharedOptions(shared=shared))
    runs = [replace(run, fresh=True) for run in [*planned, Run(LIMIT)]]
    found = run_all(corpus, runs, jobs=1)
    return make_rows(corpus, runs[:-1], found[:-1], found[-1], [LINEAR])


def noisy_copies(seed: int, size: int = 400) -> list[int]:
    """A text, and itself again with every ninth token another: there is much to learn."""
    text = np.random.default_rng(seed).integers(0, 900, size)
    again = text.copy()
    again[::9] = 901
    return [*text.tolist(), *again.tolist()]


@pytest.mark.parametrize("shared", [False, True])
def test_fresh_drafters_know_no_other_session(shared: bool) -> None:
    sessions = [(noisy_copies(seed), [(400, 600), (610, 800)]) for seed in range(4)]
    together = corpus_of(*sessions)
    apart = [corpus_of((stream, spans[:1])) for stream, spans in sessions]
    row = fresh_figures(together, "priced", shared)[0]
    alone = [figures(corpus, ["priced"], shared=shared)[0] for corpus in apart]
    assert (row.requests, row.emitted, row.warm) == (4, 800, None)
    assert row.cold is not None
    assert row.cold.speedup == row.speedup
    time = sum(one.emitted / one.speedup for one in alone)
    assert row.speedup == pytest.approx(row.emitted / time, abs=2e-4)
    # What is learnt from the sessions before, and copied from them, is what it leaves out.
    learnt = figures(corpus_of(*((s, [span]) for s, (span, _) in sessions)), ["priced"])[0]
    assert learnt.speedup > row.speedup


def test_only_the_store_of_its_own_session_is_fresh() -> None:
    text = list(range(100, 160))
    corpus = corpus_of((text, [(10, 60)]), (text, [(10, 60)]))
    assert figures(corpus, ["single"], shared=True)[0].accepted_from == {"shared": 1.0}
    assert fresh_figures(corpus, "single", shared=True)[0].accepted_from == {}


def test_the_opening_is_the_rounds_that_start_in_the_first_32_tokens() -> None:
    text = list(range(100, 200))
    corpus = corpus_of((text + text, [(104, 180), (184, 200)]))
    row = figures(corpus, ["fixed:num_draft_tokens=9"])[0]
    assert row.opening is not None
    # Rounds of nine drafted tokens and one more start at 0, 10, 20 and 30.
    assert (row.opening.requests, row.opening.emitted) == (1, 40)
    assert row.opening.speedup == pytest.approx(40 / (4 * 1.9), abs=1e-4)
    assert row.cold is not None
    assert row.cold.emitted == 76


def test_a_prior_from_a_file_changes_what_is_drafted(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = json.loads(files("copyahead.drafters").joinpath("prior.json").read_text())
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    same.write_text(json.dumps(tables))
    # Copies break at once, whatever the match.
    tables["escape"] = (np.asarray(tables["escape"]) + 9.0).tolist()
    other.write_text(json.dumps(tables))
    arguments = ["replay", str(recorded), "--fresh", "--policy", "priced", "--cost", "0.3"]
    found = []
    for prior in ([], ["--prior", str(same)], ["--prior", str(other)]):
        assert run([*arguments, *prior, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    speedups = [document["results"][0]["speedup"] for document in found]
    assert speedups[0] == speedups[1] > speedups[2]
    assert [document["prior"] for document in found] == [None, str(same), str(other)]
    assert all(document["fresh"] for document in found)


def test_the_command_shows_first_requests_only(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", str(recorded), "--fresh", "--policy", "single"]) == 0
    shown = capsys.readouterr().out
    assert "first requests only, each with a new drafter" in shown
    assert "2 requests, 80 tokens written" in shown
    assert "first 32" in shown


def test_priced_is_run_at_each_cost_and_never_much_slower_than_plain() -> None:
    rng = np.random.default_rng(3)
    stream = rng.integers(0, 500, 3000).tolist()
    costs = [Cost(f"{c}", StepCost.linear(c), c) for c in (0.03, 0.3)]
    rows = figures(corpus_of((stream, [(10, 3000)])), ["priced"], costs)
    assert [row.cost for row in rows] == [0.03, 0.3, 0.03, 0.3]
    assert all(row.speedup >= 0.98 for row in rows)


def test_all_is_the_sum_of_the_categories() -> None:
    text = list(range(100, 120))
    corpus = corpus_of((text + text, [(22, 40)]), (text, [(1, 20)]), categories=2)
    first, second, total = figures(corpus, ["window"])
    assert (first.category, second.category, total.category) == ("a", "b", "all")
    assert total.emitted == first.emitted + second.emitted
    rounds = [row.emitted / row.tokens_per_round for row in (first, second, total)]
    assert rounds[2] == pytest.approx(rounds[0] + rounds[1], rel=1e-3)


def counted(results: Results) -> list[list[list[int]]]:
    return [[found[c].both().drafted.tolist() for c in sorted(found)] for found in results]


@pytest.mark.slow
def test_the_figures_do_not_depend_on_the_number_of_processes() -> None:
    rng = np.random.default_rng(0)
    sessions = []
    for _ in range(6):
        part = rng.integers(0, 30, 20_000).tolist()
        sessions.append((part + part, [(5, 15_000), (20_000, 40_000)]))
    corpus = corpus_of(*sessions, categories=2)
    runs = [*plan_runs(["single", "priced"], [LINEAR]), Run(LIMIT)]
    done: list[int] = []
    one = run_all(corpus, runs, jobs=1)
    two = run_all(corpus, runs, jobs=2, on_progress=done.append)
    assert counted(one) == counted(two)
    assert sum(done) == corpus.num_written * len(runs)


def test_costs() -> None:
    costs = parse_costs(["0.01, 0.3", "stair"])
    assert [c.name for c in costs] == ["0.01", "0.3", "stair"]
    assert costs[1].curve(11) == pytest.approx(4.0)
    assert costs[2].curve(6) == pytest.approx(2.65 + 1.1 / 3)
    # Beyond the last point the curve is a line through the origin.
    assert costs[2].curve(48) == pytest.approx(12.3 * 1.5)


def test_a_cost_file_as_a_probe_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"model": "m", "step_cost": {"1": 2.0, "2": 3.0}}')
    (cost,) = parse_costs([str(path)])
    assert (cost.name, cost.curve(2), cost.row_cost) == ("mine", 1.5, None)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["-1"], "from 0 to 100"),
        (["0.1", "0.1"], "given twice"),
        ([","], "at least one"),
        (["none.json"], "neither a number"),
        (["empty.json"], "has no step cost"),
        (["broken.json"], "is not JSON"),
    ],
)
def test_costs_that_are_wrong(
    texts: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=reason):
        parse_costs(texts)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A trace of token ids, so that no tokenizer is needed."""
    path = tmp_path / "own.jsonl"
    text = list(range(20, 60))
    with TraceWriter(path, vocab_size=100) as writer:
        writer.write(text, text)
        writer.write([*text, *text, 7], text[5:])
        writer.write([1, 2], text)
    return path


def test_the_command_prints_json(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", str(recorded), "--policy", "single", "--policy", "priced"]
    assert run([*arguments, "--cost", "0.03,0.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokenizer"] == "recorded token ids"
    assert found["traces"][0]["sessions"] == 2
    rows = found["results"]
    keys = [(row["category"], row["policy"], row["cost"]) for row in rows]
    wanted = [(p, c) for p in ("single", "priced") for c in (0.03, 0.3)]
    assert keys == [(name, *pair) for name in ("own", "all") for pair in wanted]
    asked = {
        "category", "policy", "cost", "speedup", "tokens_per_round", "drafted_per_round",
        "silent_share", "limit_share", "draft_us",
    }  # fmt: skip
    assert asked <= set(rows[0])


def test_policies_may_follow_one_flag_or_several(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for names in (["--policy", "single", "window"], ["--policy", "single", "--policy", "window"]):
        assert run(["replay", str(recorded), str(recorded), *names, "--cost", "0.1", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found["traces"]) == 2
        assert {row["policy"] for row in found["results"]} == {"single", "window"}


def test_the_command_prints_a_table_and_writes_a_report(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    recorded.write_text(recorded.read_text() + "{broken\n")
    arguments = ["replay", str(recorded), "--lengths", "--html", str(page)]
    assert run([*arguments, "--policy", "window", "--cost", "0.1,stair"]) == 0
    shown = capsys.readouterr()
    assert "adaptive_k" in shown.out
    assert "line 4" in shown.err
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "adaptive_k" in text
    assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "nothing to replay"),
        (["none.jsonl"], "cannot be read"),
        (["none.jsonl", "--policy", "best"], "unknown"),
        (["none.jsonl", "--shared-tokens", "5"], "--shared-tokens must be from 1024"),
        (["none.jsonl", "--jobs", "0"], "jobs must be from 1"),
        (["none.jsonl", "--html", "no/such/page.html"], "lies in no directory"),
        (["none.jsonl", "--tokenizer", "none.json"], "cannot be read"),
        (["none.jsonl", "--prior", "none.json"], "prior none.json cannot be read"),
        (["none.jsonl", "--prior", __file__], "is not JSON"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", *arguments]) == 2
    shown = capsys.readouterr().err
    assert reason in shown
    assert shown.count("\n") == 1


def test_a_report_escapes_what_it_shows(recorded: Path) -> None:
    corpus = corpus_of(([1, 2, 3, 4], [(1, 4)]))
    rows = figures(corpus, ["single"])
    assert "<b>" not in html_report([], "<b>", rows)


@pytest.mark.model
def test_text_is_tokenised_with_the_bundled_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def area(width, height):\n    return width * height\n" * 3
    messages = [{"role": "user", "content": code}, {"role": "assistant", "content": code}]
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n")
    assert run(["replay", str(path), "--policy", "priced", "--cost", "0.03", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokenizer"].endswith(".gguf")
    assert found["results"][0]["speedup"] > 1.5


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A `tokenizer.json` as models bring it: byte pairs, and marks of their own."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Bytes
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), Bytes()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_text_is_tokenised_with_a_tokenizer_file(
    tokenizer_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "def area(width, height):\n    return width * height\n" * 3
    messages = [{"role": "user", "content": code}, {"role": "assistant", "content": code}]
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n")
    arguments = ["replay", str(path), "--tokenizer", str(tokenizer_file), "--policy", "priced"]
    assert run([*arguments, "--cost", "0.03", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokenizer"] == "tokenizer.json"
    assert found["results"][0]["speedup"] > 1.5


def test_a_tokenizer_file_reads_marks_only_where_it_is_told_to(tokenizer_file: Path) -> None:
    name, tokenizer = find_tokenizer(tokenizer_file)
    assert name == "tokenizer.json"
    (end,) = tokenizer.end_tokens
    text = "over<|im_end|>"
    assert tokenizer.encode(text)[-1] == end
    plain = tokenizer.encode(text, special=False)
    assert end not in plain
    assert max(plain) < tokenizer.vocab_size


def test_a_tokenizer_file_that_is_none_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{}")
    trace = tmp_path / "runs.jsonl"
    trace.write_text(json.dumps({"messages": [{"role": "assistant", "content": "a"}]}) + "\n")
    assert run(["replay", str(trace), "--tokenizer", str(path)]) == 2
    shown = capsys.readouterr().err
    assert "broken.json cannot be read" in shown
    assert shown.count("\n") == 1
