"""Errors name fields; on the command line they name the flags that set them."""

from __future__ import annotations

import re
from collections.abc import Iterable

_AFTER_A_WORD = ("must", "and", "holds")
"""What follows a field's name where a sentence begins with it."""
_WORDS = frozenset({"prompt", "file", "html"})
"""Fields whose names are those of the things themselves."""


def with_flags(sentence: str, flags: Iterable[str]) -> str:
    """`sentence` with the flag for every field that one of `flags` sets.

    Options of a policy are no flags: what is said of them stays.
    """
    if re.match(r"policy \w", sentence):
        return sentence
    for flag in flags:
        field = flag[2:].replace("-", "_")
        if "_" in field:
            # Of a mapping, the key: `logit_bias[5]` is set by `--logit-bias.5`.
            sentence = re.sub(rf"(?<![\w-]){field}\[(\w+)\]", rf"{flag}.\1", sentence)
            sentence = re.sub(rf"(?<![\w-]){field}(?![\w=])", flag, sentence)
        elif field not in _WORDS:
            follows = "|".join(_AFTER_A_WORD)
            sentence = re.sub(rf"^{field}(?= (?:{follows}|\')\b| \')", flag, sentence)
    return sentence
