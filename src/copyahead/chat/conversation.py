"""A conversation that is kept as token ids, so that each turn's prompt begins with the last one's.

A turn is rendered whole by the model's own template. As far as that text is the one that is there
already, the ids that stand for it are kept, the model's own as it wrote them; only what follows is
tokenised. Where the template changes what came before (some leave out earlier thinking), all from
there on is tokenised anew.

Ids are kept up to a control token only: control tokens cut a text into fragments that know nothing
of each other, so what is tokenised by itself gets the ids that it has in the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from copyahead.chat.messages import Messages
from copyahead.chat.reasoning import ReasoningSplitter, opens_reasoning
from copyahead.chat.reply import Reply
from copyahead.chat.template.literal_text import RenderedPrompt
from copyahead.chat.template.template import ChatTemplate
from copyahead.contracts import Tokenizer
from copyahead.types import Token

Spans = tuple[tuple[int, int], ...]


class Turn(msgspec.Struct, frozen=True):
    """A prompt that is ready to be answered."""

    tokens: list[Token]
    num_kept: int
    """How many of them were there before, and were not tokenised again."""
    thinking: bool
    """Whether it ends inside the thinking."""


class _Segment(msgspec.Struct, frozen=True):
    """A piece of what was read and written: its text and the ids that stand for it."""

    text: str
    spans: Spans
    """Where its text spells control tokens that are letters; places count from its beginning."""
    tokens: tuple[Token, ...]
    end_token: Token | None = None
    """The model's own end of an answer, whose spelling is the template's."""


class Conversation:
    """Messages, and the ids of the last prompt and its answer."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, system: str = "") -> None:
        self.system = system
        self.messages: Messages = []
        """Users' and the model's, in turns; the system's is apart."""
        self._template = template
        self._tokenizer = tokenizer
        self._lead = tokenizer.encode("")
        self._segments: list[_Segment] = []

    def ask(self, text: str) -> Turn:
        """The prompt for a message of the user's, which is not part of the conversation until it
        is answered. Raises RequestError for one that the template refuses."""
        rendered = self._rendered([*self.messages, {"role": "user", "content": text}])
        segments, tokens, done = self._kept(rendered)
        num_kept = len(tokens)
        anchor = rendered.text[:done]
        for piece in self._pieces(rendered, done):
            more = _Segment(piece.text, tuple(piece.literal_spans), self._encode(piece, anchor))
            tokens += more.tokens
            anchor += piece.text
            segments.append(more)
        self._segments = segments
        return Turn(
            tokens=tokens,
            num_kept=num_kept,
            thinking=opens_reasoning(rendered.text, self._template.markers),
        )

    def reply(self, turn: Turn) -> Reply:
        """A reader for the answer to `turn`."""
        return Reply(ReasoningSplitter(turn.thinking, self._template.markers))

    def answered(self, text: str, reply: Reply, tokens: Sequence[Token]) -> None:
        """Take up the answer to `text`, asked last, as the `tokens` that the model wrote."""
        message = {"role": "assistant", "content": reply.content}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        self.messages += [{"role": "user", "content": text}, message]
        self._segments.append(self._answer(tokens))

    def clear(self) -> None:
        """Forget all messages."""
        self.messages, self._segments = [], []

    def replace(self, system: str, messages: Messages) -> None:
        """Go on with another conversation. Raises RequestError, and changes nothing, where the
        template refuses it."""
        before = self.system, self.messages
        self.system, self.messages = system, messages
        try:
            if messages:
                self._rendered([*messages, {"role": "user", "content": "?"}])
        except BaseException:
            self.system, self.messages = before
            raise
        # What is the same as before is found to be so by its text.

    def _rendered(self, messages: Messages) -> RenderedPrompt:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return self._template.prompt([*system, *messages])

    def _answer(self, tokens: Sequence[Token]) -> _Segment:
        """The segment of an answer. A character that was not finished is no part of it."""
        written = list(tokens)
        end = written.pop() if written and written[-1] in self._tokenizer.end_tokens else None
        text = self._text(written)
        while written and text.endswith("\N{REPLACEMENT CHARACTER}") and end is None:
            written.pop()
            text = self._text(written)
        spans = tuple(self._template.controls.literal(text).literal_spans)
        return _Segment(text, spans, tuple(written), end)

    def _text(self, tokens: Sequence[Token]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, tokens)).decode("utf-8", "replace")

    def _kept(self, rendered: RenderedPrompt) -> tuple[list[_Segment], list[Token], int]:
        """What of the segments stands for the beginning of `rendered`: the segments, their ids,
        and how long that beginning is."""
        controls = dict(self._own_controls(rendered))
        edges = {*controls, *controls.values()}
        kept: list[_Segment] = []
        num_safe = done = length = 0
        for segment in self._segments:
            segment = self._trimmed(segment, rendered, done)
            if not _stands_at(segment, rendered, done):
                break
            end = done + len(segment.text)
            if segment.end_token is not None:
                segment = self._ended(segment, rendered.text[end : controls.get(end, end)])
            kept.append(segment)
            done += len(segment.text)
            if done in edges:
                num_safe, length = len(kept), done
        kept = kept[:num_safe]
        return kept, [token for segment in kept for token in segment.tokens], length

    def _ended(self, segment: _Segment, spelling: str) -> _Segment:
        """An answer with its end token, where that is what the template ends it with."""
        text, tokens, end_token = segment.text, segment.tokens, segment.end_token
        if end_token is not None and spelling and self._spells(spelling, end_token):
            text, tokens = text + spelling, (*tokens, end_token)
        return _Segment(text, segment.spans, tokens)

    def _trimmed(self, segment: _Segment, rendered: RenderedPrompt, at: int) -> _Segment:
        """An answer without the white space at its end, where the template takes that off."""
        if _stands_at(segment, rendered, at) or not segment.text[-1:].isspace():
            return segment
        tokens = list(segment.tokens)
        while tokens and self._text(tokens[-1:]).isspace():
            tokens.pop()
        return msgspec.structs.replace(segment, text=self._text(tokens), tokens=tuple(tokens))

    def _own_controls(self, rendered: RenderedPrompt) -> list[tuple[int, int]]:
        """Start and end of each control token of the template's own."""
        literal = set(rendered.literal_spans)
        return [span for span in self._template.controls.find(rendered.text) if span not in literal]

    def _spells(self, text: str, token: Token) -> bool:
        return self._tokenizer.encode(text)[len(self._lead) :] == [token]

    def _pieces(self, rendered: RenderedPrompt, done: int) -> list[RenderedPrompt]:
        """`rendered` from `done` on, cut after its last control token: where the answer turns out
        to be written otherwise later, all before it stays."""
        last = max((end for _, end in self._own_controls(rendered)), default=0)
        edges = [done, *([last] if done < last < len(rendered.text) else []), len(rendered.text)]
        return [
            RenderedPrompt(
                rendered.text[start:end],
                [(a - start, b - start) for a, b in rendered.literal_spans if start <= a < end],
            )
            for start, end in itertools.pairwise(edges)
        ]

    def _encode(self, piece: RenderedPrompt, before: str) -> tuple[Token, ...]:
        """The ids of a piece that follows on the text `before`, which ends with a control token or
        not at all, unless one begins the piece."""
        encode = self._template.controls.encode
        if not before:
            return tuple(encode(self._tokenizer, piece))
        controls = self._template.controls.find(before)
        # Some control tokens take the white space that follows them.
        anchor = before[controls[-1][0] :] if controls and controls[-1][1] == len(before) else ""
        known = len(encode(self._tokenizer, RenderedPrompt(anchor)))
        return tuple(encode(self._tokenizer, RenderedPrompt(anchor) + piece)[known:])


def _stands_at(segment: _Segment, rendered: RenderedPrompt, at: int) -> bool:
    end = at + len(segment.text)
    spans = tuple((a - at, b - at) for a, b in rendered.literal_spans if at <= a < end)
    return rendered.text.startswith(segment.text, at) and spans == segment.spans
