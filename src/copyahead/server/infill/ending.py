"""Where a completion ends that neither the model nor a stop string has ended: by its lines, or by
its time. The rules are those of llama.cpp's server."""

from __future__ import annotations

import time
from collections.abc import Callable

_BLANK = " \t\r\n"


class Ending:
    """Watches the text of one answer."""

    def __init__(
        self,
        *,
        min_indent: int = 0,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`min_indent`: characters that every line but the first is indented by; 0: any number.
        `max_seconds`: from the first text on, and then an answer of one line still goes on."""
        self.ended = False
        """Whether nothing more is to be shown."""
        self.has_new_line = False
        self._min_indent, self._max_seconds, self._clock = min_indent, max_seconds, clock
        self._held = ""
        """A line's end, and the white space that follows it so far."""
        self._began: float | None = None

    def push(self, text: str) -> str:
        """What may be shown now that `text` has been written."""
        if self.ended or not text:
            return ""
        if self._began is None:
            self._began = self._clock()
        self.has_new_line |= "\n" in text
        shown = self._by_lines(self._held + text) if self._min_indent > 0 else text
        if self._max_seconds is not None and self.has_new_line:
            self.ended |= self._clock() - self._began > self._max_seconds
        return shown

    def rest(self) -> str:
        """What is still held, once nothing more is written."""
        held, self._held = self._held, ""
        return "" if self.ended else held

    def _by_lines(self, text: str) -> str:
        """The text up to a line that is indented too little; white space at its end waits for what
        follows it."""
        at = text.find("\n")
        while at >= 0:
            stop = next((n for n in range(at, len(text)) if text[n] not in _BLANK), None)
            if stop is None:
                self._held = text[at:]
                return text[:at]
            indent = stop - text.rfind("\n", 0, stop) - 1
            if indent < self._min_indent:
                self.ended, self._held = True, ""
                return text[:at]
            at = text.find("\n", stop)
        self._held = ""
        return text
