"""The engine: `step` is the whole machine.

One thread runs it. `submit` and `cancel` take effect at the next step; `AsyncEngine` puts a
worker thread and queues around it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import msgspec

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Backend, Capabilities
from copyahead.drafters.draft_model import DraftModelCard
from copyahead.engine.answer import Answer, open_answers
from copyahead.engine.drafting import Drafting, MakeDrafter
from copyahead.engine.handle import Handle, Sink, collector
from copyahead.engine.pace import ReadingPace
from copyahead.engine.passes import Passes, PassTimes, Work
from copyahead.engine.request import Choice, Chunk, Completion, Request, check_request
from copyahead.engine.scheduler import EngineOptions, Scheduler
from copyahead.engine.slots import Slots
from copyahead.errors import ConfigError, RequestError
from copyahead.grammar.child import GrammarChild
from copyahead.grammar.compiler import Grammar, GrammarCompiler
from copyahead.grammar.state import GrammarState
from copyahead.policies import parse_policy
from copyahead.stats import CopyLog, CopyStats
from copyahead.step_cost import StepCost
from copyahead.types import FinishReason, Source, Token

logger = logging.getLogger(__name__)


class Engine:
    """Runs many requests together over one backend."""

    def __init__(
        self,
        backend: Backend,
        *,
        make_drafter: MakeDrafter | None = None,
        policy: str = "",
        max_draft_tokens: int = MAX_DRAFT_TOKENS,
        options: EngineOptions | None = None,
    ) -> None:
        self.backend = backend
        self.options = options or EngineOptions()
        self.stats = CopyStats()
        """Counters of all requests that have ended."""
        self.keep_step_cost: Callable[[StepCost], None] | None = None
        """Given the step cost when the engine is closed, where real passes have corrected it."""
        self.beside = contextlib.ExitStack()
        """What was loaded beside the backend: closed with the engine."""
        self.draft_model: DraftModelCard | None = None
        """What there is to say of a draft model, where one was loaded."""
        self._capabilities = _capabilities(backend)
        self._default_policy = policy
        vocab_size, measured = backend.tokenizer.vocab_size, backend.step_cost
        self._drafting = Drafting(make_drafter, policy, vocab_size, measured)
        self._slots = Slots(backend)
        pace = ReadingPace(self.options.chunk_tokens, self.options.busy_chunk_tokens)
        self._passes = Passes(backend, self._slots, pace)
        self._max_draft = self._passes.longest_draft(max_draft_tokens) if make_drafter else 0
        self._scheduler = Scheduler(self._slots, self._drafting, self._capabilities, pace)
        self.grammar_compiler = GrammarCompiler(
            backend.tokenizer, backend.capabilities.logits_width
        )
        self.grammar_child = GrammarChild(backend.tokenizer.vocab_size)
        """Checks grammars for `AsyncEngine`; it runs from the first of them, or from `warm_up`."""
        self._handles: dict[int, Handle] = {}
        self._works: list[Work] = []
        """Those of the pass that is under way, or of one that was left early and is not mended."""
        self._keys = itertools.count()
        self._log = CopyLog()
        if self._max_draft > 0:
            self._drafting.drafter(None)

    @property
    def step_cost(self) -> StepCost:
        """What a pass costs now, by its rows: as measured at load, and corrected by real passes."""
        return self._passes.step_cost

    @property
    def pass_times(self) -> PassTimes:
        """The passes so far that only decoded: how many of how many rows, and their seconds."""
        return dict(self._passes.times)

    # Requests

    def grammar_of(self, request: Request) -> Grammar | None:
        """The request's grammar, which any thread may compile; None where it has none.

        Raises RequestError, before any work, when the request cannot be served as asked.
        """
        check_request(request, self._capabilities, self.backend.tokenizer.vocab_size)
        self._check_policy(request)
        if request.json_schema is not None:
            grammar = Grammar("json_schema", request.json_schema)
        elif request.grammar is not None:
            grammar = Grammar("grammar", request.grammar)
        else:
            return None
        self.grammar_compiler.load()
        return grammar

    def _check_policy(self, request: Request) -> None:
        """Have the request's drafter; RequestError for an unknown policy, drafting or not."""
        try:
            if self._max_draft > 0 and request.lookup:
                self._drafting.drafter(request.policy)
            elif request.policy not in (None, "", self._default_policy):
                parse_policy(request.policy)
        except ConfigError as error:
            raise RequestError(str(error), field="policy") from None

    def submit(self, request: Request, sink: Sink, grammar: GrammarState | None = None) -> Handle:
        """Take a request on; `sink` gets its chunks during later steps.

        `grammar`: what the request's grammar compiles to. Without it the grammar is compiled here,
        in the caller's own thread; as a stranger's grammar may crash the compiler, `AsyncEngine`
        has it checked in a process of its own first. Raises RequestError, before any work, when
        the request cannot be served as asked.
        """
        given = self.grammar_of(request)
        if grammar is None and given is not None:
            grammar = self.grammar_compiler.compile(given)
        answers = open_answers(
            request,
            self.backend,
            keys=self._keys,
            context_size=self._capabilities.context_size,
            grammar=grammar,
        )
        handle = Handle(request, answers, sink)
        for answer in answers:
            self._handles[answer.key] = handle
            self._scheduler.waiting.append(answer)
        return handle

    def cancel(self, handle: Handle) -> None:
        """End a request now and free what it holds. Idempotent; others are not touched."""
        for answer in handle.answers:
            if answer.finish_reason is None:
                answer.finish(FinishReason.CANCELLED)
                self._end(answer)

    def generate(self, request: Request) -> Iterator[Chunk]:
        """Run one request, with whatever else is submitted, and yield its chunks.

        Closing the iterator early cancels the request.
        """
        chunks: list[Chunk] = []
        handle = self.submit(request, chunks.append)
        try:
            while True:
                yield from chunks
                chunks.clear()
                if handle.done:
                    return
                self.step()
        finally:
            self.cancel(handle)

    def complete(self, request: Request) -> Completion:
        """Run one request to its end."""
        return self.complete_all([request])[0]

    def complete_all(self, requests: list[Request]) -> list[Completion]:
        """Run several requests together to their ends, in their own order."""
        answers = [[Choice(index=i) for i in range(request.n)] for request in requests]
        handles = [
            self.submit(request, collector(choices))
            for request, choices in zip(requests, answers, strict=True)
        ]
        try:
            while not all(handle.done for handle in handles):
                self.step()
        finally:
            for handle in handles:
                self.cancel(handle)
        return [
            Completion(choices=choices, stats=handle.stats)
            for handle, choices in zip(handles, answers, strict=True)
        ]

    # The machine

    def step(self) -> bool:
        """One target pass over everybody's rows; False when there is nothing to do.

        Whatever it raises, a next step can go on: what was not settled is as before.
        """
        self._mend()
        works = self._works = self._plan()
        try:
            for work, logits in self._passes.forward(works) if works else ():
                self._settle(work, work.answer.verify(work.draft, logits))
        except BaseException:
            with contextlib.suppress(Exception):  # The next step tries again.
                self._mend()
            raise
        self._works = []
        for work in works:
            self._emit(work.answer)
        return bool(works)

    def _mend(self) -> None:
        """Take back what a step left undone, and end every answer that has nothing to write."""
        self._passes.take_back(self._works)
        for work in self._works:
            self._catch_up(work)
        self._works = []
        for handle in dict.fromkeys(self._handles.values()):
            for answer in handle.answers:
                if answer.max_tokens == 0 and answer.is_scored:
                    answer.finish(FinishReason.LENGTH)
                if answer.finish_reason is not None and answer.key in self._handles:
                    self._end(answer)

    def _catch_up(self, work: Work) -> None:
        """Where tokens were emitted and not settled: count them, and draft on from them. Their rows
        have been taken back, and are computed once more."""
        answer = work.answer
        num_held = answer.slot.length if answer.slot is not None else 0
        emitted = answer.tokens[num_held + len(work.tokens) :]
        if answer.slot is None or not emitted:
            return
        if answer.stats.num_output_tokens < answer.num_output_tokens:
            answer.settle(work.draft, emitted)
        self._drafting.close(answer)
        self._drafting.open(answer)

    def _plan(self) -> list[Work]:
        """Who takes part, with which tokens and which draft."""
        shares = self._scheduler.shares()
        works = []
        for answer, count in shares:
            assert answer.slot is not None
            if answer.admitted_at == 0.0:
                self._note_start(answer)
            held = answer.slot.length
            works.append(Work(answer, answer.tokens[held : held + count]))
        self._drafting.load.active_requests = len(shares)
        self._draft([work for work in works if work.answer.decoding], sum(c for _, c in shares))
        return works

    def _note_start(self, answer: Answer) -> None:
        answer.admitted_at = time.perf_counter()
        handle = self._handles[answer.key]
        on_start, handle.on_start = handle.on_start, None
        if on_start is not None:
            on_start()

    def _draft(self, works: list[Work], num_rows: int) -> None:
        """Add drafts, within the rows of the pass, the cells, and what was proven exact."""
        if self._max_draft == 0 or not works:
            return
        answers = [work.answer for work in works]
        limits = [min(self._max_draft, answer.room_for_drafts) for answer in answers]
        wanted = min(sum(limits), self.options.max_draft_rows)
        budget = self._passes.room_for_drafts(len(works), num_rows, wanted)
        limits = [min(limit, budget) for limit in limits]
        cost, seconds = self._passes.step_cost, self._passes.seconds
        self._drafting.price(cost, len(works), num_rows, seconds)
        drafts = self._drafting.propose(answers, limits, budget)
        for work, draft in zip(works, drafts, strict=True):
            work.draft = draft

    def _settle(self, work: Work, emitted: list[Token]) -> None:
        """Drop rejected rows; let the drafter and the counters learn."""
        answer, slot = work.answer, work.answer.slot
        assert slot is not None
        accepted = 0
        if emitted:
            accepted = answer.settle(work.draft, emitted)
            self._drafting.settle(answer, work.draft, emitted)
            if work.draft.tokens and work.draft.source not in {Source.GRAMMAR, Source.MODEL}:
                self._log.record(work.draft, accepted, answer.stats.window)
        slot.length += len(work.tokens) + accepted
        if accepted < len(work.draft):
            self._slots.cut(slot, slot.length)

    def _emit(self, answer: Answer) -> None:
        """Hand out what is new; let an answer that has ended go."""
        if answer.key not in self._handles:
            return
        if answer.finish_reason is not None:
            self._end(answer)
            return
        chunk = answer.take_chunk()
        if chunk is not None:
            self._deliver(self._handles[answer.key], chunk)

    def _deliver(self, handle: Handle, chunk: Chunk) -> None:
        """Give a chunk to its sink; a sink that fails cancels its own request."""
        try:
            handle.sink(chunk)
        except Exception:
            logger.exception("a sink failed: its request is cancelled")
            self.cancel(handle)

    def _end(self, answer: Answer) -> None:
        self._scheduler.retire(answer, keep=answer.finish_reason is not FinishReason.ERROR)
        handle = self._handles.pop(answer.key)
        self.stats.add(answer.stats)
        chunk = answer.take_chunk()
        if chunk is not None:
            self._deliver(handle, chunk)

    # Life cycle

    def warm_up(self) -> None:
        """Prepare now what the first answer under a grammar would wait for."""
        if self.grammar_compiler.warm_up():
            self.grammar_child.start()

    @property
    def num_active(self) -> int:
        """Answers that are waiting or running."""
        return len(self._handles)

    @property
    def cells_in_use(self) -> float:
        """The share of the backend's cells that hold something, kept prefixes included."""
        num_cells = self.backend.capabilities.num_cells
        return (num_cells - self._slots.free_cells) / num_cells

    @property
    def held(self) -> dict[str, int]:
        """What running requests hold, by name; all 0 when none runs."""
        return {
            "requests": self.num_active,
            "slots": self._capabilities.num_slots - self._slots.num_idle,
            "cells": self._slots.busy_cells,
            "history_rows": self._drafting.num_open,
        }

    @property
    def max_draft_tokens(self) -> int:
        """Longest draft that the backend and the options allow; 0 when nothing is drafted."""
        return self._max_draft

    def reset(self) -> None:
        """Forget kept prefixes and all that drafting has learnt. Needs no request in flight."""
        if self._handles:
            raise RuntimeError("reset needs an engine without requests in flight")
        self._slots.clear()
        self._drafting.reset()

    def check(self) -> None:
        """Raise AssertionError unless all books agree. For tests; call it between steps."""
        self._slots.check()
        self.backend.check()
        self._drafting.check([*self._scheduler.running, *self._scheduler.waiting])
        for answer in self._scheduler.running:
            assert answer.slot is not None
            assert answer.num_pending >= 1, "a running answer has nothing to compute"
        for answer in self._scheduler.waiting:
            assert answer.slot is None
        known = {answer.key for answer in (*self._scheduler.running, *self._scheduler.waiting)}
        for handle in self._handles.values():
            for answer in handle.answers:
                assert answer.key in known or answer.finish_reason is not None, "it was forgotten"
        assert not self._works, "a pass was not settled"

    def close(self) -> None:
        """End what runs and free the backend. Idempotent."""
        for handle in list(self._handles.values()):
            self.cancel(handle)
        self.grammar_child.close()
        keep, self.keep_step_cost = self.keep_step_cost, None
        if keep is not None and self._passes.corrected:
            keep(self.step_cost)
        self.beside.close()
        self.backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _capabilities(backend: Backend) -> Capabilities:
    """The backend's, with a context that its cells can hold."""
    found = backend.capabilities
    size = min(found.context_size, found.num_cells)
    return msgspec.structs.replace(found, context_size=size)
