"""The prompt for a gap in a file: what stands around it, and texts beside the file.

The order is that of llama.cpp's server, which is the one that models were taught:

    [repository] name [separator] file, text ... [separator] file
    [prefix] before the cursor [suffix] behind it [middle]

A prompt that is too long is cut and not refused, farthest from the cursor first: whole texts beside
the file, then the file itself, its part before the cursor three times as long as that behind it.
Control tokens that a text spells out are only letters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from copyahead.contracts import FimTokens, Tokenizer
from copyahead.types import Token

_REPOSITORY = "myproject\n"
_FILE = "filename\n"
"""The names of what the request does not name; those that llama.cpp's server gives."""
_BETWEEN = "\n\n--- snippet ---\n\n"
"""Before each text for a model that has no tokens for files."""
_STEPS = 16
"""A cut falls on one of so many places. A prompt that begins where the last one did has been read
already, so the beginning must not move with every key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """What is known of a text with something missing."""

    before: str
    """Up to the gap."""
    behind: str = ""
    """From the gap on."""
    files: Sequence[tuple[str, str]] = ()
    """Name and text of what stands beside the file, the most useful last."""


class GapPrompt(NamedTuple):
    """A prompt, and whether some of the file was left out of it."""

    tokens: list[Token]
    truncated: bool


class GapWriter:
    """Makes prompts of gaps, for one model."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        fim: FimTokens,
        *,
        token_bytes: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`token_bytes`: of the longest token. `check`: called between the longer parts of the
        work, which it may end by raising."""
        self._tokenizer, self._fim = tokenizer, fim
        self._token_bytes, self._check = token_bytes, check
        self._last_behind: tuple[str, list[Token]] = ("", [])
        self._spelled: dict[Token, list[Token]] = {}

    def prompt(self, gap: Gap, room: int | None = None) -> GapPrompt:
        """The prompt of `gap`, at most `room` tokens long where that is given."""
        fim = self._fim
        lead = self._tokenizer.encode("")
        if room is None:
            before, behind, left = self._letters(gap.before), self._behind(gap.behind), None
            truncated = False
        else:
            near = max(0, room - len(lead) - 3)
            before, behind, truncated = self._around(gap, near)
            left = near - len(before) - len(behind)
        files = self._files(gap.files, left)
        tokens = [*lead, *files, fim.prefix, *before, fim.suffix, *behind, fim.middle]
        return GapPrompt(tokens, truncated)

    def _around(self, gap: Gap, room: int) -> tuple[list[Token], list[Token], bool]:
        """What of the file fits into `room`, and whether something was cut off."""
        # No more than this many characters can be `room` tokens; the rest is not even looked at.
        most = room * self._token_bytes
        text_before, text_behind = gap.before[max(0, len(gap.before) - most) :], gap.behind[:most]
        before, behind = self._letters(text_before), self._behind(text_behind)
        num_behind = min(len(behind), max(room // 4, room - len(before)))
        too_many = len(before) - (room - num_behind)
        if too_many > 0:
            step = max(1, room // _STEPS)
            too_many = min(len(before), -(-too_many // step) * step)
            before = before[too_many:]
        shown = len(text_before) == len(gap.before) and len(text_behind) == len(gap.behind)
        truncated = not shown or too_many > 0 or num_behind < len(behind)
        return before, behind[:num_behind], truncated

    def _files(self, files: Sequence[tuple[str, str]], room: int | None) -> list[Token]:
        """The last of `files` that fit into `room`, each whole, with what stands around them."""
        if not files:
            return []
        fim = self._fim
        head, tail = [], []
        if fim.separator is not None:
            tail = [fim.separator, *self._letters(_FILE)]
            if fim.repository is not None:
                head = [fim.repository, *self._letters(_REPOSITORY)]
        left = None if room is None else room - len(head) - len(tail)
        parts: list[list[Token]] = []
        for name, text in reversed(files):
            if left is not None and len(text) > left * self._token_bytes:
                break
            part = self._file(name, text)
            if left is not None:
                left -= len(part)
                if left < 0:
                    break
            parts.append(part)
        if not parts:
            return []
        return [*head, *(token for part in reversed(parts) for token in part), *tail]

    def _file(self, name: str, text: str) -> list[Token]:
        separator = self._fim.separator
        if separator is None:
            return [*self._letters(_BETWEEN), *self._letters(text)]
        return [separator, *self._letters(f"{name}\n"), *self._letters(text)]

    def _behind(self, text: str) -> list[Token]:
        """Of the text behind the gap, which several prompts of one request share."""
        if self._last_behind[0] != text:
            self._last_behind = text, self._letters(text)
        return self._last_behind[1]

    def _letters(self, text: str) -> list[Token]:
        """Token ids of `text`, none of them a token for filling gaps.

        Some folders list these as ordinary tokens, which a tokenizer then finds in any text.
        """
        self._check()
        tokens = self._tokenizer.encode(text, special=False)
        own = self._fim.all
        if own.isdisjoint(tokens):
            return tokens
        return [each for token in tokens for each in self._spelling(token)]

    def _spelling(self, token: Token) -> list[Token]:
        if token not in self._fim.all:
            return [token]
        if token not in self._spelled:
            text = self._tokenizer.token_bytes(token).decode("utf-8", "replace")
            # No part of the spelling is the token.
            parts = (self._tokenizer.encode(letter, special=False) for letter in text)
            self._spelled[token] = [each for part in parts for each in part]
        return self._spelled[token]
