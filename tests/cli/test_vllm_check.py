"""`copyahead vllm-check` without vLLM: what it asks, how it is told, and what it shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from copyahead.cli import run, vllm_check
from copyahead.errors import ConfigError
from copyahead.evaluate import vllm_methods
from copyahead.evaluate.vllm_methods import Answered, Plan, Prompt, run_methods


class FakeProcess:
    """An engine that writes the same tokens at its method's own speed."""

    made: list[str] = []  # noqa: RUF012 - emptied by the fixture
    ran: list[tuple[str, str]] = []  # noqa: RUF012

    def __init__(self, plan: Plan, method: str) -> None:
        self.method = method
        self.made.append(method)

    def run(self, prompts: Sequence[Prompt], plan: Plan) -> Answered:
        self.ran.append((prompts[0].name, self.method))
        seconds = {"none": 2.0, "copyahead": 1.0}.get(self.method, 1.5)
        tokens = [[1, 2, 3, 9 if self.method == "suffix" else 4]] * len(prompts)
        return Answered(seconds=seconds, tokens=tokens, num_draft_tokens=3, num_accepted_tokens=2)

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    FakeProcess.made.clear()
    FakeProcess.ran.clear()
    monkeypatch.setattr(vllm_methods, "EngineProcess", FakeProcess)
    return FakeProcess


def plan(*methods: str, **more: Any) -> Plan:
    return Plan(engine={"model": "m"}, methods=methods, **more)


def test_methods_take_turns_and_are_held_against_none(processes: type[FakeProcess]) -> None:
    prompts = [Prompt(name="a", text="a", max_tokens=4), Prompt(name="b", text="b", max_tokens=4)]
    results = run_methods(plan("none", "suffix", "copyahead"), prompts, lambda *_: None)
    order = ["none", "suffix", "copyahead", "copyahead", "suffix", "none"]
    assert processes.ran == [(name, method) for name in "ab" for method in order]
    assert processes.made == ["none", "suffix", "copyahead"]
    assert [(r.method, r.speedup, r.identical) for r in results[:3]] == [
        ("none", 1.0, True),
        ("suffix", 1.333, False),
        ("copyahead", 2.0, True),
    ]


def test_one_at_a_time_loads_each_engine_for_its_turn(processes: type[FakeProcess]) -> None:
    prompts = [Prompt(name="a", text="a", max_tokens=4)]
    run_methods(plan("none", "copyahead", one_at_a_time=True), prompts, lambda *_: None)
    assert processes.made == ["none", "copyahead", "copyahead", "none"]


def test_the_command_prints_a_table_and_json(
    processes: type[FakeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["vllm-check", "m", "--workload", "short", "--method", "none", "copyahead", "-q"]
    assert run(command) == 0
    assert "copyahead" in capsys.readouterr().out
    assert run([*command, "--json", "--engine", '{"dtype": "float32"}']) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] == {"model": "m", "dtype": "float32"}
    assert [row["method"] for row in document["results"]] == ["none", "copyahead"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--method", "nrgam"], "must be one of none, ngram, suffix, copyahead"),
        (["--method", "beside"], "method beside needs --draft-model"),
        (["--engine", "[1]"], "--engine must be a JSON object, not '[1]'"),
        (["--together", "0"], "must be from 1 to 1024, not 0"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    processes: type[FakeProcess],
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    sentence: str,
) -> None:
    assert run(["vllm-check", "m", "--workload", "short", *more]) == 2
    assert sentence in capsys.readouterr().err
    assert processes.made == []


def test_a_trace_is_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    messages = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two, " * 30},
        {"role": "user", "content": "And then?"},
        {"role": "assistant", "content": "Three."},
    ]
    file.write_bytes(msgspec.json.encode({"messages": messages}))
    options = vllm_check.VllmCheckOptions(trace=(str(file),), max_tokens=40)
    first, second = vllm_check.prompts_of(options)
    assert (first.name, first.text, first.max_tokens) == ("chats 1", "One?", 40)
    assert second.text.startswith("One?Two, ")
    assert second.text.endswith("And then?")


def test_without_a_trace_all_workloads_are_asked() -> None:
    names = [prompt.name for prompt in vllm_check.prompts_of(vllm_check.VllmCheckOptions())]
    assert names[0] == "list"
    assert len(names) == 7


def test_a_missing_vllm_is_one_sentence() -> None:
    """The process that should load it says so."""
    with pytest.raises(Exception, match="vllm is not installed: pip install 'copyahead") as raised:
        vllm_methods.EngineProcess(plan("none"), "none")
    assert not isinstance(raised.value, ConfigError)


def test_without_vllm_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm_methods, "find_spec", lambda _: None)
    assert run(["vllm-check", "some/model"]) == 2
    error = capfd.readouterr().err
    assert "pip install 'copyahead[vllm]'" in error
    assert "Error" not in error
