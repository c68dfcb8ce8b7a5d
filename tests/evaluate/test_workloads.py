"""The workloads: that they say what they mean, and that a small model copies where it should."""

from __future__ import annotations

from pathlib import Path

import pytest

import copyahead
from copyahead import Request, SamplingOptions
from copyahead.engine import Engine
from copyahead.errors import ConfigError
from copyahead.evaluate.workloads import COMMANDS, WORKLOADS, standard_library, workload

COPIES = ("list", "copy", "rename", "json")


def test_there_are_48_different_commands() -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) == 48


def test_names_and_kinds() -> None:
    assert list(WORKLOADS) == ["list", "copy", "rename", "json", "quote", "prose", "short"]
    for name in WORKLOADS:
        made = workload(name)
        assert made.name == name
        assert made.copies is (name not in {"prose", "short"})
        assert made == workload(name)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"workload must be one of list, .*, not 'lists'"):
        workload("lists")


@pytest.mark.parametrize("name", ["list", "copy", "quote"])
def test_what_is_begun_stands_in_the_prompt(name: str) -> None:
    prompt = workload(name).prompt
    begun = prompt[-24:]
    assert prompt.count(begun) >= 2


def test_rename_changes_the_identifier_and_nothing_else() -> None:
    first, second, third = workload("rename").prompt.split("```python\n")[1:]
    assert second.split("```")[0] == first.split("```")[0].replace("maxsize", "capacity")
    assert "maxsize" in first
    assert "maxsize" not in third
    assert first.split("```")[0].startswith(third.replace("limit", "maxsize"))


def test_a_module_without_a_source_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="no source file of its module 'nonsense'"):
        standard_library("nonsense")
    with pytest.raises(ConfigError, match="no source file of its module '_thread'"):
        standard_library("_thread")


@pytest.fixture(scope="module")
def engine(bundled: Path) -> Engine:
    return copyahead.load(bundled)


@pytest.mark.model
@pytest.mark.slow
def test_every_prompt_leaves_room_for_its_answer(engine: Engine) -> None:
    for name in WORKLOADS:
        made = workload(name)
        num_prompt_tokens = len(engine.backend.tokenizer.encode(made.prompt))
        assert num_prompt_tokens + made.max_tokens < 3500


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("name", COPIES)
def test_the_small_model_copies(engine: Engine, name: str) -> None:
    made = workload(name)
    request = Request(
        prompt=engine.backend.tokenizer.encode(made.prompt),
        sampling=SamplingOptions(),
        max_tokens=made.max_tokens,
        min_tokens=made.min_tokens,
        policy="fixed",
    )
    stats = engine.complete(request).stats
    assert stats.num_output_tokens >= 300
    assert stats.tokens_per_round > 4.0
