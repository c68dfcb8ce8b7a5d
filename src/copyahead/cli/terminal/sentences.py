"""What errors say on the command line: flags for fields, and what a lone word probably is."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Iterable
from pathlib import Path

from copyahead.errors import ModelError

_AFTER_A_WORD = ("must", "and", "holds", "needs")
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


def check_model_path(command: str, model: Path | None, *, has_text: bool = True) -> None:
    """Raise ModelError where `model` is neither a path nor a model's name, and say what it is.

    What looks like a path is left to those who open it. `has_text`: whether the command has what
    else it needs.
    """
    from copyahead.loading.catalog import find_named, unknown

    word = "" if model is None else str(model)
    if not word or _looks_like_a_path(word) or find_named(word) is not None:
        return
    if not has_text or len(word.split()) > 1:
        raise ModelError(
            f"{word!r} is neither a file nor a model's name, so it is not the model: for a text to "
            f"continue write copyahead generate --prompt {shlex.quote(word)}"
        )
    raise ModelError(f"{word!r} is neither a file nor a model's name: {unknown(word, command)}")


def unknown_command(word: str, commands: Collection[str]) -> str:
    """What to say of `word` where a command should stand."""
    if Path(word).expanduser().is_file():
        path = shlex.quote(word)
        return f"{word} is a file and no command: to serve that model write copyahead serve {path}"
    known = f"the commands are {', '.join(commands)}"
    close = difflib.get_close_matches(word, commands, 1)
    if close:
        return f"Unknown command {word!r}: did you mean {close[0]}? {known[0].upper()}{known[1:]}"
    return (
        f"Unknown command {word!r}: for a text to continue write "
        f"copyahead generate --prompt {shlex.quote(word)}; {known}"
    )


def _looks_like_a_path(word: str) -> bool:
    return "/" in word or "\\" in word or word.endswith(".gguf") or Path(word).exists()
