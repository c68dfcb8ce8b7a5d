"""Reads the JSON object of one tool call, a character at a time.

It is built to be interrupted anywhere: after each character it knows whether the text so far
can be a call, whether the call can be announced, and which part of the arguments is new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from copyahead.chat.untrusted_json import parsed

SPACE = " \t\r\n"
"""White space of JSON."""
NAME_LIMIT = 256
"""Longest key or name; it bounds how much text is held back for what only looks like a call."""
_ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_KEYS = ("id", "type")


class CallReader:
    """Reads one call's JSON object; see `tool_parser.Reader`."""

    def __init__(self, names: Collection[str] | None, strict: bool) -> None:
        """`strict`: nothing but the object itself says that it is a call, so its name must be
        one of `names` and its arguments an object, or a string that holds one."""
        self.name = ""
        self.started = self.done = self.ended = False
        self.leftover = ""
        self.arguments: list[str] = []
        self._names = names
        self._strict = strict
        self._key = ""
        self._has_arguments = False
        self._word: list[str] = []
        self._escaped = self._quoted = self._kept = False
        self._depth = 0
        self._then: Callable[[], bool] = self._name_read
        self._state: Callable[[str], bool] = self._before_object

    @property
    def can_be_cut(self) -> bool:
        """Whether it stands in an argument object, outside its strings."""
        return self._state == self._nested and not self._quoted and self.started

    def feed(self, char: str) -> bool:
        """Take a character; False when the text so far plus `char` is not a call."""
        return self._state(char)

    def finish(self) -> None:
        """Put what is held of an argument that is not an object into `arguments`."""
        if self._has_arguments and self._state in (self._string, self._scalar) and self._word:
            quote = '"' if self._state == self._string else ""
            self.arguments.append(quote + "".join(self._word))

    def _before_object(self, char: str) -> bool:
        if char == "{":
            self._state = self._before_key
        return char == "{" or char in SPACE

    def _before_key(self, char: str) -> bool:
        if char == "}":
            return self._close()
        if char == '"':
            self._read_string(self._key_read)
        return char == '"' or char in SPACE

    def _read_string(self, then: Callable[[], bool]) -> None:
        self._state, self._then, self._word, self._escaped = self._string, then, [], False

    def _string(self, char: str) -> bool:
        if char == '"' and not self._escaped:
            return self._then()
        self._escaped = char == "\\" and not self._escaped
        self._word.append(char)
        return self._then == self._string_read or len(self._word) <= NAME_LIMIT

    def _key_read(self) -> bool:
        self._key = _unquote("".join(self._word)) or ""
        self._state = self._before_colon
        return True

    def _before_colon(self, char: str) -> bool:
        if char == ":":
            self._state = self._before_value
        return char == ":" or char in SPACE

    def _before_value(self, char: str) -> bool:
        if char in SPACE:
            return True
        if self._key == "name" and not self.name:
            self._read_string(self._name_read)
            return char == '"'
        self._kept = self._key in _ARGUMENT_KEYS and not self._has_arguments
        if self._strict and (char not in '{"' if self._kept else self._key not in _OTHER_KEYS):
            return False
        self._has_arguments |= self._kept
        if self._kept and not self._is_known():
            return False
        if self._kept and not (self._strict and char == '"'):
            self._start()
        return self._begin_value(char)

    def _begin_value(self, char: str) -> bool:
        if char == '"':
            self._read_string(self._string_read)
        elif char in "{[":
            self._state, self._depth, self._quoted, self._escaped = self._nested, 0, False, False
            return self._nested(char)
        else:
            self._state, self._word = self._scalar, []
            return self._scalar(char)
        return True

    def _name_read(self) -> bool:
        self.name = _unquote("".join(self._word)) or ""
        self._state = self._after_value
        return bool(self.name) and (not self._has_arguments or self._start())

    def _string_read(self) -> bool:
        if self._kept:
            # Some models write the object as a string of JSON, and no arguments as an empty one.
            text = "".join(self._word)
            plain = _unquote(text)
            if self._strict and not _holds_object(plain):
                return False
            given = f'"{text}"' if plain is None else plain
            self.arguments.append(given if given.strip() else "{}")
            self._start()
        self._state = self._after_value
        return True

    def _nested(self, char: str) -> bool:
        if self._kept:
            self.arguments.append(char)
        if self._quoted:
            self._quoted = char != '"' or self._escaped
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._state = self._after_value
        return True

    def _scalar(self, char: str) -> bool:
        if char.isalnum() or char in "+-.":
            self._word.append(char)
            return True
        if self._kept:
            word = "".join(self._word)
            self.arguments.append("{}" if word in ("", "null") else word)
        self._state = self._after_value
        return self._after_value(char)

    def _after_value(self, char: str) -> bool:
        if char == "}":
            return self._close()
        if char == ",":
            self._state = self._before_key
        return char == "," or char in SPACE

    def _close(self) -> bool:
        if not self.started and not self._start():
            return False
        self.done = bool(self.name)
        if not self._has_arguments:
            self.arguments.append("{}")
        return self.done

    def _start(self) -> bool:
        """Announce the call if its name is known; False when no tool has that name."""
        self.started = bool(self.name) and self._is_known()
        return self.started or not self.name

    def _is_known(self) -> bool:
        """Whether it may be a call, by its name as far as that has been read."""
        return not (self.name and self._strict) or self.name in (self._names or ())


def _holds_object(text: str | None) -> bool:
    """Whether a string stands for arguments: a JSON object, or none at all."""
    return text is not None and (not text.strip() or isinstance(parsed(text), dict))


def _unquote(text: str) -> str | None:
    """What the inside of a JSON string says; None when it is not one."""
    try:
        plain = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return None
    return plain if isinstance(plain, str) else None
