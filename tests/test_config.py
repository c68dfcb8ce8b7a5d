"""Options and their ranges: what each takes, what it refuses, and in which words."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest

import copyahead
from copyahead.config import Limits, LookupOptions, ModelOptions
from copyahead.engine.request import Request
from copyahead.errors import ConfigError, RequestError
from copyahead.ranges import Number, Range, check_ranges, numbers_of
from copyahead.sampling import SamplingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Some:
    whole: Annotated[int, Range(-1, 2**24)] = 1
    optional: Annotated[int | None, Range(0)] = None
    real: Annotated[float, Range(0.5, 4.0, hint="take less")] = 1.0
    above: Annotated[float, Range(0.0, 1.0, above=True)] = 1.0
    endless: Annotated[float, Range(0.0, above=True)] = 1.0
    free: int = -5

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class More(Some):
    more: Annotated[int, Range(1, 3), "how many more"] = 1


def some(**values: Any) -> Some:
    return More(**values)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whole", -1), ("whole", 0), ("whole", 2**24 - 1), ("whole", 2**24),
        ("optional", None), ("optional", 0), ("optional", 1), ("optional", 10**400),
        ("real", 0.5), ("real", 4.0), ("real", 4), ("real", 1),
        ("above", 5e-324), ("above", 1.0), ("above", 1), ("endless", 1e300),
        ("more", 1), ("more", 3), ("free", 10**9),
    ],
)  # fmt: skip
def test_what_lies_in_a_range_is_taken(name: str, value: Any) -> None:
    assert getattr(some(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("whole", -2, "whole must be from -1 to 16777216, not -2"),
        ("whole", 2**24 + 1, "whole must be from -1 to 16777216, not 16777217"),
        ("whole", 1.0, "whole must be a whole number from -1 to 16777216, not 1.0"),
        ("whole", math.nan, "whole must be a whole number from -1 to 16777216, not nan"),
        ("whole", True, "whole must be a whole number from -1 to 16777216, not True"),
        ("whole", "1", "whole must be a whole number from -1 to 16777216, not '1'"),
        ("whole", None, "whole must be a whole number from -1 to 16777216, not None"),
        ("optional", -1, "optional must be 0 or more, not -1"),
        ("optional", False, "optional must be a whole number, 0 or more, not False"),
        ("optional", math.inf, "optional must be a whole number, 0 or more, not inf"),
        ("real", 0.4999, "real must be from 0.5 to 4, not 0.4999; take less"),
        ("real", 4.0001, "real must be from 0.5 to 4, not 4.0001; take less"),
        ("real", math.nan, "real must be from 0.5 to 4, not nan; take less"),
        ("real", -math.inf, "real must be from 0.5 to 4, not -inf; take less"),
        ("real", True, "real must be a number from 0.5 to 4, not True"),
        ("real", None, "real must be a number from 0.5 to 4, not None"),
        ("real", [1.0], "real must be a number from 0.5 to 4, not [1.0]"),
        ("above", 0.0, "above must be above 0 and at most 1, not 0.0"),
        ("above", -5e-324, "above must be above 0 and at most 1, not -5e-324"),
        ("above", 1.5, "above must be above 0 and at most 1, not 1.5"),
        ("endless", 0, "endless must be above 0, not 0"),
        ("endless", math.inf, "endless must be a finite number, above 0, not inf"),
        ("endless", math.nan, "endless must be above 0, not nan"),
        ("endless", "x", "endless must be a number, above 0, not 'x'"),
        ("more", 0, "more must be from 1 to 3, not 0"),
        ("more", 4, "more must be from 1 to 3, not 4"),
    ],
)
def test_what_does_not_is_refused_in_one_sentence(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        some(**{name: value})
    assert str(caught.value) == sentence


def test_a_class_has_the_ranges_of_its_bases_too() -> None:
    names = ["whole", "optional", "real", "above", "endless", "more"]
    assert [number.name for number in numbers_of(More)] == names
    assert numbers_of(More)[-1] == Number("more", Range(1, 3), True, False, "how many more")


def test_a_request_names_its_field() -> None:
    with pytest.raises(RequestError, match="seed must be from 0 to 4294967295, not -1") as caught:
        SamplingOptions(seed=-1)
    assert caught.value.field == "seed"
    with pytest.raises(RequestError, match=r"logit_bias\[3\] must be from -100 to 100") as caught:
        SamplingOptions(logit_bias={3: -101})
    assert caught.value.field == "logit_bias[3]"


# Every option that there is

_OPTIONS = re.compile(r"^class (\w*(?:Options|Flags|Limits|Knobs))\b", re.MULTILINE)


def option_classes() -> Iterator[type]:
    root = Path(copyahead.__file__).parent
    for path in sorted(root.rglob("*.py")):
        names = _OPTIONS.findall(path.read_text(encoding="utf-8"))
        parts = path.relative_to(root.parent).with_suffix("").parts
        found = (getattr(importlib.import_module(".".join(parts)), name) for name in names)
        # What the server reads from JSON has checks of its own.
        yield from (kind for kind in found if isinstance(kind, type) and is_dataclass(kind))


OPTIONS = [*option_classes(), Request]


def numeric(kind: type) -> Iterator[str]:
    """The fields of `kind` that hold one number, or none."""
    for name, hint in get_type_hints(kind).items():
        kinds = set(get_args(hint)) if get_origin(hint) is UnionType else {hint}
        if kinds & {int, float}:
            yield name


def sentences(kind: type) -> dict[str, str]:
    """The docstrings of the fields of `kind` and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if not base.__module__.startswith("copyahead."):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, after in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[field.target.id] = str(after.value.value)
    return found


