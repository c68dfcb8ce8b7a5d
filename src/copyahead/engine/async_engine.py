"""An engine behind a worker thread: `async for chunk in engine.generate(request)`.

The thread alone touches the engine. Requests and cancellations reach it through a queue that
is emptied before each step, so a client that leaves frees its slot within one step. A grammar is
compiled in a thread of its own, and the request handed over when that is done.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType

from copyahead.contracts import Backend
from copyahead.drafters.draft_model import DraftModelCard
from copyahead.engine.engine import Engine
from copyahead.engine.handle import Handle
from copyahead.engine.request import Choice, Chunk, Completion, Request
from copyahead.errors import EngineFailed, EngineStopped
from copyahead.grammar.queue import CompileQueue, Job
from copyahead.grammar.state import GrammarState
from copyahead.stats import CopyStats
from copyahead.types import FinishReason

logger = logging.getLogger(__name__)

Item = Chunk | BaseException
"""What travels from the worker to a stream: a chunk, or why there will be no more."""


class Stream:
    """The chunks of one request. Iterate it once; leaving it early cancels the request."""

    def __init__(self, engine: AsyncEngine, request: Request) -> None:
        self.request = request
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._num_open = request.n
        self.num_unfinished = request.n
        """Answers of which the worker has not put the last chunk."""
        self._accepted, self._started = asyncio.Event(), asyncio.Event()
        self._refusal: BaseException | None = None
        self.handle: Handle | None = None
        self.over = False

    @property
    def stats(self) -> CopyStats:
        """Counters so far."""
        return self.handle.stats if self.handle is not None else CopyStats()

    async def accepted(self) -> None:
        """Wait until the engine has taken the request on; raises what iterating would raise."""
        await self._accepted.wait()
        if self._refusal is not None:
            raise self._refusal

    async def started(self) -> None:
        """Wait until the request holds a slot, or has ended without one; raises as `accepted`."""
        await self._started.wait()
        if self._refusal is not None:
            raise self._refusal

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[Chunk]:
        try:
            while self._num_open:
                item = await self._items.get()
                if isinstance(item, BaseException):
                    raise item
                self._num_open -= item.finish_reason is not None
                yield item
        finally:
            self.close()

    def close(self) -> None:
        """Cancel what still runs. Idempotent, and callable from any thread."""
        if not self.over:
            self.over = True
            self._engine._tell(lambda: self._engine._cancel(self))

    def put(self, item: Item) -> None:
        """Called by the worker."""
        self._post(self._take, item)

    def take_on(self, handle: Handle) -> None:
        """Called by the worker: the request has been submitted."""
        self.handle = handle
        handle.on_start = lambda: self._post(self._started.set)
        self._post(self._accepted.set)

    def _take(self, item: Item) -> None:
        if isinstance(item, BaseException):
            self._refusal = item
        self._accepted.set()
        self._started.set()
        self._items.put_nowait(item)

    def _post(self, action: Callable[..., None], *arguments: Item) -> None:
        try:
            self._loop.call_soon_threadsafe(action, *arguments)
        except RuntimeError:
            # The stream's event loop is closed: nobody is left to read.
            self.close()


class AsyncEngine:
    """Runs an `Engine` in a thread of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wake = threading.Condition()
        self._orders: deque[Callable[[], None]] = deque()
        self._streams: set[Stream] = set()
        self._stopping = False
        self._failure: BaseException | None = None
        self.compiling = CompileQueue(engine.grammar_compiler, engine.grammar_child)
        self._thread = threading.Thread(target=self._run, name="copyahead-engine", daemon=True)
        self._thread.start()

    def generate(self, request: Request) -> Stream:
        """A stream of the request's chunks; its work begins at once.

        Iterating raises RequestError, before any chunk, when the request cannot be served as
        asked, EngineStopped when the engine is closed, and EngineFailed when its worker has failed.
        """
        stream = Stream(self, request)
        self._streams.add(stream)
        self._tell(lambda: self._take_on(stream), otherwise=stream)
        return stream

    async def complete(self, request: Request) -> Completion:
        """Run one request to its end."""
        choices = [Choice(index=index) for index in range(request.n)]
        stream = self.generate(request)
        async for chunk in stream:
            choices[chunk.index].add(chunk)
        return Completion(choices=choices, stats=stream.stats)

    @property
    def backend(self) -> Backend:
        """The engine's backend. Only the worker runs passes on it."""
        return self._engine.backend

    @property
    def draft_model(self) -> DraftModelCard | None:
        """What there is to say of the engine's draft model, if it has one."""
        return self._engine.draft_model

    @property
    def max_draft_tokens(self) -> int:
        """Longest draft that the backend and the options allow; 0 when nothing is drafted."""
        return self._engine.max_draft_tokens

    @property
    def num_active(self) -> int:
        """Answers that are waiting or running, as the worker last left them."""
        return self._engine.num_active

    @property
    def cells_in_use(self) -> float:
        """The share of the backend's cells that hold something, kept prefixes included."""
        return self._engine.cells_in_use

    @property
    def held(self) -> dict[str, int]:
        """See `Engine.held`; read while the worker runs, so it may be a moment old."""
        return self._engine.held

    @property
    def running(self) -> bool:
        """Whether requests are taken."""
        return not self._stopping and self._failure is None

    @property
    def failure(self) -> BaseException | None:
        """What ended the worker; None while it runs, and when it was closed."""
        return self._failure

    def close(self) -> None:
        """End what runs, stop the worker, and free the backend. Idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        self.compiling.close()
        try:
            self._engine.close()
        except Exception:
            if self._failure is None:
                raise
            logger.exception("the engine that had failed could not be freed")

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    def _tell(self, order: Callable[[], None], otherwise: Stream | None = None) -> None:
        with self._wake:
            if self.running:
                self._orders.append(order)
                self._wake.notify()
                return
        if otherwise is not None:
            self._streams.discard(otherwise)
            otherwise.put(self._end("the engine is closed and takes no more requests"))

    def _end(self, closed: str) -> EngineStopped:
        """Why there is no more: `closed`, or that the worker has failed."""
        if self._failure is None:
            return EngineStopped(closed)
        return EngineFailed(f"the engine has failed: {self._failure!r}")

    def _run(self) -> None:
        try:
            while self._take_orders():
                self._engine.step()
        except BaseException as error:
            self._failure = error
            logger.exception("the engine's worker failed")
        finally:
            with self._wake:
                self._stopping = True
            for stream in list(self._streams):
                stream.put(self._end("the engine stopped while the request was running"))

    def _take_orders(self) -> bool:
        """Wait until there is work, carry out what was asked; False when it is time to stop."""
        with self._wake:
            while not (self._orders or self._stopping or self._engine.num_active):
                self._wake.wait()
            if self._stopping:
                return False
            orders, self._orders = list(self._orders), deque()
        for order in orders:
            order()
        return True

    def _take_on(self, stream: Stream) -> None:
        """Submit a request, when its grammar has been compiled."""
        try:
            grammar = self._engine.grammar_of(stream.request)
            if grammar is not None:
                self.compiling.put(
                    Job(
                        grammar,
                        take=lambda state: self._tell(lambda: self._submit(stream, state)),
                        wanted=lambda: not stream.over,
                    )
                )
                return
        except Exception as error:
            self._submit(stream, error)
            return
        self._submit(stream, None)

    def _submit(self, stream: Stream, grammar: GrammarState | Exception | None) -> None:
        if stream not in self._streams:
            return
        try:
            if isinstance(grammar, Exception):
                raise grammar
            sink = partial(self._deliver, stream)
            stream.take_on(self._engine.submit(stream.request, sink, grammar))
        except Exception as error:
            self._streams.discard(stream)
            stream.put(error)

    def _deliver(self, stream: Stream, chunk: Chunk) -> None:
        stream.num_unfinished -= chunk.finish_reason is not None
        if not stream.num_unfinished:
            # It may never be read to its end.
            self._streams.discard(stream)
        stream.put(chunk)

    def _cancel(self, stream: Stream) -> None:
        known = stream in self._streams
        self._streams.discard(stream)
        if stream.handle is not None:
            self._engine.cancel(stream.handle)
        elif known:
            # Its grammar is still being compiled: the engine has never heard of it.
            for index in range(stream.request.n):
                stream.put(Chunk(index=index, finish_reason=FinishReason.CANCELLED))
