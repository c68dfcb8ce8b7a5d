"""docs/architecture.md: its examples run, its files exist, and its picture of the tree is whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import copyahead
from copyahead.config import LookupOptions
from copyahead.engine import Engine, Request
from copyahead.loading import make_engine
from copyahead.policies import describe, parse_policy, registry
from copyahead.testing import FakeBackend, ToyLM

ROOT = Path(__file__).parents[1]
PACKAGE = Path(copyahead.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROMPT = [1, 2, 3, 4, 1, 2]


def block(name: str) -> str:
    """The example that begins with the comment `# name`."""
    (found,) = re.findall(rf"```python\n(# {re.escape(name)}\n.*?)```", PAGE, re.S)
    return str(found)


def module(name: str, names: Mapping[str, Any] | None = None) -> ModuleType:
    """The example run as a module, so that its dataclasses find their annotations."""
    spec = spec_from_loader(f"example_{Path(name).stem}", loader=None)
    assert spec is not None
    made = module_from_spec(spec)
    vars(made).update(names or {})
    sys.modules[made.__name__] = made
    exec(compile(block(name), name, "exec"), vars(made))
    return made


def rounds_of(engine: Engine, request: Request) -> tuple[list[int], int]:
    """The tokens of an answer, and how many rounds it took. The books agree after every step."""
    chunks: list[Any] = []
    handle = engine.submit(request, chunks.append)
    while not handle.done:
        engine.step()
        engine.check()
    return [token for chunk in chunks for token in chunk.tokens], handle.stats.rounds


def test_the_policy_of_the_page_drafts_and_changes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = dict(registry.POLICIES)
    monkeypatch.setattr(registry, "POLICIES", entries)
    example = vars(module("policies/every_other.py"))
    module("policies/registry.py", {**example, **vars(registry)})

    assert str(parse_policy("every_other:key=2")) == "every_other:key=2"
    assert [knob.name for knob in describe()[-1].knobs] == ["key", "max_draft_tokens"]

    request = Request(prompt=PROMPT, max_tokens=60)
    plain, plain_rounds = rounds_of(Engine(FakeBackend(ToyLM(seed=3))), request)
    lookup = LookupOptions(policy="every_other:key=2")
    drafted, rounds = rounds_of(make_engine(FakeBackend(ToyLM(seed=3)), lookup=lookup), request)
    assert (drafted, rounds < plain_rounds) == (plain, True)


def test_the_source_of_the_page_drafts_and_changes_no_text() -> None:
    phrases = module("drafters/phrases.py").PhraseDrafter
    request = Request(prompt=[1], max_tokens=12)
    backend = FakeBackend(ToyLM(script=[5, 6, 7, 8, 9, 10, 5, 6, 7, 8, 9, 10]))
    plain, plain_rounds = rounds_of(Engine(FakeBackend(backend.model)), request)
    # One phrase is what the model writes, one is what it does not.
    drafter = phrases([[5, 6, 7, 8, 9, 10], [9, 10, 4, 4]])
    drafted, rounds = rounds_of(Engine(backend, make_drafter=lambda *_: drafter), request)
    assert (drafted, plain_rounds, rounds < 8) == (plain, 12, True)


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|md))", PAGE))
    examples = {"policies/every_other.py", "drafters/phrases.py"}
    assert len(named) > 40
    homes = [ROOT, PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir())]
    missing = [name for name in named - examples if not any((h / name).exists() for h in homes)]
    assert missing == []


def test_every_function_that_the_page_names_is_in_its_file() -> None:
    pairs = re.findall(r"`([\w/]+\.py)` \(`(\w+)`\)", PAGE)
    assert len(pairs) >= 2
    for file, name in pairs:
        assert re.search(rf"def {name}\(", (PACKAGE / file).read_text(encoding="utf-8")), (
            file,
            name,
        )


def test_the_tree_of_the_page_is_the_tree() -> None:
    table = PAGE.partition("## The tree")[2].partition("\n## ")[0]
    cells = " ".join(re.findall(r"^\| ([^|]+) \|", table, re.M))
    shown = set(re.findall(r"`(\w+)/?`", cells))
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    children = packages | {path.stem for path in PACKAGE.glob("*.py")}
    private = {name for name in children if name.startswith("_")}
    assert shown == children - private


def test_the_layers_of_the_page_are_those_that_are_checked() -> None:
    shown = PAGE.partition("## The import rule")[2].partition("```")[2].partition("```")[0]
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    checked = settings.partition("layers = [")[2].partition("]")[0]

    def layers(text: str) -> list[set[str]]:
        lines = [set(re.findall(r"[a-z_]{3,}", line)) for line in text.splitlines()]
        left = [line - {"__main__", "_version"} for line in lines]
        return [line for line in left if line]

    assert layers(shown) == layers(checked)


def test_no_folder_is_crowded() -> None:
    for folder in [PACKAGE, *(path for path in PACKAGE.rglob("*") if path.is_dir())]:
        assert len(list(folder.glob("*.py"))) <= 15, folder
