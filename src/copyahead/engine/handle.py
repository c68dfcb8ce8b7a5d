"""What `Engine.submit` returns: a request that is under way, and where its chunks go."""

from __future__ import annotations

from collections.abc import Callable

from copyahead.engine.answer import Answer
from copyahead.engine.request import Choice, Chunk, Request
from copyahead.stats import CopyStats

Sink = Callable[[Chunk], None]
"""Takes what a request writes, as it is written."""


class Handle:
    """A submitted request."""

    def __init__(self, request: Request, answers: list[Answer], sink: Sink) -> None:
        self.request = request
        self.answers = answers
        self.sink = sink
        self.on_start: Callable[[], None] | None = None
        """Called when the first answer has got a slot, before its prompt is read."""

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return all(answer.finish_reason is not None for answer in self.answers)

    @property
    def stats(self) -> CopyStats:
        """Counters of all choices together."""
        total = CopyStats()
        for answer in self.answers:
            total.add(answer.stats)
        total.window = self.answers[0].stats.window
        # The prompt is one, however many answers it has.
        total.num_prompt_tokens = self.answers[0].stats.num_prompt_tokens
        total.num_cached_tokens = self.answers[0].stats.num_cached_tokens
        return total


def collector(choices: list[Choice]) -> Sink:
    """A sink that adds every chunk to its choice."""

    def take(chunk: Chunk) -> None:
        choices[chunk.index].add(chunk)

    return take
