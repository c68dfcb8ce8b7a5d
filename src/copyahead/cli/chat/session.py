"""A chat without a terminal: the conversation, how it is answered, and what it has cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from copyahead.chat.conversation import Conversation, Turn
from copyahead.chat.reply import ReasoningDelta, Reply, ReplyEvent
from copyahead.chat.template.template import ChatTemplate
from copyahead.chat.tools.stream import TextDelta
from copyahead.drafters.factory import MODEL_ALONE
from copyahead.engine import Choice, Chunk, Engine, Request
from copyahead.engine.handle import Handle
from copyahead.errors import BackendError, ConfigError, ContextOverflowError, RequestError
from copyahead.sampling import SamplingOptions
from copyahead.stats import CopyStats
from copyahead.types import FinishReason

Show = Callable[[str, bool, bool], None]
"""Takes text as it is written: the text, whether it was copied, whether it is thinking."""


@dataclass(kw_only=True)
class Settings:
    """How answers are made; commands change it."""

    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    max_tokens: int | None = None
    """Most tokens of an answer; None: until the context is full."""
    stop: tuple[str, ...] = ()
    lookup: bool = True
    policy: str = ""


class Answered(msgspec.Struct, frozen=True):
    """One answer, and what it took."""

    text: str
    """Without the thinking."""
    counts: CopyStats
    num_copied: int
    """Tokens of the answer that were copied."""
    finish_reason: FinishReason | None
    context_full: bool
    """Whether it ended because the context was full."""
    prompt: list[int]
    """Token ids."""
    tokens: list[int]

    @property
    def num_read(self) -> int:
        """Tokens of the prompt that the model had to read."""
        return self.counts.num_prompt_tokens - self.counts.num_cached_tokens

    def status(self) -> str:
        """What it took, in one line."""
        counts, total = self.counts, len(self.tokens)
        parts = [
            f"{counts.tokens_per_second:.1f} tok/s",
            f"{counts.tokens_per_round:.2f} tokens a round",
            f"{self.num_copied / total if total else 0.0:.0%} copied",
            f"{self.num_read} of {counts.num_prompt_tokens} prompt tokens read",
        ]
        return ", ".join(parts)


class Session:
    """One conversation with a loaded model."""

    def __init__(
        self, engine: Engine, template: ChatTemplate, settings: Settings, *, system: str = ""
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.conversation = Conversation(template, engine.backend.tokenizer, system)
        self.totals = CopyStats()
        """Counters of all answers since the conversation began, or was loaded."""
        self.num_answers = 0
        self.last: Answered | None = None
        self._end_texts = template.end_texts

    @property
    def context_size(self) -> int:
        """Tokens that the conversation may have."""
        found = self.engine.backend.capabilities
        return min(found.context_size, found.num_cells)

    def answer(
        self, text: str, show: Show, stopped: Callable[[], bool] = lambda: False
    ) -> Answered:
        """Answer a message. What was written until `stopped` says so is the answer.

        Raises RequestError for a message that cannot be answered, which is then no part of the
        conversation; BackendError where the model fails.
        """
        turn = self.conversation.ask(text)
        reply = self.conversation.reply(turn)
        choice = Choice(index=0)
        handle = self._submit(turn, choice, reply, show)
        try:
            while not handle.done and not stopped():
                self.engine.step()
        finally:
            self.engine.cancel(handle)
        _show(reply.finish(), False, show)
        if choice.finish_reason is FinishReason.ERROR:
            raise BackendError(choice.error or "the model failed")
        counts = handle.stats
        if choice.tokens:
            self.conversation.answered(text, reply, choice.tokens)
            self.totals.add(counts)
            self.num_answers += 1
        full = len(turn.tokens) + len(choice.tokens) >= self.context_size
        self.last = Answered(
            text=reply.content,
            counts=counts,
            num_copied=sum(choice.copied),
            finish_reason=choice.finish_reason,
            context_full=full and choice.finish_reason is FinishReason.LENGTH,
            prompt=turn.tokens,
            tokens=choice.tokens,
        )
        return self.last

    def reset(self) -> None:
        """Begin a new conversation, with the same system message."""
        self.conversation.clear()
        self.forget_counts()

    def forget_counts(self) -> None:
        """Count from now on."""
        self.totals, self.num_answers, self.last = CopyStats(), 0, None

    def set_lookup(self, on: bool) -> None:
        """Copy from now on, or not. Raises ConfigError where the model cannot have drafts."""
        if on and not self.engine.max_draft_tokens:
            note = self.engine.backend.capabilities.note
            raise ConfigError(f"nothing can be copied here: {note or 'the model takes no drafts'}")
        self.settings.lookup = on

    def _submit(self, turn: Turn, choice: Choice, reply: Reply, show: Show) -> Handle:
        def take(chunk: Chunk) -> None:
            choice.add(chunk)
            for piece, copied in chunk.pieces:
                _show(reply.push(piece), copied, show)

        try:
            return self.engine.submit(self._request(turn), take)
        except ContextOverflowError as error:
            raise RequestError(
                f"the conversation with this message is {error.num_prompt_tokens} tokens, and the "
                f"context holds {error.context_size}: /reset begins a new one, and a larger --ctx "
                "at the start gives more room"
            ) from None

    def _request(self, turn: Turn) -> Request:
        settings = self.settings
        policy = settings.policy or None
        lookup = settings.lookup
        if not lookup and self.engine.draft_model is not None:
            lookup, policy = True, MODEL_ALONE
        return Request(
            prompt=turn.tokens,
            sampling=settings.sampling,
            max_tokens=settings.max_tokens,
            stop=(*settings.stop, *self._end_texts),
            lookup=lookup,
            policy=policy,
        )


def _show(events: list[ReplyEvent], copied: bool, show: Show) -> None:
    for event in events:
        if isinstance(event, ReasoningDelta | TextDelta) and event.text:
            show(event.text, copied, isinstance(event, ReasoningDelta))
