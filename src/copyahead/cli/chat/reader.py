"""Where messages come from: lines that somebody edits in a terminal, or the lines of a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from copyahead.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT = "> "
_CONTINUED = "\N{HORIZONTAL ELLIPSIS} "
_LONGEST = 1 << 26
"""Bytes that a message in a pipe may have."""


def terminal_reader(
    history_path: Path, commands: Sequence[str], remark: Callable[[str], None]
) -> Callable[[], str]:
    """Reads a message, with editing and history: KeyboardInterrupt for Ctrl-C, EOFError for Ctrl-D.

    `commands` are completed. A history that cannot be kept is none, which `remark` says. Raises
    MissingExtraError without prompt_toolkit.
    """
    try:
        from prompt_toolkit import PromptSession
    except ImportError as error:
        raise MissingExtraError("prompt_toolkit", "chat") from error
    from prompt_toolkit.completion import WordCompleter

    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=_CONTINUED,
        history=_history(history_path, remark),
        key_bindings=_bindings(),
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        enable_open_in_editor=True,
    )
    # What no encoding has, a terminal may send all the same.
    return lambda: session.prompt().encode("utf-8", "replace").decode()


def _history(path: Path, remark: Callable[[str], None]) -> History:
    """What was typed before, in a file that nobody else may read."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class Kept(FileHistory):
        def store_string(self, string: str) -> None:
            with suppress(OSError):
                super().store_string(string)

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
        os.chmod(path, 0o600)
    except OSError as error:
        remark(f"what you type is not remembered: {path} cannot be written ({error.strerror})")
        return InMemoryHistory()
    return Kept(str(path))


def _bindings() -> KeyBindings:
    """Enter sends, and Alt-Enter or a backslash before Enter begins another line."""
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
    def _another_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


def piped_messages(stream: BinaryIO) -> Iterator[str | ConfigError]:
    """The messages of a pipe, one a line; a backslash at its end goes on with the next line. For
    one that cannot be read, what is wrong with it. Empty lines are none."""
    lines: list[str] = []
    number = 0
    while data := stream.readline(_LONGEST):
        number += 1
        line = _decoded(data, number)
        if isinstance(line, ConfigError):
            lines = []
            yield line
        elif line.endswith("\\"):
            lines.append(line[:-1])
        else:
            message = "\n".join([*lines, line])
            lines = []
            if message.strip():
                yield message
    if lines and (message := "\n".join(lines)).strip():
        yield message


def _decoded(data: bytes, number: int) -> str | ConfigError:
    if len(data) == _LONGEST and not data.endswith(b"\n"):
        return ConfigError(f"line {number} is longer than {_LONGEST} bytes: shorten it")
    try:
        return data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        return ConfigError(f"line {number} is not UTF-8 text: convert it")
