"""The range of a numeric option, declared with its type, and the one check of it.

    ctx: Annotated[int, Range(64, 2**24)] = 4096

`int` takes whole numbers only, `float` takes both, and None passes where the type has it. True and
False are no numbers here, and neither nan nor infinity lies in any range.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from copyahead.errors import ConfigError

MAX_SHOWN = 40
"""Characters of a wrong value that an error repeats."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`, both included."""

    low: float
    high: float | None = None
    """None: there is no largest one."""
    above: bool = False
    """Leave `low` itself out."""
    hint: str = ""
    """What to do instead; it ends the sentence about a number outside."""

    def __contains__(self, value: float) -> bool:
        if not -math.inf < value < math.inf or value < self.low:
            return False
        return not (self.above and value == self.low) and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = _shown(self.low)
        if self.high is None:
            return f"above {low}" if self.above else f"{low} or more"
        high = _shown(self.high)
        return f"above {low} and at most {high}" if self.above else f"from {low} to {high}"

    def fault(self, name: str, value: object, *, whole: bool) -> str | None:
        """What is wrong with `value` for the option `name`, in one sentence; None if nothing is."""
        kind = "a whole number" if whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            return f"{name} must be {self.among(kind)}, not {_said(value)}"
        if value in self:
            return None
        # Of a range without an end, infinity would read as if it were in it.
        endless = self.high is None and value == math.inf
        allowed = self.among("a finite number") if endless else self
        return f"{name} must be {allowed}, not {_said(value)}{self.hint and f'; {self.hint}'}"

    def among(self, kind: str) -> str:
        """The range as part of a sentence, after what `kind` of number it takes."""
        return f"{kind}{',' if self.high is None else ''} {self}"


@dataclass(frozen=True, slots=True)
class Number:
    """A field that has a range."""

    name: str
    range: Range
    whole: bool
    optional: bool
    """Whether the field may be None."""
    about: str
    """The sentence that stands behind the range, for options that are not flags; may be empty."""

    def fault(self, value: object) -> str | None:
        """What is wrong with `value`, in one sentence; None if nothing is."""
        if value is None and self.optional:
            return None
        return self.range.fault(self.name, value, whole=self.whole)


def numbers_of(kind: type) -> tuple[Number, ...]:
    """The fields of `kind` that have a range, in order, those of its bases first."""
    return _numbers_of(kind)


@cache
def _numbers_of(kind: type) -> tuple[Number, ...]:
    hints = get_type_hints(kind, include_extras=True)
    found = (_number(name, hint) for name, hint in hints.items())
    return tuple(number for number in found if number is not None)


def _number(name: str, hint: Any) -> Number | None:
    if get_origin(hint) is not Annotated:
        return None
    base, *extras = get_args(hint)
    ranges = [extra for extra in extras if isinstance(extra, Range)]
    if not ranges:
        return None
    kinds = get_args(base) or (base,)
    about = " ".join(extra for extra in extras if isinstance(extra, str))
    return Number(name, ranges[0], float not in kinds, NoneType in kinds, about)


def _config_error(sentence: str, _field: str) -> Exception:
    return ConfigError(sentence)


def check_ranges(options: object, error: Callable[[str, str], Exception] = _config_error) -> None:
    """Raise `error(sentence, field)` for the first field of `options` that is out of its range."""
    for number in numbers_of(type(options)):
        fault = number.fault(getattr(options, number.name))
        if fault is not None:
            raise error(fault, number.name)


def _said(value: object) -> str:
    """As it was given, cut where it goes on for long."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _shown(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else f"{number:g}"
