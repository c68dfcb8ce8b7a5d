"""One answer that is being written: its tokens, its text, and when it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from copyahead.acceptance import num_accepted, rejection, sample_and_compare
from copyahead.contracts import Backend, DraftSession, Logits, Sampler, Tokenizer
from copyahead.engine.origin import Round, stretches
from copyahead.engine.request import Chunk, Request, TokenLogprob
from copyahead.engine.slots import Slot
from copyahead.engine.text import TextStream
from copyahead.errors import CopyaheadError, RequestError
from copyahead.grammar.state import GrammarState
from copyahead.stats import CopyStats
from copyahead.types import OWN_SOURCES, Draft, FinishReason, Source, Token


class Answer:
    """One choice of one request, from its prompt to its last token.

    `tokens` holds prompt and answer. The slot holds the first `slot.length` of them; what is
    missing there is fed to the next pass, be it a prompt, one pending token, or all of it
    again after the request gave its place up.
    """

    def __init__(
        self,
        request: Request,
        index: int,
        *,
        key: int,
        sampler: Sampler,
        tokenizer: Tokenizer,
        context_size: int,
        grammar: GrammarState | None,
        leader: Answer | None,
    ) -> None:
        self.request = request
        self.index = index
        self.key = key
        """Unique in its engine."""
        self.leader = leader
        """The choice that reads the prompt for this one; None for that one itself."""
        self.group: str | int = request.group or (leader.key if leader is not None else key)
        """Whose answers share slots as one; see `scheduler`."""
        self.tokens: list[Token] = list(request.prompt)
        self.num_prompt_tokens = len(self.tokens)
        self.slot: Slot | None = None
        self.session: DraftSession | None = None
        self.sampler = sampler
        self.grammar = grammar
        self.stats = CopyStats(num_prompt_tokens=self.num_prompt_tokens)
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.error_field: str | None = None
        self.drafting = request.lookup and request.max_draft_tokens != 0
        self._end_tokens = frozenset() if request.ignore_eos else tokenizer.end_tokens
        self._stop_tokens = self._end_tokens | frozenset(request.stop_token_ids)
        self._num_ids = tokenizer.vocab_size
        self._early = np.asarray(sorted(self._stop_tokens), dtype=np.int64)
        bias = request.sampling.logit_bias
        self._barred = np.asarray([t for t, b in bias.items() if b <= -100.0], dtype=np.int64)
        self._masked = bool(request.min_tokens or grammar is not None or len(self._barred))
        self._text = TextStream(tokenizer, request.stop)
        room = context_size - self.num_prompt_tokens
        self.max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
        self._new: list[tuple[Token, bool]] = []
        self._new_logprobs: list[TokenLogprob] = []
        scores = request.prompt_logprobs is not None
        self.num_scored = 0 if scores else self.num_prompt_tokens - 1
        """Tokens of the prompt, of those after the first, whose log-probabilities need no more."""
        self._new_scores: list[TokenLogprob] = []
        self._num_drafted = 0
        self._newest_source: Source | None = None
        """Where the draft has the newest token from; None where it was not drafted."""
        self._round = Round()
        self._finish_sent = False
        self.admitted_at = 0.0
        self._first_token_at = 0.0

    @property
    def num_output_tokens(self) -> int:
        """Tokens written so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_pending(self) -> int:
        """Tokens that the slot does not hold yet; at least 1 while the answer runs."""
        return len(self.tokens) - (self.slot.length if self.slot else 0)

    @property
    def decoding(self) -> bool:
        """Whether only the newest token is pending, and it is one that was written."""
        return self.num_pending == 1 and self.num_output_tokens > 0

    @property
    def room_for_drafts(self) -> int:
        """Longest useful draft: the round also emits a token of its own."""
        room = self.max_tokens - self.num_output_tokens - 1
        asked = self.request.max_draft_tokens
        return max(0, room if asked is None else min(room, asked))

    @property
    def is_scored(self) -> bool:
        """Whether the prompt's log-probabilities, where they were asked for, are there."""
        return self.num_scored >= self.num_prompt_tokens - 1

    def num_scoring_rows(self, start: int, count: int) -> int:
        """Of `count` rows from position `start` on, how many give log-probabilities of the prompt.

        The row of a token gives that of the next one.
        """
        end = min(start + count, self.num_prompt_tokens - 1)
        return max(0, end - max(start, self.num_scored))

    def _score(self, logits: Logits) -> Logits:
        """Read the prompt's log-probabilities off the first rows; the other rows."""
        top = self.request.prompt_logprobs
        if self.is_scored or top is None or self.slot is None:
            return logits
        first = max(self.slot.length, self.num_scored)
        count = min(len(logits), self.num_prompt_tokens - 1 - first)
        for row in range(count):
            logits[row, self._num_ids :] = -np.inf
            self._new_scores.append(_Logprobs(logits[row], top).entry(self.tokens[first + row + 1]))
        self.num_scored = first + count
        if self.num_scored == self.num_prompt_tokens - 1 and self.max_tokens == 0:
            self.finish(FinishReason.LENGTH)
            return logits[:0]
        return logits[count:]

    def verify(self, draft: Draft, logits: Logits) -> list[Token]:
        """The tokens that this round emits: chosen from `logits` while they follow `draft`.

        `logits`, shape `[1 + len(draft), vocab_size]`, is overwritten; it has no rows inside a
        prompt, and then nothing is emitted. Rows that score the prompt come first. A fault ends
        this answer, with an error, and nothing else; what came before it has been written and
        counts.
        """
        logits = self._score(logits)
        if len(logits) == 0:
            return []
        drafted, start = draft.tokens, len(self.tokens)
        self._round = Round.of(draft)
        num_new, num_logprobs = len(self._new), len(self._new_logprobs)
        try:
            return sample_and_compare(
                drafted,
                lambda row: self._choose(logits[row], draft, row),
                self._accept,
            )
        except Exception as error:
            known = isinstance(error, CopyaheadError)
            self.finish(FinishReason.ERROR, str(error) if known else f"internal fault: {error!r}")
            self.error_field = error.field if isinstance(error, RequestError) else None
            return self.tokens[start:]
        except BaseException:
            # A draw that was left half done cannot be taken back: going on could give other text.
            num_emitted = len(self.tokens) - start
            del self._new[num_new + num_emitted :]
            del self._new_logprobs[num_logprobs + num_emitted :]
            self.finish(FinishReason.ERROR, "interrupted while a token was chosen")
            raise

    def _choose(self, logits: Logits, draft: Draft, row: int) -> Token:
        """The token for the next place, from its row of logits (overwritten)."""
        if len(logits) > self._num_ids:
            # A row may be wider than the vocabulary: what lies beyond is padding, not tokens.
            logits[self._num_ids :] = -np.inf
        if self.request.logprobs is not None:
            reported = _Logprobs(logits, self.request.logprobs)
        if self._masked:
            self._mask(logits)
        draft_probs = draft.probs_at(row)
        if draft_probs is None:
            token = self.sampler.sample(logits)
        else:
            token = self._accept_or_redraw(logits, draft.tokens[row], draft_probs)
        if self.request.logprobs is not None:
            self._new_logprobs.append(reported.entry(token))
        kept = row < len(draft) and token == draft.tokens[row]
        self._newest_source = draft.source_at(row) if kept else None
        self._new.append((token, kept and self._newest_source is not Source.MODEL))
        return token

    def _accept_or_redraw(self, logits: Logits, drafted: Token, draft_probs: Logits) -> Token:
        """The token for the next place where the drafted one was drawn from `draft_probs`."""
        sampler = self.sampler
        target_probs = sampler.target_probs(logits)
        token = rejection(drafted, draft_probs, target_probs, sampler.draw)
        sampler.record(token)
        return token

    def _mask(self, logits: Logits) -> None:
        """Bar what must not come here; RequestError where that leaves nothing."""
        early = self.num_output_tokens < self.request.min_tokens
        if early:
            logits[self._early] = -np.inf
        if self.grammar is not None:
            self.grammar.mask(logits)
        if len(self._barred):
            # The sampler does so too; here, so that a dead end is seen.
            logits[self._barred] = -np.inf
        if (early or self.grammar is not None or len(self._barred)) and logits.max() == -np.inf:
            field = "grammar" if self.grammar is not None else "logit_bias"
            raise RequestError(
                "no token is allowed here: grammar, logit_bias and min_tokens bar them all",
                field=field,
            )

    def _accept(self, token: Token) -> bool:
        """Take `token` as emitted; True when the answer ends with it."""
        self.tokens.append(token)
        if self._first_token_at == 0.0:
            self._first_token_at = time.perf_counter()
            self.stats.prefill_seconds = self._first_token_at - self.admitted_at
        may_stop = self.num_output_tokens >= self.request.min_tokens
        if self.grammar is not None:
            self.grammar.accept(token)
        if token in self._stop_tokens:
            self.finish(FinishReason.STOP)
        elif self._show(token, may_stop):
            self.finish(FinishReason.STOP, flush=False)
        elif self.grammar is not None and self.grammar.complete:
            self.finish(FinishReason.STOP)
        elif self.num_output_tokens >= self.max_tokens:
            self.finish(FinishReason.LENGTH)
        return self.finish_reason is not None

    def _show(self, token: Token, may_stop: bool) -> bool:
        """Add the newest token to the text; True when a stop string is complete.

        `copied` is what was copied from text of the request itself. That others wrote the same is
        seen only where origins are asked for.
        """
        source = self._newest_source
        return self._text.push(
            token, copied=source in OWN_SOURCES, origin=(source, self._round), may_stop=may_stop
        )

    def settle(self, draft: Draft, emitted: list[Token]) -> int:
        """Count a verified round; returns how many drafted tokens were kept."""
        accepted = num_accepted(draft.tokens, emitted)
        self._num_drafted = len(draft)
        self._round.num_accepted_tokens = accepted
        self.stats.record_round(draft, accepted, len(emitted))
        self.stats.decode_seconds = time.perf_counter() - self._first_token_at
        return accepted

    def finish(self, reason: FinishReason, error: str | None = None, *, flush: bool = True) -> None:
        """End the answer. The first reason stands."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error
            if flush:
                self._text.finish()

    def take_chunk(self) -> Chunk | None:
        """What is new since the last call; None when there is nothing."""
        ending = self.finish_reason is not None and not self._finish_sent
        if not self._new and not self._new_scores and not ending:
            return None
        self._finish_sent = self.finish_reason is not None
        new, self._new = self._new, []
        logprobs, self._new_logprobs = self._new_logprobs, []
        scores, self._new_scores = self._new_scores, []
        drafted, self._num_drafted = self._num_drafted, 0
        pieces, by_origin = self._text.take_with_origins()
        return Chunk(
            index=self.index,
            tokens=tuple(token for token, _ in new),
            copied=tuple(copied for _, copied in new),
            num_draft_tokens=drafted,
            pieces=pieces,
            stretches=stretches(by_origin),
            logprobs=tuple(logprobs),
            prompt_logprobs=tuple(scores),
            finish_reason=self.finish_reason,
            error=self.error,
            error_field=self.error_field,
        )


def open_answers(
    request: Request,
    backend: Backend,
    *,
    keys: Iterator[int],
    context_size: int,
    grammar: GrammarState | None,
) -> list[Answer]:
    """One answer for each choice of `request`; the others wait for the first to read the prompt.

    Choice i has the seed `seed + i`; a request without a seed gets a random one.
    """
    seed = request.sampling.seed
    first_seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    answers: list[Answer] = []
    for index in range(request.n):
        sampling = replace(request.sampling, seed=(first_seed + index) % 2**32)
        answer = Answer(
            request,
            index,
            key=next(keys),
            sampler=backend.sampler(sampling, request.prompt),
            tokenizer=backend.tokenizer,
            context_size=context_size,
            grammar=grammar.copy() if grammar is not None else None,
            leader=answers[0] if answers else None,
        )
        answers.append(answer)
    return answers


class _Logprobs:
    """The model's own log-probabilities at one row, read before any option changes it."""

    def __init__(self, logits: Logits, num_top: int) -> None:
        values = logits.astype(np.float64)
        finite_max = values.max()
        self._values = values - finite_max - np.log(np.exp(values - finite_max).sum())
        self._num_top = min(num_top, int(np.isfinite(values).sum()))

    def entry(self, token: Token) -> TokenLogprob:
        top: tuple[tuple[Token, float], ...] = ()
        if self._num_top:
            best = np.argpartition(-self._values, self._num_top - 1)[: self._num_top]
            # Ties go to the lower id, so that the order does not depend on the partition.
            best = best[np.lexsort((best, -self._values[best]))]
            top = tuple((int(i), float(self._values[i])) for i in best)
        return TokenLogprob(token=token, logprob=float(self._values[token]), top=top)
