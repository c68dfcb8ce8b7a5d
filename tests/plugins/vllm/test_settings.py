"""Options of drafting inside vLLM: variables, and a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from copyahead.errors import ConfigError
from copyahead.plugins.vllm.settings import Settings, parse_costs, read_settings


def test_nothing_given_is_the_defaults() -> None:
    assert read_settings({}) == Settings()


def test_a_variable_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "copyahead.toml"
    lines = ('policy = "window"', "max_draft_tokens = 9", "shared = true", "vllm_log_seconds = 5")
    file.write_text("\n".join(lines))
    given = {"COPYAHEAD_CONFIG": str(file), "COPYAHEAD_MAX_DRAFT_TOKENS": "12"}
    settings = read_settings(given)
    assert (settings.lookup.policy, settings.lookup.max_draft_tokens) == ("window", 12)
    assert (settings.shared.shared, settings.vllm.vllm_log_seconds) == (True, 5)


def test_the_file_may_be_json(tmp_path: Path) -> None:
    file = tmp_path / "copyahead.json"
    file.write_text(json.dumps({"costs": "0.02", "vllm_hook": True, "vllm_chain": 3}))
    vllm = read_settings({"COPYAHEAD_CONFIG": str(file)}).vllm
    assert (vllm.costs, vllm.vllm_hook, vllm.vllm_chain) == ("0.02", True, 3)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"COPYAHEAD_MAX_DRAFT_TOKENS": "many"}, "max_draft_tokens must be a whole number from 1"),
        ({"COPYAHEAD_SHARED": "perhaps"}, "COPYAHEAD_SHARED must be 1 or 0, not 'perhaps'"),
        ({"COPYAHEAD_COSTS": "cheap"}, "costs must be measured, the cost of a further token"),
        ({"COPYAHEAD_CONFIG": "/nowhere/c.toml"}, "cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_settings(given)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("c.toml", "policy = ", "is not valid TOML"),
        ("c.json", "[1]", "must hold options by name"),
        ("c.json", "{", "is not valid JSON"),
        ("c.toml", "polcy = 1", "is no option: the options are lookup, policy"),
        ("c.toml", "max_draft_tokens = 900", "max_draft_tokens must be from 1 to 64, not 900"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_settings({"COPYAHEAD_CONFIG": str(file)})
    assert sentence in str(raised.value)


def test_costs_are_points_or_a_cost_a_token() -> None:
    assert parse_costs("measured") is None
    linear, points = parse_costs("0.5"), parse_costs("1:2, 4:4,8:8")
    assert linear is not None
    assert points is not None
    assert (linear(3), points(4), points(6)) == (2.0, 2.0, 3.0)


@pytest.mark.parametrize("text", ["", "-1", "nan", "2:1", "1:0", "1:1,0:2", "1:1,x:2", "1:inf"])
def test_other_costs_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="costs must be"):
        parse_costs(text)
