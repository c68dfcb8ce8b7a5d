"""docs/vllm.md says what there is. Its `--speculative-config`s run in `test_engine.py`."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from copyahead.cli import make_app
from copyahead.config import LookupOptions, SharedOptions
from copyahead.plugins.vllm.beside import METHODS
from copyahead.plugins.vllm.settings import PREFIX, VllmOptions

PAGE = (Path(__file__).parents[3] / "docs" / "vllm.md").read_text(encoding="utf-8")


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "all" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def test_the_table_has_every_option_and_its_default() -> None:
    table = PAGE.partition("## Options")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| .* \| `?([\w.]+)`? \|$", table, re.M)
    expected = [
        (PREFIX + entry.name.upper(), shown(entry.default))
        for kind in (LookupOptions, SharedOptions, VllmOptions)
        for entry in fields(kind)
    ]
    assert sorted(rows) == sorted(expected)


def test_the_settings_of_vllm_are_json_that_names_what_there_is() -> None:
    found = [msgspec.json.decode(c) for c in re.findall(r"--speculative-config '({.*?})'", PAGE)]
    assert [config["method"] for config in found] == ["custom_class", "draft_model"]
    module, _, name = found[0]["model"].rpartition(".")
    assert (module, name) == ("copyahead.plugins.vllm", "Proposer")
    assert found[1]["method"] in METHODS


def test_copyaheads_commands_are_as_written() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("copyahead ")]
    assert len(lines) == 2
    for line in lines:
        command, *_ = make_app().parse_args(
            shlex.split(line)[1:], exit_on_error=False, print_error=False
        )
        assert callable(command)


@pytest.mark.parametrize("target", ["test-vllm", "bench-vllm"])
def test_the_makefile_has_what_the_page_names(target: str) -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text(encoding="utf-8")
    assert f"make {target}" in PAGE
    assert re.search(rf"^{target}:", makefile, re.M)
