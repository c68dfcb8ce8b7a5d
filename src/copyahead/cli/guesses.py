"""What a lone word probably is: a text, a model's name, a model's file. The error says so."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Collection
from pathlib import Path

from copyahead.errors import ModelError


def check_model_path(command: str, model: Path | None, *, has_text: bool = True) -> None:
    """Raise ModelError where `model` is no path, and say what to do with what it is.

    What looks like a path is left to those who open it. `has_text`: whether the command has what
    else it needs.
    """
    word = "" if model is None else str(model)
    if not word or _looks_like_a_path(word):
        return
    if not has_text or len(word.split()) > 1:
        raise ModelError(
            f"{word!r} is no file, so it is not the model: for a text to continue write "
            f"copyahead generate --prompt {shlex.quote(word)}"
        )
    raise ModelError(
        f"{word!r} is no file, and models are not found by name: give the path of a GGUF file, as "
        f"in copyahead {command} ./{word}.gguf, or none for the bundled model"
    )


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
