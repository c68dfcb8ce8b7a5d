"""Conversations in files: what `/save` writes and `/load` reads."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from copyahead.engine.text import MAX_STOP_LENGTH
from copyahead.errors import ConfigError, CopyaheadError
from copyahead.sampling import SamplingOptions

_MAX_BYTES = 64 << 20
_Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_LENGTH)]


class SavedMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One message."""

    role: Literal["user", "assistant"]
    content: str
    reasoning_content: str = ""
    """The model's thinking before it."""


class SavedOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How answers were made; fields that a file lacks stay as they are."""

    lookup: bool | None = None
    policy: str | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stop: tuple[_Stop, ...] | None = None
    sampling: SamplingOptions | None = None


class SavedChat(msgspec.Struct, forbid_unknown_fields=True):
    """A conversation."""

    messages: list[SavedMessage]
    system: str = ""
    model: str = ""
    """For people: whose answers these are."""
    options: SavedOptions = msgspec.field(default_factory=SavedOptions)


def save(path: Path, chat: SavedChat) -> None:
    """Write `chat`, whole or not at all, over nothing but another saved chat.

    Raises ConfigError where that cannot be done.
    """
    if path.exists() and not _is_saved_chat(path):
        raise ConfigError(f"{path} exists and is no saved chat: give another name")
    data = msgspec.json.format(msgspec.json.encode(chat), indent=2) + b"\n"
    part: str | None = None
    try:
        handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except OSError as error:
        if part is not None:
            with contextlib.suppress(OSError):
                os.unlink(part)
        raise ConfigError(f"{path} cannot be written ({error.strerror})") from None


def read(path: Path) -> SavedChat:
    """The conversation in a file. Raises ConfigError that names what is wrong in it."""
    data = read_regular(path, _MAX_BYTES)
    try:
        chat = msgspec.json.decode(data, type=SavedChat)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is no saved chat: {_place(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no saved chat: it is not JSON ({error})") from None
    except CopyaheadError as error:
        raise ConfigError(f"{path}: options.sampling: {error}") from None
    _check_turns(path, chat)
    return chat


def read_regular(path: Path, max_bytes: int) -> bytes:
    """What a file holds. Raises ConfigError for what cannot be read, is no file, or is longer."""
    try:
        if path.exists() and not path.is_file():
            # A pipe that nobody writes to would be waited for without end.
            raise ConfigError(f"{path} is no file: give the path of one")
        size = path.stat().st_size
        if size > max_bytes:
            raise ConfigError(f"{path} has {size} bytes, and at most {max_bytes} are of use here")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be read ({reason})") from None


def _check_turns(path: Path, chat: SavedChat) -> None:
    """A conversation is of a user's messages and answers to them, in turns."""
    for place, message in enumerate(chat.messages):
        expected = ("user", "assistant")[place % 2]
        if message.role != expected:
            raise ConfigError(
                f"{path}: messages[{place}].role must be {expected!r}, not {message.role!r}: "
                "messages and answers take turns"
            )
    if len(chat.messages) % 2:
        raise ConfigError(f"{path}: messages must end with an answer, of the role 'assistant'")


def _is_saved_chat(path: Path) -> bool:
    try:
        read(path)
    except ConfigError:
        return False
    return True


def _place(text: str) -> str:
    """msgspec's sentence, its place first: `messages[0].content: Expected ...`."""
    what, _, where = text.partition(" - at ")
    where = re.sub(r"^`\$\.?|`$", "", where)
    return f"{where}: {what}" if where else what
