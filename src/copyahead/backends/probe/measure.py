"""Measures one model under one set of settings: what a pass costs, and whether its logits are
those of one-row passes, bit for bit.

Run as a program (`python -m copyahead.backends.probe.measure REQUEST`), because the library reads
some switches once a process and because a bad build of it crashes; `probe.search` does that.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.load import ROWS_PER_REQUEST, LlamaSettings
from copyahead.backends.probe.measured import MeasuredBackend
from copyahead.backends.probe.ragged import NUM_PASSES, RaggedPasses
from copyahead.contracts import Capabilities, Logits, Part
from copyahead.errors import CopyaheadError
from copyahead.types import Token

TIMED_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Sizes of a pass whose cost is measured."""
CHECKED_ROWS = tuple(sorted({*TIMED_ROWS, 5, 7, 9, 15, 17, 31, 33, 63, ROWS_PER_REQUEST}))
"""Sizes whose logits are compared: odd ones too, as kernels work on rows in groups."""

QUICK_ROWS = (1, 16)
SCREENED_ROWS = (1, 2, 3, 5, 8, 9, 16, 17)
"""Sizes whose logits are compared when settings are only screened."""

SLOTS = 4
ONE_THREAD_ROWS = 16
"""Passes that are made once more on one thread."""
_REPEATS = 3
"""Repeats in a row whose times have to agree."""
_MOST_REPEATS = 9
_MOST_SECONDS = 10.0
"""Timing that does not become steady ends after so many repeats, or once it took this long."""
STEADY = 0.1
"""Times agree where those of no size lie, at the median, further than this share from their own."""
_SHORT_PASS = 8
"""Passes of at most so many rows are timed twice a repeat."""
_PREFILL_ROWS = 512
_SMALL_CHUNK = 100


class MeasurementRequest(msgspec.Struct, frozen=True):
    """What to measure."""

    path: str
    settings: LlamaSettings
    prefix: int
    """Tokens that stand before the measured rows."""
    quick: bool = False
    """Only what passes of `QUICK_ROWS` rows cost; nothing is compared."""


class Measurement(msgspec.Struct, frozen=True):
    """What was found."""

    prefix: int
    """Tokens that stood before the measured rows."""
    rows: int
    """Rows up to which every pass gave the logits of one-row passes; at least 1."""
    max_abs_diff: float
    """Largest absolute difference of a logit."""
    batched: bool
    """Whether small prefill chunks, neighbours in the pass, and cuts, forks and packed cells
    changed no bit."""
    any_threads: bool
    """Whether one thread gave the same bits as all of them."""
    step_seconds: dict[int, float]
    """Median seconds of a pass, by its rows, in the calmest repeats."""
    spread: float
    """How far the times of one size lay apart in them: the largest median deviation from the
    median, as a share of it. Above `STEADY` something else was using the machine."""
    capabilities: Capabilities


class Stage(msgspec.Struct, frozen=True):
    """What a measurement is about to do."""

    stage: str
    seconds_left: float | None = None
    """How long this and all that follows may take; None where that is not known yet."""


def measure(
    request: MeasurementRequest, on_stage: Callable[[Stage], None] = lambda _: None
) -> Measurement:
    """Load the model and measure it. Raises ModelError or BackendError."""
    on_stage(Stage("loading the model"))
    probe_room = msgspec.structs.replace(
        request.settings, ctx=request.prefix + 2 * ROWS_PER_REQUEST, parallel=SLOTS
    )
    backend = LlamaBackend(request.path, probe_room)
    try:
        measurer = Measurer(backend, request.prefix, on_stage)
        return measurer.run_quick() if request.quick else measurer.run()
    finally:
        backend.close()


Times = dict[int, list[float]]
"""Seconds that single passes took, by their rows."""


