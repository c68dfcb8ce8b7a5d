"""What `--cost` names: costs of a row, the staircase, or the curve that a probe measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from copyahead.errors import ConfigError
from copyahead.step_cost import StepCost
from copyahead.traces.runs import Cost

STAIR = {1: 1.0, 2: 1.44, 3: 2.0, 4: 2.07, 5: 2.65, 8: 3.75, 16: 6.6, 24: 10.2, 32: 12.3}
"""A measured CPU's curve, on which four rows cost little more than three."""


def parse_costs(texts: Sequence[str]) -> list[Cost]:
    """Each a number (T(n) = 1 + cost (n - 1)), `stair`, or a JSON file with a step cost; several
    may be joined by commas. Raises ConfigError.
    """
    words = [word.strip() for text in texts for word in text.split(",")]
    costs = [_cost(word) for word in words if word]
    if not costs:
        raise ConfigError("cost must name at least one cost, such as 0.03")
    names = [cost.name for cost in costs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"cost {twice} is given twice: leave one out")
    return costs


def _cost(word: str) -> Cost:
    if word == "stair":
        return Cost(word, StepCost({**STAIR, 64: 2 * STAIR[32]}))
    try:
        row_cost = float(word)
    except ValueError:
        return Cost(Path(word).stem, _from_file(Path(word).expanduser()))
    if not 0.0 <= row_cost <= 100.0:
        raise ConfigError(f"cost of a row must be from 0 to 100 steps, not {word}")
    return Cost(f"{row_cost:g}", StepCost.linear(row_cost), row_cost)


def _from_file(path: Path) -> StepCost:
    try:
        document: Any = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"cost {path} is neither a number, nor stair, nor a file that can be read "
            f"({error.strerror})"
        ) from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"cost file {path} is not JSON ({error})") from None
    table = document.get("step_cost", document) if isinstance(document, dict) else None
    try:
        points = {int(rows): float(time) for rows, time in table.items()}  # type: ignore[union-attr]
        return StepCost(points)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f'cost file {path} has no step cost: it must hold {{"step_cost": {{"1": 1.0, ...}}}}, '
            "as copyahead probe --json prints it"
        ) from None
