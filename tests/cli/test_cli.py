"""The command line: what it prints, its exit status, and its sentences for wrong input."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from copyahead import loading
from copyahead.engine import Engine
from copyahead.testing import FakeBackend, ToyLM
from copyahead.types import Exactness
from tests.cli.toys import BYTES, LINE, Done, Flipping, Run, backend, use_backend

# generate


def test_generate_prints_the_text_and_the_level(cli: Run, engines: list[Engine]) -> None:
    status, out, err = cli("generate", "--prompt", LINE * 2)
    assert status == 0
    assert out == LINE * 2 + "\n"
    assert err == "exactness: exact up to 64 rows\n"


def test_generate_json_is_one_document_and_nothing_else(cli: Run, engines: list[Engine]) -> None:
    status, out, err = cli("generate", "--prompt", LINE * 2, "--json", "--stats")
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    assert document["text"] == LINE * 2
    assert document["exactness"] == {"level": "exact", "rows": 64, "max_abs_diff": 0.0}
    assert document["finish_reason"] == "stop"
    stats = document["stats"]
    assert stats["output_tokens"] == len(document["tokens"]) == len(document["copied"])
    assert stats["num_accepted_tokens"] == sum(document["copied"]) > len(LINE)
    assert stats["rounds"] < stats["output_tokens"]


def test_stats_go_to_standard_error(done: Done, engines: list[Engine]) -> None:
    out, err = done("generate", "--prompt", LINE * 2, "--stats")
    assert out == LINE * 2 + "\n"
    for name in ("rounds", "kept drafts", "longest match", "tokens per round", "tok/s"):
        assert f"{name}: " in err


@pytest.mark.parametrize("off", ["flag", "variable"])
def test_lookup_off_is_plain_decoding(
    done: Done, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    if off == "variable":
        monkeypatch.setenv("COPYAHEAD_LOOKUP", "0")
    flags = ["--no-lookup"] if off == "flag" else []
    out, _ = done("generate", "--prompt", LINE * 2, "--json", *flags)
    document = json.loads(out)
    assert document["text"] == LINE * 2
    assert document["stats"]["num_draft_tokens"] == 0
    assert document["stats"]["rounds"] == document["stats"]["output_tokens"]
    assert not any(document["copied"])
    assert engines[0].max_draft_tokens == 0


def test_copied_tokens_are_coloured_on_demand(done: Done, engines: list[Engine]) -> None:
    plain, _ = done("generate", "--prompt", LINE * 2)
    shown, _ = done("generate", "--prompt", LINE * 2, "--show-copied")
    assert "\x1b[" not in plain
    assert "\x1b[32m" in shown
    assert shown.replace("\x1b[32m", "").replace("\x1b[0m", "") == plain


def test_prompt_from_a_file_and_from_standard_input(
    done: Done, engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(LINE * 2)
    assert done("generate", "--file", str(path))[0] == LINE * 2 + "\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((LINE * 2).encode())))
    assert done("generate", "--file", "-")[0] == LINE * 2 + "\n"


def test_an_option_beats_its_variable(
    cli: Run, done: Done, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYAHEAD_MAX_TOKENS", "5")
    monkeypatch.setenv("COPYAHEAD_JSON", "1")
    assert json.loads(done("generate", "--prompt", LINE * 2)[0])["text"] == LINE[:5]
    out, _ = done("generate", "--prompt", LINE * 2, "--max-tokens", "7")
    assert json.loads(out)["text"] == LINE[:7]
    monkeypatch.setenv("COPYAHEAD_POLICY", "nonsense")
    assert cli("generate", "--prompt", LINE * 2)[0] == 2


@pytest.mark.parametrize("name", ["max-draft-tokens", "max-drafts"])
def test_the_longest_draft_by_both_names(
    cli: Run, done: Done, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    done("generate", "--prompt", LINE * 2, f"--{name}", "3")
    done("compare", "--workload", "short", "--policy", "fixed", f"--{name}=5")
    variable = f"COPYAHEAD_{name.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, "7")
    done("generate", "--prompt", LINE * 2)
    done("generate", "--prompt", LINE * 2, "--max-draft-tokens", "9")
    assert [engine.max_draft_tokens for engine in engines] == [3, 5, 7, 9]
    monkeypatch.setenv("COPYAHEAD_MAX_DRAFTS", "7")
    monkeypatch.setenv("COPYAHEAD_MAX_DRAFT_TOKENS", "8")
    status, _, err = cli("generate", "--prompt", LINE * 2)
    assert status == 2
    assert "COPYAHEAD_MAX_DRAFTS is the former name of COPYAHEAD_MAX_DRAFT_TOKENS" in err


BIASES = {
    "dotted": ["--logit-bias.{token}", "-100"],
    "dotted, in one": ["--logit-bias.{token}=-100"],
    "two": ["--logit-bias.{token}=-100", "--logit-bias.200=-5"],
    "JSON": ["--logit-bias", '{{"{token}": -100}}'],
    "JSON, in one": ['--logit-bias={{"{token}": -100, "200": 3}}'],
}
BIAS_VARIABLES = {
    "JSON": ("COPYAHEAD_LOGIT_BIAS", '{{"{token}": -100}}'),
    "by token": ("COPYAHEAD_LOGIT_BIAS_{token}", "-100"),
}


@pytest.mark.parametrize("name", BIASES)
def test_logit_bias_bars_a_token(done: Done, engines: list[Engine], name: str) -> None:
    flags = [flag.format(token=BYTES.encode(LINE)[0]) for flag in BIASES[name]]
    out, _ = done("generate", "--prompt", LINE * 2, "--max-tokens", "1", "--json", *flags)
    assert json.loads(out)["text"] != LINE[0]
    done("compare", "--workload", "short", "--max-tokens", "2", *flags)


@pytest.mark.parametrize("name", BIAS_VARIABLES)
def test_logit_bias_from_the_environment(
    done: Done, engines: list[Engine], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    variable, value = (text.format(token=BYTES.encode(LINE)[0]) for text in BIAS_VARIABLES[name])
    monkeypatch.setenv(variable, value)
    out, _ = done("generate", "--prompt", LINE * 2, "--max-tokens", "1", "--json")
    assert json.loads(out)["text"] != LINE[0]


# compare, demo


def test_compare_json_has_the_documented_keys(cli: Run, engines: list[Engine]) -> None:
    status, out, err = cli(
        "compare", "--workload", "short", "--policy", "window", "fixed", "--json"
    )
    document = json.loads(out)
    assert (status, err) == (0, "")
    assert list(document) == [
        "model", "settings", "exactness", "step_cost", "draft_model", "results",
    ]  # fmt: skip
    assert document["step_cost"]["1"] == 1.0
    assert [result["policy"] for result in document["results"]] == ["window", "fixed"]
    for result in document["results"]:
        assert list(result) == [
            "workload", "policy", "temperature", "prompt_tokens", "output_tokens", "plain_tps",
            "lookup_tps", "speedup", "limit", "rounds", "tokens_per_round", "num_draft_tokens",
            "num_accepted_tokens", "longest_match", "identical", "by_source", "num_model_passes",
            "num_model_skips", "model_seconds", "num_compared", "num_agreed",
        ]  # fmt: skip
        assert result["identical"] is True


def test_compare_table_shows_the_limit(cli: Run, engines: list[Engine]) -> None:
    status, out, _ = cli("compare", "--workload", "short", "--workload", "quote")
    assert status == 0
    assert "limit: " in out
    assert "exactness: exact up to 64 rows" in out
    assert out.count(" yes\n") == 2


def test_compare_fails_when_an_exact_text_differs(
    cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from copyahead.evaluate.workloads import workload

    # The quote workload, and a backend that decides otherwise as soon as it verifies a draft.
    use_backend(monkeypatch, lambda: backend(Flipping, workload("quote").prompt))
    status, out, _ = cli("compare", "--workload", "quote", "--policy", "fixed", "--json")
    assert json.loads(out)["results"][0]["num_draft_tokens"] > 0
    assert json.loads(out)["results"][0]["identical"] is False
    assert status == 1


def test_compare_without_exactness_reports_a_difference_only(
    cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from copyahead.evaluate.workloads import workload

    def near() -> FakeBackend:
        made = backend(Flipping, workload("quote").prompt)
        made.exactness = Exactness(level="near", rows=1, max_abs_diff=0.5)
        return made

    use_backend(monkeypatch, near)
    status, out, _ = cli("compare", "--workload", "quote", "--policy", "fixed", "--json")
    assert json.loads(out)["results"][0]["identical"] is False
    assert status == 0


def test_demo_compares_three_workloads(cli: Run, engines: list[Engine]) -> None:
    status, out, _ = cli("demo", "--show-copied")
    assert status == 0
    for name in ("list", "rename", "prose"):
        assert f"\n{name} " in out
    assert out.count(" yes\n") == 3


# The other commands


def test_policies_lists_every_knob(cli: Run, done: Done) -> None:
    status, out, _ = cli("policies")
    assert status == 0
    assert "hysteresis: " in out
    assert "max_skip" in out
    document = json.loads(done("policies", "--json")[0])
    assert {"hysteresis", "window", "single", "adaptive_k", "fixed"} <= {
        policy["name"] for policy in document["policies"]
    }


def test_warmup_says_how_long_it_took_and_for_how_many_kernels(done: Done) -> None:
    document = json.loads(done("warmup", "--json")[0])
    assert document["seconds"] >= 0
    assert document["kernels"] > 60


def test_help_names_every_command(cli: Run) -> None:
    status, out, _ = cli("--help")
    assert status == 0
    for name in ("generate", "compare", "demo", "probe", "policies", "warmup"):
        assert f" {name} " in out


# Wrong input: one sentence, exit status 2, nothing on standard output

WRONG = {
    "no prompt": (["generate"], "give --prompt TEXT or --file PATH"),
    "empty prompt": (["generate", "--prompt", ""], "prompt is empty"),
    "prompt and file": (["generate", "--prompt", "a", "--file", "b"], "exclude each other"),
    "no such file": (["generate", "--file", "/nonexistent/prompt"], "cannot be read"),
    "a directory": (["generate", "--file", "/"], "cannot be read"),
    "no such model": (["generate", "/nonexistent.gguf", "--prompt", "a"], "does not exist"),
    "not GGUF": (["generate", __file__, "--prompt", "a"], "is not a GGUF file"),
    "probe not GGUF": (["probe", __file__], "is not a GGUF file"),
    "demo not GGUF": (["demo", __file__], "is not a GGUF file"),
    "policy": (["generate", "--prompt", "a", "--policy", "x"], "policy 'x' is unknown"),
    "knob": (["compare", "--policy", "window:start=9,max_window=4"], "exclude each other"),
    "draft length": (
        ["generate", "--prompt", "a", "--max-draft-tokens", "0"],
        "--max-draft-tokens must be from 1 to 64, not 0; to draft nothing use --no-lookup",
    ),
    "its former name": (
        ["compare", "--max-drafts", "65"],
        "--max-draft-tokens must be from 1 to 64",
    ),
    "both names": (
        ["generate", "--prompt", "a", "--max-drafts", "3", "--max-draft-tokens", "4"],
        "--max-drafts is the former name of --max-draft-tokens: give one of them",
    ),
    "negative seed": (
        ["generate", "--prompt", "a", "--seed", "-1"],
        "--seed must be from 0 to 4294967295, not -1",
    ),
    "large seed": (
        ["generate", "--prompt", "a", "--seed", "4.3e9"],
        "--seed must be from 0 to 4294967295, not 4300000000",
    ),
    "a seed that is no number": (["generate", "--prompt", "a", "--seed", "x"], "--seed"),
    "max tokens": (
        ["generate", "--prompt", "a", "--max-tokens", "-1"],
        "--max-tokens must be 0 or",
    ),
    "trace after the policies": (["replay", "--policy", "single", "x"], "before the options"),
    "temperature": (["generate", "--prompt", "a", "--temperature", "-1"], "temperature must be"),
    "not a number": (["generate", "--prompt", "a", "--ctx", "x"], "--ctx"),
    "choice": (["generate", "--prompt", "a", "--kv-type", "f12"], "--kv-type"),
    "bias": (
        ["generate", "--prompt", "a", '--logit-bias={"x": 1}'],
        "must have token ids as keys, not 'x'",
    ),
    "dotted bias": (["compare", "--logit-bias.x", "1"], "must have token ids as keys, not 'x'"),
    "bias of too much": (["compare", "--logit-bias.5", "101"], "from -100 to 100, not 101.0"),
    "half a bias": (["generate", "--prompt", "a", '--logit-bias={"5'], "--logit-bias: "),
    "workload": (["compare", "--workload", "x"], "workload must be one of list"),
    "repeat": (["compare", "--repeat", "0"], "repeat must be"),
    "compare without lookup": (["compare", "--no-lookup"], "compare needs lookup"),
    "demo without lookup": (["demo", "--no-lookup"], "demo needs lookup"),
    "unknown option": (["generate", "--nonsense"], "Unknown option: --nonsense"),
    "unknown command": (["nonsense"], "Unknown command"),
    "one argument too many": (["generate", "a", "b"], "Unused"),
    "exact f16": (["probe", "--exact", "--kv-type", "f16", "--threads", "2"], "exclude each other"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_sentence_and_status_2(cli: Run, name: str) -> None:
    arguments, expected = WRONG[name]
    status, out, err = cli(*arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("copyahead: ")
    assert expected in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_prompt_that_is_not_utf8(cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"caf\xe9")
    assert "is not UTF-8 text" in cli("generate", "--file", str(path))[2]
    assert "not valid UTF-8" in cli("generate", "--prompt", "caf\udce9")[2]


def test_a_prompt_longer_than_the_context(cli: Run, engines: list[Engine]) -> None:
    status, out, err = cli("generate", "--prompt", "x" * 5000)
    assert (status, out) == (2, "")
    assert "prompt is 5000 tokens" in err


def test_a_failed_pass_is_status_1(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> FakeBackend:
        model = ToyLM(vocab_size=257)
        return FakeBackend(
            model, context_size=4096, num_slots=1, tokenizer=BYTES, fail_on=lambda *_: True
        )

    use_backend(monkeypatch, failing)
    status, _, err = cli("generate", "--prompt", "abc")
    assert status == 1
    assert err.startswith("copyahead: a target pass failed")


def test_an_interrupt_is_quiet(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Engine:
        raise KeyboardInterrupt

    monkeypatch.setattr(loading, "load", interrupted)
    assert cli("generate", "--prompt", "abc") == (130, "", "")


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "from copyahead.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "policies"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_command_line_starts_without_an_engine() -> None:
    code = (
        "import sys; from copyahead.cli import run; run(['--help']); "
        "sys.exit(str([m for m in ('llama_cpp', 'numba', 'copyahead.engine', 'numpy')"
        " if m in sys.modules] or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


# On the real model


@pytest.mark.model
@pytest.mark.slow
def test_generate_on_the_real_model_is_the_same_with_and_without_lookup(done: Done) -> None:
    prompt = "One fish, two fish, red fish, blue fish. " * 8 + "One fish,"
    arguments = (
        "generate",
        "--prompt",
        prompt,
        "--max-tokens",
        "80",
        "--json",
        "--policy",
        "fixed",
    )
    drafted = json.loads(done(*arguments, "--exact")[0])
    plain = json.loads(done(*arguments, "--exact", "--no-lookup")[0])
    assert drafted["tokens"] == plain["tokens"]
    assert drafted["stats"]["num_accepted_tokens"] > 40
    assert drafted["exactness"]["level"] == "exact"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_compare_on_the_real_model_is_identical(cli: Run, temperature: str) -> None:
    status, out, _ = cli(
        "compare", "--exact", "--workload", "quote", "--policy", "fixed", "--max-tokens", "60",
        "--json", "--temperature", temperature, "--seed", "1",
    )  # fmt: skip
    (result,) = json.loads(out)["results"]
    assert status == 0
    assert result["identical"] is True
    assert result["tokens_per_round"] > 1.5
