"""The running requests behind one HTTP request: one queue of chunks, one end.

A generation takes a place in the queue when it is made, and gives it back when its last answer has
been written, whether or not the client has read it. `close` cancels whatever still runs, counts,
and writes the log line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from copyahead.config import Limits
from copyahead.engine.async_engine import AsyncEngine, Stream
from copyahead.engine.request import Chunk, Request
from copyahead.errors import RequestError
from copyahead.server.errors import ApiError
from copyahead.server.http.limits import Queue, too_busy
from copyahead.stats import CopyStats
from copyahead.types import FinishReason

MAX_UNREAD = 16_384
"""Chunks that are kept for a client that reads more slowly than they are written."""


class Written(msgspec.Struct):
    """One answer, for a trace."""

    tokens: list[int] = []
    rounds: list[tuple[int, int]] = []
    """Drafted and accepted tokens of each round."""

    def add(self, chunk: Chunk) -> None:
        """Append a round."""
        self.tokens += chunk.tokens
        if chunk.tokens:
            self.rounds.append((chunk.num_draft_tokens, sum(chunk.copied)))


class Outcome(msgspec.Struct):
    """What became of a generation, for the log, the counters and the trace."""

    id: str
    route: str
    tenant: str
    stats: CopyStats
    reasons: list[str]
    """A finish reason for each answer, or why there is none: `cancelled`, `error`, `refused`."""
    queue_seconds: float
    first_token_seconds: float | None
    total_seconds: float
    gaps: list[float]
    """Seconds between chunks of the same answer."""
    written: list[Written]
    """The answers, in order; empty where nothing is recorded."""


class Generation:
    """Iterate it once for `(choice index, chunk)` pairs; raises ApiError when one fails."""

    def __init__(
        self,
        engine: AsyncEngine,
        requests: Sequence[Request],
        *,
        answer_id: str,
        route: str,
        queue: Queue,
        limits: Limits,
        done: Callable[[Generation, Outcome], None],
        keep_tokens: bool = False,
    ) -> None:
        """Submit `requests`; ApiError 429 when the queue is full.

        `keep_tokens`: the outcome holds what was written, for a trace.
        """
        self.id = answer_id
        # What one client asks for at once is one group, however many prompts it has.
        self.requests = [msgspec.structs.replace(each, group=answer_id) for each in requests]
        self._route = route
        self._queue, self._limits, self._done = queue, limits, done
        self._num_answers = sum(request.n for request in requests)
        queue.enter(self._num_answers)
        self._began = time.perf_counter()
        self._started_at: float | None = None
        self._first_token_at: float | None = None
        self._last_chunk_at: dict[int, float] = {}
        self._gaps: list[float] = []
        self._reasons: list[str | None] = [None] * self._num_answers
        self._written = [Written() for _ in range(self._num_answers if keep_tokens else 0)]
        self._failure: BaseException | None = None
        self._closed = False
        self._is_queued = True
        self._holds_slot = False
        self._items: asyncio.Queue[tuple[int, Chunk] | BaseException] = asyncio.Queue()
        self._streams: list[Stream] = [engine.generate(request) for request in self.requests]
        self._tasks = [asyncio.create_task(self._pump(*item)) for item in self._offsets()]
        self._tasks.append(asyncio.create_task(self._watch_start()))

    @property
    def stats(self) -> CopyStats:
        """Counters of all requests together."""
        total = CopyStats()
        for stream in self._streams:
            total.add(_read(stream))
        return total

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.requests[0].tenant

    @property
    def is_running(self) -> bool:
        """Whether it holds a slot."""
        return self._is_queued and self._holds_slot

    @property
    def is_waiting(self) -> bool:
        """Whether it has not held one yet."""
        return self._is_queued and not self._holds_slot

    async def accepted(self) -> None:
        """Wait until the engine has taken every request on; raises what it says of a wrong one."""
        for stream in self._streams:
            await stream.accepted()

    async def started(self, patience: float | None = None) -> None:
        """Wait until a slot is held, at most `patience` seconds. Raises what is wrong with a
        request, and ApiError 429 when the queue's limit is reached before."""
        await asyncio.wait([self._tasks[-1]], timeout=patience)
        if self._failure is not None:
            raise self._failure

    async def __aiter__(self) -> AsyncIterator[tuple[int, Chunk]]:
        open_answers = self._num_answers
        while open_answers:
            item = await self._items.get()
            if isinstance(item, BaseException):
                raise item
            index, chunk = item
            if chunk.finish_reason in (FinishReason.ERROR, FinishReason.CANCELLED):
                if chunk.error is not None and chunk.error_field is not None:
                    raise RequestError(chunk.error, chunk.error_field)
                raise ApiError(
                    chunk.error or "the request was cancelled",
                    status=500,
                    code="generation_failed",
                )
            open_answers -= chunk.finish_reason is not None
            yield index, chunk

    def end(self, reason: FinishReason) -> None:
        """No more is wanted: cancel what still runs, which counts as ended for `reason`."""
        self._reasons = [each or str(reason) for each in self._reasons]
        self._end()

    def close(self) -> None:
        """Cancel what still runs, give the place back, count and log. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        self._end()
        self._done(self, self._outcome())

    def _end(self) -> None:
        """Nothing more is written: cancel what still runs, and give the place back. Idempotent."""
        for stream in self._streams:
            stream.close()
        if self._is_queued:
            self._is_queued = False
            self._queue.leave(self._num_answers, ran=self._holds_slot)

    def _offsets(self) -> list[tuple[Stream, int]]:
        places, place = [], 0
        for stream in self._streams:
            places.append((stream, place))
            place += stream.request.n
        return places

    async def _pump(self, stream: Stream, offset: int) -> None:
        try:
            async for chunk in stream:
                if self._items.qsize() >= MAX_UNREAD:
                    raise _unread()
                self._items.put_nowait((offset + chunk.index, chunk))
                self._note(offset + chunk.index, chunk)
        except Exception as error:
            self._fail(error)

    async def _watch_start(self) -> None:
        """Note when the first slot is held; give up when that takes too long."""
        try:
            async with asyncio.timeout(self._limits.queue_seconds):
                await self.accepted()
                await self._any_started()
        except TimeoutError:
            self._fail(too_busy(f"no slot became free in {self._limits.queue_seconds:g} seconds"))
        except Exception as error:
            self._fail(error)
        else:
            self._started_at = time.perf_counter()
            if self._is_queued:
                self._holds_slot = True
                self._queue.num_running += 1

    async def _any_started(self) -> None:
        waits = [asyncio.ensure_future(stream.started()) for stream in self._streams]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._items.put_nowait(error)
            self._end()

    def _note(self, index: int, chunk: Chunk) -> None:
        at = time.perf_counter()
        if self._written:
            self._written[index].add(chunk)
        if chunk.tokens:
            if self._first_token_at is None:
                self._first_token_at = at
            if index in self._last_chunk_at:
                self._gaps.append(at - self._last_chunk_at[index])
            self._last_chunk_at[index] = at
        if chunk.finish_reason is not None:
            self._reasons[index] = str(chunk.finish_reason)
            if None not in self._reasons:
                self._end()

    def _outcome(self) -> Outcome:
        missing = "cancelled"
        if self._failure is not None:
            missing = "refused" if self._first_token_at is None else "error"
        at, first, started = time.perf_counter(), self._first_token_at, self._started_at
        return Outcome(
            id=self.id,
            route=self._route,
            tenant=self.tenant,
            stats=self.stats,
            reasons=[reason or missing for reason in self._reasons],
            queue_seconds=(started or at) - self._began,
            first_token_seconds=None if first is None else first - self._began,
            total_seconds=at - self._began,
            gaps=self._gaps,
            written=self._written,
        )


def _unread() -> ApiError:
    return ApiError(
        f"the client has left {MAX_UNREAD} chunks unread: read the stream faster",
        status=408,
        code="client_too_slow",
    )


def _read(stream: Stream) -> CopyStats:
    """A stream's counters, which the worker may be writing where a request was cancelled."""
    for _ in range(3):
        try:
            return stream.stats
        except RuntimeError:
            continue
    return CopyStats()