class Timing(NamedTuple):
    """What passes cost, and how far that is to be believed."""

    seconds: dict[int, float]
    spread: float

    @classmethod
    def of(cls, times: Times) -> Timing:
        """The medians of `times`, and the largest median deviation from them."""
        medians = {n: statistics.median(of_n) for n, of_n in times.items()}
        spreads = [
            statistics.median(abs(t - medians[n]) for t in of_n) / medians[n]
            for n, of_n in times.items()
        ]
        return cls(medians, max(spreads))


class Measurer:
    """Slot 0 holds the prefix and is forked; the others are worked in."""

    def __init__(
        self, backend: MeasuredBackend, prefix: int, on_stage: Callable[[Stage], None]
    ) -> None:
        self.backend = backend
        self._on_stage = on_stage
        room = backend.capabilities.context_size - 2 * ROWS_PER_REQUEST
        self.prefix = max(1, min(prefix, room))
        tokens = sample_tokens(backend, self.prefix + ROWS_PER_REQUEST)
        self.tokens = tokens[: self.prefix]
        self.rest = tokens[self.prefix :]
        self.other = sample_tokens(backend, 400)[100:]
        rewind = backend.capabilities.max_rewind
        self.max_rows = ROWS_PER_REQUEST if rewind is None else min(1 + rewind, ROWS_PER_REQUEST)
        self.rows = 1
        self.max_abs_diff = 0.0
        self.any_threads = False

    def run_rows(self) -> Measurement:
        """Compare passes of all sizes of one sequence, and time them: for what is not exact."""
        self._prefill(0, _PREFILL_ROWS)
        self._on_stage(Stage(f"{ROWS_PER_REQUEST} passes of one row"))
        self.reference = self._one_row_passes()
        self._on_stage(Stage("comparing passes of several rows with them"))
        self.rows = self._check_rows()
        self._on_stage(Stage("timing passes"))
        timing = self._time([n for n in TIMED_ROWS if n <= self.max_rows])
        return self._measurement(timing, batched=False)

    def run(self) -> Measurement:
        """Compare passes of all sizes, alone and beside others, and time them."""
        began = time.perf_counter()
        self._on_stage(Stage(f"reading {self.prefix} tokens"))
        self.last = self._prefill(0, _PREFILL_ROWS)
        read = time.perf_counter()
        self._on_stage(Stage(f"{ROWS_PER_REQUEST} passes of one row"))
        self.reference = self._one_row_passes()
        one = (time.perf_counter() - read) / ROWS_PER_REQUEST
        checks, batches, timing = self._estimates(one, (read - began) / self.prefix)
        sizes = [n for n in TIMED_ROWS if n <= self.max_rows]
        self._on_stage(
            Stage("comparing passes of several rows with them", checks + batches + timing)
        )
        self.rows = self._check_rows()
        self.any_threads = self._check_threads()
        self._on_stage(Stage("comparing passes of several sequences", batches + timing))
        batched = self._check_batched()
        if batched and self.rows == self.max_rows and self.backend.capabilities.can_fork:
            self._check_many_sequences()
        # Last, as many passes push what a sliding window has left behind out of the cache, and
        # the checks begin in the middle of the prefix.
        self._on_stage(Stage("timing passes", timing))
        return self._measurement(self._time(sizes), batched)

    def _estimates(self, one: float, row: float) -> tuple[float, float, float]:
        """Seconds of the comparisons, of those of several sequences, and of the timing.

        `one`: seconds of a pass of one row; `row`: what a token of a prompt takes.
        """
        checked = [n for n in CHECKED_ROWS if n <= self.max_rows]
        timed = [n for n in TIMED_ROWS if n <= self.max_rows]
        checks = sum(max(one, n * row) for n in checked)
        batches = self.prefix / 2 * row + NUM_PASSES * max(one, ROWS_PER_REQUEST * row)
        once = sum(max(one, n * row) * (2 if n <= _SHORT_PASS else 1) for n in timed)
        return checks, batches, _REPEATS * once

    def run_quick(self) -> Measurement:
        """Time two sizes, and compare nothing."""
        self._on_stage(Stage("timing passes"))
        self._prefill(0, _PREFILL_ROWS)
        timing = self._time([n for n in QUICK_ROWS if n <= self.max_rows])
        return self._measurement(timing, batched=False)

    def run_screen(self, dearest: float = math.inf) -> Measurement | None:
        """Time two sizes, and compare a few: what differs there need not be measured further.

        None where they cost more than `dearest` seconds, as `score` has it.
        """
        self._prefill(0, _PREFILL_ROWS)
        timing = Timing.of(self._time_rows([n for n in QUICK_ROWS if n <= self.max_rows]))
        if score(timing.seconds) > dearest:
            return None
        sizes = [n for n in SCREENED_ROWS if n <= self.max_rows]
        self.reference = self._one_row_passes(sizes[-1])
        for count in sizes:
            self._start()
            logits = self.backend.forward([self._block(1, count)])[0]
            if not self._same(logits, self.reference[:count]):
                break
            self.rows = count
        return self._measurement(timing, batched=False)

    def _measurement(self, timing: Timing, batched: bool) -> Measurement:
        return Measurement(
            prefix=self.prefix,
            rows=self.rows,
            max_abs_diff=self.max_abs_diff,
            batched=batched,
            any_threads=self.any_threads,
            step_seconds=timing.seconds,
            spread=timing.spread,
            capabilities=self.backend.capabilities,
        )

    def _prefill(self, slot: int, chunk: int, begin: int = 0) -> Logits:
        """Read the prefix from `begin` on into `slot`; the logits after its last token."""
        for start in range(begin, self.prefix, chunk):
            part = Part(slot, start, self.tokens[start : start + chunk], 1)
            logits = self.backend.forward([part])[0]
        return np.array(logits[0])

    def _start(self, slot: int = 1) -> None:
        """Make `slot` hold the prefix."""
        self.backend.fork(0, slot, self.prefix)

    def _one_row_passes(self, count: int = ROWS_PER_REQUEST) -> Logits:
        self._start()
        rows = []
        for offset, token in enumerate(self.rest[:count]):
            part = Part(1, self.prefix + offset, [token], 1)
            rows.append(self.backend.forward([part])[0][0].copy())
        return np.array(rows)

    def _check_rows(self) -> int:
        """Compare passes of growing size; the last size up to which all are equal."""
        exact = 1
        for count in CHECKED_ROWS:
            if count > self.max_rows:
                break
            self._start()
            logits = self.backend.forward([self._block(1, count)])[0]
            same = self._same(logits, self.reference[:count])
            if same and exact == previous_size(count):
                exact = count
        return exact

    def _check_threads(self) -> bool:
        """Compare passes on one thread: of one row each, and of the most rows."""
        self.backend.set_threads(1)
        self._start()
        block = self.backend.forward([self._block(1, self.max_rows)])[0]
        same = _bits_equal(block, self.reference[: self.max_rows])
        rows = self._one_row_passes(ONE_THREAD_ROWS)
        same = _bits_equal(rows, self.reference[: len(rows)]) and same
        self.backend.set_threads(self.backend.settings.threads)
        return same

    def _block(self, slot: int, count: int) -> Part:
        return Part(slot, self.prefix, self.rest[:count], count)

    def _same(self, logits: Logits, reference: Logits) -> bool:
        """Whether the two are equal bit for bit; remembers the largest difference."""
        if _bits_equal(logits, reference):
            return True
        with np.errstate(invalid="ignore"):
            difference = np.abs(logits - reference)
        self.max_abs_diff = max(self.max_abs_diff, float(np.nanmax(difference)))
        return False

    def _time(self, sizes: Sequence[int]) -> Timing:
        """Time passes of all `sizes`, up and down in turn, until they are steady."""
        repeats = (self._time_rows(sizes[:: -1 if n % 2 else 1]) for n in range(_MOST_REPEATS))
        return calmest(repeats, time.perf_counter() + _MOST_SECONDS)

    def _time_rows(self, sizes: Sequence[int]) -> Times:
        times: Times = {count: [] for count in sizes}
        for count in sizes:
            for _ in range(2 if count <= _SHORT_PASS else 1):
                self._start()
                part = [self._block(1, count)]
                begin = time.perf_counter()
                self.backend.forward(part)
                times[count].append(time.perf_counter() - begin)
        return times

    def _check_batched(self) -> bool:
        """A prefix read in small chunks from where it was cut, then passes beside neighbours."""
        self.backend.pack()
        self.backend.truncate(3, 0)
        self.backend.forward([Part(3, 0, self.other[:3], 1)])
        self.backend.truncate(2, 0)
        begin = 0
        if self.backend.capabilities.can_fork:
            # The first half is shared: reading it again would take long and show little more.
            begin = self.prefix // 2
            self.backend.fork(0, 2, begin)
        same = self._same(self._prefill(2, _SMALL_CHUNK, begin), self.last)
        passes = RaggedPasses(
            self.backend,
            prefix=self.prefix,
            rest=self.rest,
            other=self.other,
            same=lambda rows, at: self._same(rows, self.reference[at : at + len(rows)]),
        )
        return passes.check() and same

    def _check_many_sequences(self) -> None:
        """Whole blocks of several sequences in one pass: proves more rows than one has."""
        for slot in range(1, SLOTS):
            self._start(slot)
        blocks = [self._block(slot, ROWS_PER_REQUEST) for slot in range(SLOTS)]
        logits = self.backend.forward(blocks)
        if all(self._same(block, self.reference) for block in logits):
            self.rows = SLOTS * ROWS_PER_REQUEST


