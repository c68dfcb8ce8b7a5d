"""The options of drafting inside vLLM: `COPYAHEAD_` variables, and a file that one of them names.

A variable wins over the file. The file has the same names in small letters, as TOML or JSON.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from copyahead.config import LookupOptions, SharedOptions
from copyahead.errors import ConfigError
from copyahead.ranges import Range, check_ranges
from copyahead.step_cost import StepCost

PREFIX = "COPYAHEAD_"
FILE = f"{PREFIX}CONFIG"
MEASURED = "measured"

_YES, _NO = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off", ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """What drafting inside vLLM adds to the options of drafting."""

    costs: str = MEASURED
    """What a pass costs: `measured`, or what every further token of a pass adds, in passes of one
    token (`0.02`), or passes by their tokens (`1:1,8:1.1,64:1.9`)."""
    vllm_hook: bool = False
    """Stand beside vLLM's own drafting, as a plugin: see docs/vllm.md."""
    vllm_uniform: bool = False
    """Draft the same number of tokens for every request of a step, or for none, so that passes keep
    the one size of full CUDA graphs."""
    vllm_kept: Annotated[int, Range(0, 4096)] = 16
    """Texts of requests that have left, kept for a next turn or a request that comes back."""
    vllm_seeds: bool = True
    """With the hook: a request with a seed writes what it writes without drafts."""
    vllm_chain: Annotated[int | None, Range(1, 64)] = None
    """With the hook and a draft model, MTP or EAGLE: most tokens that it drafts in a row;
    `num_speculative_tokens` when not given."""
    vllm_log_seconds: Annotated[float, Range(0.0)] = 60.0
    """Seconds between two lines of counters in the log; 0 writes none."""

    def __post_init__(self) -> None:
        check_ranges(self)
        parse_costs(self.costs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All options of drafting inside vLLM."""

    lookup: LookupOptions = field(default_factory=LookupOptions)
    shared: SharedOptions = field(default_factory=SharedOptions)
    vllm: VllmOptions = field(default_factory=VllmOptions)


def parse_costs(text: str) -> StepCost | None:
    """The step cost that `text` states; None where it is to be measured."""
    if text.strip() == MEASURED:
        return None
    wrong = ConfigError(
        f"costs must be {MEASURED}, the cost of a further token (0.02), or passes by their tokens "
        f"(1:1,8:1.1,64:1.9), not {text!r}"
    )
    try:
        if ":" not in text:
            row_cost = float(text)
            if not 0.0 <= row_cost <= 10.0:
                raise wrong
            return StepCost.linear(row_cost)
        pairs = (part.partition(":") for part in text.split(","))
        points = {int(rows): float(time) for rows, _, time in pairs}
    except ValueError:
        raise wrong from None
    if 1 not in points or min(points) < 1 or not all(0.0 < t < 1e6 for t in points.values()):
        raise wrong
    return StepCost(points)


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process. Raises ConfigError where one is wrong or unknown."""
    named = environment.get(FILE)
    values = _read_file(Path(named).expanduser()) if named else {}
    unknown = set(values) - {name for kind in _KINDS for name in _names(kind)}
    if unknown:
        raise ConfigError(
            f"{sorted(unknown)[0]} in {named} is no option: the options are "
            f"{', '.join(name for kind in _KINDS for name in _names(kind))}"
        )
    for kind in _KINDS:
        for name, hint in get_type_hints(kind).items():
            given = environment.get(PREFIX + name.upper())
            if given is not None:
                values[name] = _read(name, hint, given)
    lookup, shared, vllm = (
        kind(**{name: values[name] for name in _names(kind) if name in values}) for kind in _KINDS
    )
    return Settings(lookup=lookup, shared=shared, vllm=vllm)


_KINDS: tuple[type[Any], ...] = (LookupOptions, SharedOptions, VllmOptions)


def _names(kind: type[Any]) -> list[str]:
    return [entry.name for entry in fields(kind)]


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{FILE} names {path}, which cannot be read: {reason}") from None
    try:
        if path.suffix == ".json":
            found = msgspec.json.decode(text)
        else:
            found = tomllib.loads(text)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise ConfigError(f"{FILE} names {path}, which is not valid {kind}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{FILE} names {path}, which must hold options by name")
    return found


def _read(name: str, hint: Any, text: str) -> Any:
    """`text` as the type of the option `name`; as it is where it is none of that type's."""
    base = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    kinds = [kind for kind in get_args(base) or (base,) if kind is not type(None)]
    if kinds == [bool]:
        word = text.strip().lower()
        if word not in _YES | _NO:
            raise ConfigError(f"{PREFIX}{name.upper()} must be 1 or 0, not {text!r}")
        return word in _YES
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                return text
    return text
