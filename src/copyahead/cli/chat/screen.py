"""Where an answer is shown: a terminal, with colours, or a pipe, as plain text."""

from __future__ import annotations

import sys

from copyahead.cli.terminal.output import COPIED, PLAIN

DIM = "\x1b[2m"
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
"""Characters that would move the cursor or change colours, to pictures of them."""
_CONTROLS |= dict.fromkeys((127, *range(128, 160)), 65533)


class Screen:
    """Writes one answer after another to standard output."""

    def __init__(self, *, terminal: bool, tinted: bool) -> None:
        """`terminal`: show thinking, dimmed, and control characters as pictures. `tinted`: what
        was copied in colour."""
        self._terminal = terminal
        self._tinted = tinted
        self._thinking = False

    def write(self, text: str, copied: bool, thinking: bool) -> None:
        """Show a piece of an answer; thinking is left out where nobody watches."""
        if not self._terminal:
            if not thinking:
                self._put(text)
            return
        if self._thinking and not thinking:
            self._put("\n\n")
        self._thinking = thinking
        style = (DIM if thinking else "") + (COPIED if copied and self._tinted else "")
        shown = text.translate(_CONTROLS)
        self._put(f"{style}{shown}{PLAIN}" if style else shown)

    def end(self) -> None:
        """The answer is complete, or was stopped."""
        self._thinking = False
        self._put("\n")

    @staticmethod
    def _put(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
