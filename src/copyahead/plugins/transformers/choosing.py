"""Choosing tokens as transformers' own loop does: its processors, one draw, its criteria.

A row is shown to them alone, with a batch of one, token by token, and only as far as its text
goes. So what they see and draw does not depend on what was drafted.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers.generation import logits_process as processors
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from copyahead.acceptance import sample_and_compare
from copyahead.plugins.transformers.writing import Row, Writing
from copyahead.types import Draft, Token

STATEFUL = (
    processors.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    processors.SynthIDTextWatermarkLogitsProcessor,
)
"""Processors that keep a state for the whole batch: rows that advance apart would mix it up."""

_BY_ROW = (
    processors.RepetitionPenaltyLogitsProcessor,
    processors.EncoderRepetitionPenaltyLogitsProcessor,
    processors.EncoderNoRepeatNGramLogitsProcessor,
)
"""Processors that hold something of each row."""


class Chooser:
    """What chooses the tokens of one call."""

    def __init__(
        self, writing: Writing, logits_processor: Any, stopping_criteria: Any, config: Any
    ) -> None:
        """`config`: the generation config."""
        self._writing = writing
        self._config = config
        recorded = config.return_dict_in_generate
        self._keeps_scores = bool(recorded and config.output_scores)
        self._keeps_logits = bool(recorded and config.output_logits)
        self._greedy = not config.do_sample
        num_rows = len(writing.rows)
        self._processors = [
            _for_row(logits_processor, row.index, num_rows, config) for row in writing.rows
        ]
        # In a batch rows advance at a speed of their own, so each draws from a generator of its
        # own; one row draws as plain `generate` does.
        self._generators: list[Any] = [None] * num_rows
        if num_rows > 1 and not self._greedy:
            device = writing.prompt.device
            seeds = torch.randint(2**62, (num_rows,)).tolist()
            self._generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        self._ends: set[Token] = set()
        self._max_length: int | None = None
        self._criteria = [c for c in stopping_criteria if not self._is_plain(c)]
        self._simple = not (
            logits_processor or config.do_sample or self._keeps_scores or self._keeps_logits
        )

    def _is_plain(self, criterion: Any) -> bool:
        """Note a criterion that needs no tensor."""
        if type(criterion) is EosTokenCriteria:
            self._ends.update(torch.as_tensor(criterion.eos_token_id).flatten().tolist())
            return True
        if type(criterion) is MaxLengthCriteria:
            low = min(self._max_length or criterion.max_length, criterion.max_length)
            self._max_length = low
            return True
        return False

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Tokens that end a row."""
        return frozenset(self._ends)

    def room(self, row: Row) -> int:
        """How many tokens the row may still write."""
        if self._max_length is None:
            return 2**31
        return max(0, self._max_length - self._writing.length(row))

    def emit(
        self, rows: Sequence[Row], drafts: Sequence[Draft], resting: Sequence[bool], logits: Any
    ) -> list[list[Token]]:
        """What each row writes in this round; nothing where it is `resting`.

        `logits`: shape `[len(rows), 1 + longest draft, vocab_size]`, what follows each row's
        pending token and its draft.
        """
        device = self._writing.prompt.device
        picks: list[list[Token]] = []
        if self._simple:
            picks = logits.to(dtype=torch.float32, device=device).argmax(-1).tolist()
        emitted: list[list[Token]] = []
        for place, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            if resting[place]:
                emitted.append([])
                continue

            def choose(j: int, place: int = place, row: Row = row) -> Token:
                return picks[place][j] if picks else self._choose(row, logits[place, j])

            def ended(token: Token, row: Row = row) -> bool:
                return self._ended(row, token)

            emitted.append(sample_and_compare(draft.tokens, choose, ended))
        return emitted

    def _choose(self, row: Row, logits: Any) -> Token:
        ids = self._writing.ids(row)
        raw = logits[None].to(copy=True, dtype=torch.float32, device=ids.device)
        scores = self._processors[row.index](ids, raw)
        if self._keeps_scores:
            row.scores.append(scores)
        if self._keeps_logits:
            row.logits.append(raw)
        if self._greedy:
            return int(scores.argmax(-1))
        probs = torch.nn.functional.softmax(scores, dim=-1)
        generator = self._generators[row.index]
        return int(torch.multinomial(probs, num_samples=1, generator=generator))

    def _ended(self, row: Row, token: Token) -> bool:
        """Take the row's next token; whether its text rests there."""
        writing = self._writing
        row.written.append(token)
        length = writing.length(row)
        done = token in self._ends or (self._max_length is not None and length >= self._max_length)
        if self._criteria:
            scores = tuple(row.scores) if self._keeps_scores else None
            verdicts = [c(writing.ids(row), scores) for c in self._criteria]
            done = done or any(bool(torch.as_tensor(verdict).any()) for verdict in verdicts)
        if done and row.ended_at is None:
            row.ended_at = len(row.written)
        return writing.rests(row)


def _for_row(shared: Any, row: int, num_rows: int, config: Any) -> Any:
    """The processors of one row, which see a batch of one."""
    if num_rows == 1:
        return shared
    made = type(shared)()
    for processor in shared:
        own = _one_row(processor, row, num_rows, config)
        if own is not None:
            made.append(own)
    return made


def _one_row(processor: Any, row: int, num_rows: int, config: Any) -> Any:
    """`processor` for one row of a batch; None where it leaves that row alone."""
    kind = type(processor)
    if kind is processors.PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        prompt = row // (config.num_return_sequences or 1)
        return kind(lambda _batch, ids: allowed(prompt, ids), 1)
    if kind not in _BY_ROW:
        return processor
    own = copy.copy(processor)
    if kind is processors.RepetitionPenaltyLogitsProcessor:
        if isinstance(own.prompt_ignore_length, torch.Tensor):
            own.prompt_ignore_length = own.prompt_ignore_length[row : row + 1]
    elif kind is processors.EncoderRepetitionPenaltyLogitsProcessor:
        if row >= len(own.encoder_input_ids):
            return None
        own.encoder_input_ids = own.encoder_input_ids[row : row + 1]
    else:
        place = row // (num_rows // own.batch_size)
        own.generated_ngrams, own.batch_size = own.generated_ngrams[place : place + 1], 1
    return own