def score(seconds: Mapping[int, float]) -> float:
    """Seconds: the geometric mean of a one-row pass and one of 16 rows."""
    one = seconds[1]
    return math.sqrt(one * seconds.get(16, one))


def calmest(repeats: Iterable[Times], deadline: float) -> Timing:
    """The medians of those `_REPEATS` repeats in a row that agree best.

    No further repeat is asked for once some are steady, or after `deadline`, a time of
    `time.perf_counter`; `_REPEATS` are always taken.
    """
    last: deque[Times] = deque(maxlen=_REPEATS)
    best: Timing | None = None
    for times in repeats:
        last.append(times)
        if len(last) < _REPEATS:
            continue
        timing = Timing.of({n: [t for one in last for t in one[n]] for n in sorted(times)})
        if best is None or timing.spread < best.spread:
            best = timing
        if best.spread <= STEADY or time.perf_counter() > deadline:
            break
    assert best is not None
    return best


def previous_size(count: int) -> int:
    """The checked size before `count`; 1 for the first."""
    position = CHECKED_ROWS.index(count)
    return CHECKED_ROWS[max(0, position - 1)]


def sample_tokens(backend: MeasuredBackend, count: int) -> list[Token]:
    """Tokens of a real text, for the model to read: a source file of the standard library.

    A tokenizer that makes too little of it gets tokens drawn at random, always the same.
    """
    import textwrap

    tokens = backend.tokenizer.encode(Path(str(textwrap.__file__)).read_text(encoding="utf-8"))
    if len(set(tokens)) < 16:
        random = np.random.default_rng(0)
        tokens = [int(t) for t in random.integers(0, backend.tokenizer.vocab_size, count)]
    while len(tokens) < count:
        tokens = tokens + tokens[1:]
    return tokens[:count]


def _bits_equal(one: Logits, other: Logits) -> bool:
    left: npt.NDArray[Any] = np.ascontiguousarray(one).view(np.uint32)
    right: npt.NDArray[Any] = np.ascontiguousarray(other).view(np.uint32)
    return bool(np.array_equal(left, right))


def main(arguments: Sequence[str]) -> int:
    """Measure what the one argument, a request in JSON, asks for.

    Prints JSON: a line a stage, and last the result.
    """
    request = msgspec.json.decode(arguments[0], type=MeasurementRequest)
    try:
        answer: Any = measure(request, _print)
    except CopyaheadError as error:
        print(msgspec.json.encode({"error": str(error)}).decode())
        return 1
    _print(answer)
    return 0


def _print(line: msgspec.Struct) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