def test_the_classes_of_options_are_found() -> None:
    names = {kind.__name__ for kind in OPTIONS}
    assert {"ModelOptions", "LookupFlags", "Limits", "EngineOptions", "HttpOptions"} <= names
    assert {"SamplingOptions", "ReplayOptions", "PricedKnobs", "WindowKnobs"} <= names
    assert len(names) > 18


@pytest.mark.parametrize("kind", OPTIONS, ids=lambda kind: kind.__name__)
def test_every_number_has_a_range_and_a_sentence(kind: type) -> None:
    ranged = {number.name: number for number in numbers_of(kind)}
    assert [name for name in numeric(kind) if name not in ranged] == []
    told = sentences(kind)
    assert [name for name, n in ranged.items() if not (n.about or told.get(name))] == []


@pytest.mark.parametrize(
    "kind", [kind for kind in OPTIONS if kind is not Request], ids=lambda kind: kind.__name__
)
def test_every_range_is_checked_at_both_ends(kind: type) -> None:
    defaults = {field.name: field.default for field in fields(kind)}
    kind()
    for number in numbers_of(kind):
        low, high = number.range.low, number.range.high
        step = 1 if number.whole else 1e-6
        outside = [low - step, *([low] if number.range.above else [])]
        outside += [high + step] if high is not None else [math.nan]
        wrong: list[Any] = [*outside, True, "1", *([] if number.optional else [None])]
        for value in wrong:
            with pytest.raises((ConfigError, RequestError), match=number.name):
                kind(**{number.name: value})
        inside = [low + step, *([] if number.range.above else [low])]
        inside += [high - step, high] if high is not None else []
        for value in [*inside, *([None] if number.optional else []), defaults[number.name]]:
            taken_or_excluded(kind, number.name, value)


def taken_or_excluded(kind: type, name: str, value: object) -> None:
    """In its range; two options may still exclude each other, or one need another."""
    try:
        assert getattr(kind(**{name: value}), name) == value
    except ConfigError as error:
        needed = "draft_model|--drafts|--vs|recorded_times"
        assert re.search(f"exclude each other|needs ({needed}):", str(error))  # noqa: PT017


def test_numbers_that_the_defaults_are() -> None:
    assert (ModelOptions().ctx, LookupOptions().max_draft_tokens) == (4096, 64)
    assert (Limits().max_body_mb, Limits().max_body_bytes) == (None, None)
    assert Limits(max_body_mb=1).max_body_bytes == 1_000_000


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("device", "cpu", "file"),
        ("dtype", "float32", "file"),
        ("kv_type", "f16", "folder"),
        ("gpu_layers", 1, "folder"),
    ],
)
def test_options_of_the_other_kind_of_model_are_refused(name: str, value: Any, kind: str) -> None:
    options = ModelOptions(**{name: value})
    refused, taken = options.check_file, options.check_folder
    if kind == "folder":
        refused, taken = taken, refused
    taken()
    with pytest.raises(ConfigError, match=rf"^{name} is for .*: leave it out"):
        refused()
