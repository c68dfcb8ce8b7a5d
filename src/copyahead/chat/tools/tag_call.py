"""Reads one tool call written in tags, a character at a time.

`<function=NAME>`, then `<parameter=KEY>` and a value as plain text for each argument. What leaves
is the JSON text of the arguments, as from a model that writes JSON: a value that is a text is
passed on while it is written, any other when it is whole.

A value may hold tags itself: it ends only where its closing tag is followed by the next argument
or by the end of the call. Where its closing tag is missing, the end of a call ends it, if nothing
comes after that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from copyahead.chat.tools.json_call import NAME_LIMIT, SPACE
from copyahead.chat.tools.tag_values import Kinds, as_json, is_text, kinds_of

_MAX_SPACE = 64
"""White space between two closing tags; it bounds what is held back of a value."""

_WITHOUT_TAGS = frozenset({"number", "boolean", "null"})
"""Kinds of values that hold no tags."""


class Tags(msgspec.Struct, frozen=True):
    """The texts around the parts of a call, with the line breaks that models write.

    Breaks between tags may be missing or more; a break next to a value belongs to the tag.
    """

    before_name: str
    after_name: str
    before_key: str
    after_key: str
    """Also opens the value, in a tag of its own where there is one."""
    after_value: str
    after_call: str

    @property
    def opener(self) -> str:
        """What a call begins with; empty where that is its name."""
        return self.before_name.strip()


class TagReader:
    """Reads one call; see `tool_parser.Reader`."""

    def __init__(
        self,
        tags: Tags,
        end: str,
        schemas: Mapping[str, Mapping[str, Any]],
        *,
        strict: bool,
    ) -> None:
        """`end`: the marker after a call. `schemas`: of the arguments, by the tool's name.
        `strict`: only these names are calls."""
        self.name = ""
        self.started = self.done = self.ended = False
        self.arguments: list[str] = []
        self.leftover = ""
        self.can_be_cut = False
        self._tags, self._end, self._schemas = tags, end, schemas
        self._strict = strict or not tags.opener
        self._num_values = 0
        self._kinds: Kinds = frozenset()
        self._has_breaks = tags.after_key.endswith("\n")
        self._key_ends = tags.after_key.split()
        self._closers = _closers(tags, end)
        self._held = ""
        self._word: list[str] = []
        self._space: list[str] = []
        self._state: Callable[[str], bool] = self._before_name if tags.opener else self._name

    def feed(self, char: str) -> bool:
        """Take a character; False when the text so far plus `char` is not a call, or when a call
        that was announced has ended. `leftover` and `char` may begin something else."""
        if self._state(char):
            return True
        if self.started or self._state == self._between:
            self.leftover, self._held = self._held, ""
        if self.started:
            self._close()
        return False

    def finish(self) -> None:
        """Put what is held of a value that has no end into `arguments`."""
        if self._state == self._perhaps_closed:
            self._close_value()
            self._close()
        if self._state != self._value:
            return
        closing = self._closers[0][0]
        if self._held.strip().startswith(closing):
            self._close_value()
        elif is_text(self._kinds):
            self.arguments.append(_escaped(self._held))
        else:
            self.arguments.append("".join(self._word) + self._held)

    def _literal(self, char: str, texts: Collection[str]) -> str | None:
        """One of `texts` after white space: it, once it is whole; empty before; None if not."""
        if not self._held and char in SPACE:
            return ""
        held = self._held + char
        if held in texts:
            self._held = ""
            return held
        if not any(text.startswith(held) for text in texts):
            return None
        self._held = held
        return ""

    def _before_name(self, char: str) -> bool:
        found = self._literal(char, [self._tags.opener])
        if found:
            self._state = self._name
        return found is not None

    def _name(self, char: str) -> bool:
        if char in SPACE and not self._word:
            return True
        end = self._tags.after_name.strip()
        # Where the name has no closing tag, it ends with its line, or with the next tag.
        if char == end or (not end and char in "\n<"):
            return self._named("".join(self._word).strip(), "" if end else char)
        self._word.append(char)
        return len(self._word) <= NAME_LIMIT and char not in ("\n<" if end else SPACE)

    def _named(self, name: str, rest: str) -> bool:
        if not name or (self._strict and name not in self._schemas):
            return False
        self.name, self._state = name, self._between
        self.arguments.append("{")
        return not rest or self._between(rest)

    def _between(self, char: str) -> bool:
        """Before the next argument, or the end. The first of these says that it is a call."""
        found = self._literal(char, self._closers[0][1])
        if found:
            self.started = True
            self._follow(found)
        return found is not None

    def _follow(self, text: str) -> None:
        """What comes after the name, or after a value, is `text`."""
        if text == self._tags.before_key:
            self._state, self._word = self._key, []
            return
        self.done, self.ended = True, text == self._end
        self._close()

    def _key(self, char: str) -> bool:
        self._word.append(char)
        key, found, _ = "".join(self._word).partition(self._key_ends[0])
        if found and key.strip():
            self._begin_value(key.strip())
        elif found or char == "\n" or len(self._word) > NAME_LIMIT:
            self._held = self._tags.before_key + "".join(self._word[:-1])
            return False
        return True

    def _begin_value(self, key: str) -> None:
        root = self._schemas.get(self.name, {})
        properties = root.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        self._kinds, self._word = kinds_of(schema, root), []
        self.arguments.append(f"{', ' if self._num_values else ''}{_quoted(key)}: ")
        self._num_values += 1
        if is_text(self._kinds):
            self.arguments.append('"')
        self._state = self._before_value if self._key_ends[1:] else self._first_of_value

    def _before_value(self, char: str) -> bool:
        """Before the tag that opens the value."""
        found = self._literal(char, self._key_ends[1:])
        if found is None:
            self._state = self._value
            return self._value(char)
        if found:
            self._state = self._first_of_value
        return True

    def _first_of_value(self, char: str) -> bool:
        self._state = self._value
        return (self._has_breaks and char == "\n") or self._value(char)

    def _value(self, char: str) -> bool:
        if not self._held and char not in "\n<":
            self._say(char)
            return True
        self._held += char
        found = self._ending(self._held)
        if found is None:
            held, self._held = self._held, ""
            self._say(held[0])
            for each in held[1:]:
                self._value(each)
        elif found:
            has_tag = self._held.lstrip("\n").startswith(self._closers[0][0])
            if has_tag or (self._kinds and self._kinds <= _WITHOUT_TAGS):
                self._held = ""
                self._close_value()
                self._follow(found)
            else:
                self._state = self._perhaps_closed
        return True

    def _perhaps_closed(self, char: str) -> bool:
        """After what ends a call in a value without its closing tag: the end if nothing follows."""
        if char in SPACE:
            self._space.append(char)
            return True
        held, rest = self._held, [*self._space, char]
        self._held, self._space, self._state = "", [], self._value
        for each in held:
            self._say(each)
        for each in rest:
            self._value(each)
        return True

    def _ending(self, held: str) -> str | None:
        """What follows a value that ends with `held`; empty where that is still open."""
        body = held.removeprefix("\n") if self._has_breaks else held
        for closing, followers in self._closers:
            if closing.startswith(body):
                return ""
            if body.startswith(closing):
                space = body[len(closing) :]
                rest = space.lstrip(SPACE)
                if len(space) - len(rest) > _MAX_SPACE:
                    continue
                if rest in followers:
                    return rest
                if any(text.startswith(rest) for text in followers):
                    return ""
        return None

    def _say(self, char: str) -> None:
        if is_text(self._kinds):
            self.arguments.append(_escaped(char))
        else:
            self._word.append(char)

    def _close_value(self) -> None:
        whole = '"' if is_text(self._kinds) else as_json("".join(self._word), self._kinds)
        self.arguments.append(whole)
        self._state = self._between

    def _close(self) -> None:
        self.arguments.append("}")


def _closers(tags: Tags, end: str) -> list[tuple[str, list[str]]]:
    """Closing tags, and what may follow each where it is one. First that of a value."""
    call_end = tags.after_call.strip()
    followers = [text for text in (tags.before_key, call_end, end) if text]
    # A value without its closing tag ends with the call.
    return [(tags.after_value.strip(), followers), *([(call_end, [end])] if call_end else [])]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return _quoted(text)[1:-1]
