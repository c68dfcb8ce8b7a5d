"""One chat answer as it is read, whatever route it goes out by.

It is fed chunks and gives events of thinking, text and calls; it also keeps what is said of the
answer afterwards: its tokens, how many of them were thinking, and why it ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from copyahead.chat.prompt import ChatPrompt
from copyahead.chat.reply import ReplyEvent
from copyahead.engine.request import Chunk
from copyahead.types import FinishReason, Token


class Transcript:
    """Takes the chunks of one answer."""

    def __init__(self, prompt: ChatPrompt, pieces: Sequence[bytes]) -> None:
        """`pieces`: the bytes of every token id."""
        self.reply = prompt.reply()
        self.tokens: list[Token] = []
        self.num_shown = 0
        """Characters of all chunks: what a stop string cut off is not counted."""
        self.finish_reason: FinishReason | None = None
        self._pieces = pieces
        self._skipped = "" if prompt.thinking else prompt.markers.begin

    def push(self, chunk: Chunk) -> list[ReplyEvent]:
        """The events of a chunk; with the last one, of all that was held back."""
        text = chunk.text
        self.tokens += chunk.tokens
        self.num_shown += len(text)
        events = self.reply.push(text)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            events += self.reply.finish()
        return events

    @property
    def num_reasoning_tokens(self) -> int:
        """How many tokens hold the thinking, which comes first.

        Counted by bytes, so that it does not depend on how the tokens came.
        """
        reasoning = self.reply.reasoning
        if not reasoning:
            return 0
        left = len((self._skipped + reasoning).encode())
        for count, token in enumerate(self.tokens):
            if left <= 0:
                return count
            left -= len(self._pieces[token]) if token < len(self._pieces) else 0
        return len(self.tokens)
