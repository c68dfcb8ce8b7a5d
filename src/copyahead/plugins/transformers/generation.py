"""`model.generate(**inputs, custom_generate=copyahead.generate)`: the same text in fewer passes.

transformers prepares inputs, processors, criteria and the cache as ever, and then hands its loop
over. One round of it is `Call._round`: propose, forward, emit, settle, for all rows at once.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from typing import Any

from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerationMixin

from copyahead.config import MAX_DRAFT_TOKENS, LookupOptions
from copyahead.contracts import Drafter, Load
from copyahead.errors import ConfigError
from copyahead.plugins.transformers.choosing import Chooser
from copyahead.plugins.transformers.drafting import CallDrafting, drafters_of, longest_text
from copyahead.plugins.transformers.refusals import check_cache, refuse
from copyahead.plugins.transformers.target import CachedTarget, Part, Target, WholeTarget
from copyahead.plugins.transformers.writing import Row, Writing
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT, Draft

_HOST = inspect.unwrap(GenerationMixin.generate).__code__


def generate(
    model: Any,
    input_ids: Any,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: Any = None,
    synced_gpus: bool = False,
    streamer: Any = None,
    policy: str = "priced",
    max_draft_tokens: int = MAX_DRAFT_TOKENS,
    step_cost: StepCost | None = None,
    drafter: Drafter | None = None,
    **model_kwargs: Any,
) -> Any:
    """The loop of transformers' `generate`, with drafts copied from what was read and written.

    Not called by itself: it is the value of `custom_generate`, and gets what `generate` prepares.
    Options of its own may stand beside those of `generate`:

    `policy`: as for `--policy`. `max_draft_tokens`: the longest draft. `step_cost`: T(n) of the
    model's passes; measured as they run when not given. `drafter`: one of your own in the place of
    a policy; it gets a row for each row of the batch.

    Raises ConfigError or ModelError, before anything is generated, for what it cannot honour.
    """
    if generation_config is None or logits_processor is None or stopping_criteria is None:
        raise ConfigError(
            "copyahead.generate is called by transformers: "
            "model.generate(..., custom_generate=copyahead.generate)"
        )
    options = LookupOptions(policy=policy, max_draft_tokens=max_draft_tokens)
    host = _host_arguments()
    refuse(
        model,
        generation_config,
        logits_processor,
        model_kwargs,
        batch_size=input_ids.shape[0],
        synced_gpus=synced_gpus or bool(host.get("synced_gpus")) or _is_sharded(model),
        has_assistant=host.get("assistant_model") is not None,
    )
    pad_token = generation_config._pad_token_tensor
    pads = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    writing = Writing(input_ids, pads, 0 if pad_token is None else int(pad_token))
    chooser = Chooser(writing, logits_processor, stopping_criteria, generation_config)
    kept = drafters_of(model, input_ids.device.type == "cpu")
    try:
        load = kept.load if step_cost is None else Load(step_cost=step_cost)
        vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        if drafter is None:
            longest = generation_config.max_length or input_ids.shape[1]
            drafter = kept.drafter(
                options.policy, input_ids.shape[0], longest_text(longest), vocab_size
            )
        drafting = CallDrafting(
            drafter,
            load,
            kept.meter if step_cost is None else None,
            vocab_size=vocab_size,
            max_draft_tokens=options.max_draft_tokens,
        )
        call = Call(model, writing, chooser, drafting, generation_config, model_kwargs)
        return call.run(streamer or host.get("streamer"))
    finally:
        kept.lock.release()


class Call:
    """One call of `generate`, from its prompts to its output."""

    def __init__(
        self,
        model: Any,
        writing: Writing,
        chooser: Chooser,
        drafting: CallDrafting,
        config: Any,
        model_kwargs: dict[str, Any],
    ) -> None:
        self._model = model
        self._writing = writing
        self._chooser = chooser
        self._drafting = drafting
        self._config = config
        self._cache = model_kwargs.get("cache") if config.use_cache else None
        mask = model_kwargs.get("attention_mask")
        self._prompts = _prompts(writing.prompt, mask)
        make: type[CachedTarget] | type[WholeTarget] = CachedTarget
        if self._cache is None:
            make = WholeTarget
        self._target: Target = (target := make(model, writing, config, model_kwargs))
        # A cache that outlives the call keeps every row, up to its last token but one.
        is_returned = config.return_dict_in_generate or getattr(
            self._cache, "_is_user_defined", False
        )
        self._returns_cache = self._cache is not None and is_returned
        # As in plain decoding, the cache then holds the last token of all rows but the slowest.
        self._feeds_last = self._returns_cache and writing.pads
        self._drops_rows = writing.pads and target.can_select and not self._returns_cache
        self._rows: list[Row] = list(writing.rows)

    def run(self, streamer: Any) -> Any:
        """Generate, and return what `generate` of transformers returns."""
        streamed = 0
        decoding = getattr(self._model, "_optimize_model_for_decode", contextlib.nullcontext)
        try:
            self._begin()
            with decoding():
                while True:
                    if streamer is not None:
                        streamed += self._stream(streamer, streamed)
                    if self._writing.is_done:
                        break
                    self._leave_out()
                    self._round()
            if self._returns_cache:
                self._target.finish(self._writing.num_written)
        finally:
            self._drafting.close()
            self._target.close()
        if streamer is not None:
            streamer.end()
        return self._output()

    def _begin(self) -> None:
        """Read the prompts, and write the first token of each row."""
        logits = self._target.prefill()
        if self._cache is not None:
            check_cache(self._model, self._cache)
        count = len(self._rows)
        emitted = self._chooser.emit(self._rows, [NO_DRAFT] * count, [False] * count, logits)
        for row, prompt, tokens in zip(self._rows, self._prompts, emitted, strict=True):
            if not self._writing.rests(row):
                self._drafting.open(row.index, prompt)
                self._drafting.settle(row.index, NO_DRAFT, tokens)

    def _round(self) -> None:
        """Propose, one pass, emit, settle."""
        rows = self._rows
        resting = [self._writing.rests(row) for row in rows]
        drafts = self._propose(resting)
        began = time.perf_counter()
        parts: list[Part] = []
        for row, draft, rests in zip(rows, drafts, resting, strict=True):
            silent = row.fed or (rests and not self._feeds_last)
            parts.append(() if silent else (row.written[-1], *draft.tokens))
        logits = self._target.forward(rows, parts)
        emitted = self._chooser.emit(rows, drafts, resting, logits)
        self._drafting.observe(len(rows) * max(map(len, parts)), time.perf_counter() - began)
        counts = []
        for row, part, draft, tokens, rests in zip(
            rows, parts, drafts, emitted, resting, strict=True
        ):
            counts.append(min(1, len(part)) if rests else len(tokens))
            row.fed = row.fed or (rests and len(part) > 0)
            if tokens:
                self._drafting.settle(row.index, draft, tokens)
        self._target.settle(counts)

    def _propose(self, resting: list[bool]) -> list[Draft]:
        """A draft for each row; none where it rests, or where it has room for one token only."""
        limits = [
            0 if rests else self._chooser.room(row) - 1
            for row, rests in zip(self._rows, resting, strict=True)
        ]
        return self._drafting.propose([row.index for row in self._rows], limits)

    def _leave_out(self) -> None:
        """Go on without the rows that have ended, where nobody asks for their cache."""
        if not self._drops_rows:
            return
        places = [p for p, row in enumerate(self._rows) if row.ended_at is None]
        if len(places) < len(self._rows):
            self._target.select(places)
            self._rows = [self._rows[place] for place in places]

    def _stream(self, streamer: Any, start: int) -> int:
        """Hand over what all rows have; returns how many tokens of each."""
        columns = self._writing.columns(start)
        for column in columns:
            streamer.put(self._writing.prompt.new_tensor(column).cpu())
        return len(columns)

    def _output(self) -> Any:
        writing, config = self._writing, self._config
        sequences = writing.sequences()
        if not config.return_dict_in_generate:
            return sequences
        rows = writing.rows
        return GenerateDecoderOnlyOutput(
            sequences=sequences,
            scores=writing.stacked([r.scores for r in rows]) if config.output_scores else None,
            logits=writing.stacked([r.logits for r in rows]) if config.output_logits else None,
            cache=self._cache,
        )


def _prompts(input_ids: Any, mask: Any) -> list[list[int]]:
    """The rows of a batch without their padding."""
    if mask is None or mask.dim() != 2 or input_ids.shape[1] == 0:
        found: list[list[int]] = input_ids.tolist()
        return found
    # A mask may be longer, where the cache holds what came before.
    real = mask[:, -input_ids.shape[1] :].bool()
    return [ids[kept].tolist() for ids, kept in zip(input_ids, real, strict=True)]


def _host_arguments() -> dict[str, Any]:
    """What the `generate` that is running was given.

    It does not hand its streamer on to a callable (nor its assistant), so they are read from its
    frame, which is told by its code.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not _HOST:
        frame = frame.f_back
    names = ("streamer", "assistant_model", "synced_gpus")
    return {} if frame is None else {name: frame.f_locals.get(name) for name in names}


def _is_sharded(model: Any) -> bool:
    """Whether the model's weights lie with several processes, which must run in step."""
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_managed_module

    return bool(is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))
