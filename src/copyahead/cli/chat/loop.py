"""From a message to its answer, again and again."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import BinaryIO, NamedTuple

from copyahead.backends.probe.cache import cache_dir
from copyahead.cli.chat.commands import Commands
from copyahead.cli.chat.reader import piped_messages, terminal_reader
from copyahead.cli.chat.screen import DIM, Screen
from copyahead.cli.chat.session import Answered, Session
from copyahead.cli.terminal import output
from copyahead.cli.terminal.output import PLAIN
from copyahead.errors import CopyaheadError, EngineStopped
from copyahead.types import FinishReason

HISTORY_FILE = "chat-history"
"""What was typed, in the folder of the caches."""


class _Outcome(NamedTuple):
    """What became of a message."""

    answered: Answered | None = None
    """None for a command, and for what could not be answered."""
    failed: bool = False


class Loop:
    """One chat, from its first message to its end."""

    def __init__(self, session: Session, screen: Screen) -> None:
        self._session = session
        self._screen = screen

    @staticmethod
    def say(text: str) -> None:
        """What a command answers: no part of an answer of the model's, and no remark either."""
        output.complain(text)

    def talk(self, commands: Commands) -> int:
        """Chat in a terminal until it is ended."""
        read = terminal_reader(cache_dir() / HISTORY_FILE, commands.names, output.remark)
        while not commands.ended:
            try:
                text = read()
            except KeyboardInterrupt:
                output.remark("(Ctrl-D or /quit ends the chat)")
                continue
            except EOFError:
                break
            if not text.strip():
                continue
            with _interrupts() as stopped:
                answered = self._attempt(text, commands, stopped).answered
            if answered is not None:
                output.remark(_status(answered))
        return 0

    def read(self, commands: Commands, stream: BinaryIO) -> int:
        """Answer every message of a pipe; 1 if one of them could not be."""
        failed = False
        for message in piped_messages(stream):
            if commands.ended:
                break
            if isinstance(message, CopyaheadError):
                output.complain(f"copyahead: {message}")
                failed = True
            else:
                failed |= self._attempt(message, commands).failed
        return 1 if failed else 0

    def _attempt(
        self, text: str, commands: Commands, stopped: Callable[[], bool] = lambda: False
    ) -> _Outcome:
        """Carry out a command or answer a message. What is wrong is said, and the chat goes on."""
        try:
            if text.startswith("/"):
                commands.run(text)
                return _Outcome()
            return _Outcome(answered=self._answer(text, commands, stopped))
        except EngineStopped:
            raise
        except CopyaheadError as error:
            output.complain(f"copyahead: {error}")
            return _Outcome(failed=True)

    def _answer(self, text: str, commands: Commands, stopped: Callable[[], bool]) -> Answered:
        message = commands.with_files(text.strip())
        shown = False

        def show(piece: str, copied: bool, thinking: bool) -> None:
            nonlocal shown
            shown = True
            self._screen.write(piece, copied, thinking)

        try:
            answered = self._session.answer(message, show, stopped)
        except BaseException:
            if shown:
                self._screen.end()
            raise
        self._screen.end()
        if answered.tokens:
            commands.sent()
        self._explain(answered)
        return answered

    def _explain(self, answered: Answered) -> None:
        """Say why an answer ended, where the model did not end it."""
        reason = answered.finish_reason
        if answered.context_full:
            output.complain(
                f"copyahead: the context of {self._session.context_size} tokens is full: /reset "
                "begins a new conversation, and a larger --ctx at the start gives more room"
            )
        elif reason is FinishReason.LENGTH:
            output.remark(f"(cut at --max-tokens {self._session.settings.max_tokens})")
        elif reason is FinishReason.CANCELLED and not answered.tokens:
            output.remark("(stopped before it began: the message is not part of the conversation)")
        elif reason is FinishReason.CANCELLED:
            output.remark("(stopped)")


def _status(answered: Answered) -> str:
    text = f"[{answered.status()}]"
    return f"{DIM}{text}{PLAIN}" if sys.stderr.isatty() else text


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed in the block, which it does not end.

    A signal that came while a pass ran is seen when the pass is over.
    """
    pressed = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        pressed.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


__all__ = ["HISTORY_FILE", "Loop"]
