"""Snapshots of vLLM's `/metrics`: Prometheus text, one or several in a file or several files.

Counters grow from when the server starts. Of several snapshots, in order, what they grew by from
the first to the last is taken; a counter that is smaller than before began anew with its server.
One snapshot alone counts from the start. copyahead's own `/metrics` has the same names.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from copyahead.traces.logs.bands import Take
from copyahead.traces.logs.quantiles import Buckets, Inverse, Quantiles

_SAMPLE = re.compile(rb"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? +(\S+)(?: +-?\d+)? *$")
_BOUND = re.compile(rb'\ble="([^"]+)"')
_REASON = re.compile(rb'\bfinished_reason="([^"]+)"')
_FAILED = (b"abort", b"error")

_SPEED = (b"request_time_per_output_token_seconds", b"time_per_output_token_seconds")
"""The second is of older versions: a time for each chunk, which drafts make longer than a token."""
_FIRST = b"time_to_first_token_seconds"
_READ, _WRITTEN = b"prompt_tokens_total", b"generation_tokens_total"
_HITS = (b"prefix_cache_hits_total", b"gpu_prefix_cache_hits_total")
_QUERIES = (b"prefix_cache_queries_total", b"gpu_prefix_cache_queries_total")
_DRAFTED = b"spec_decode_num_draft_tokens_total"
_ACCEPTED = b"spec_decode_num_accepted_tokens_total"
_DONE = b"request_success_total"
_WANTED = frozenset(
    (
        *(_READ, _WRITTEN, *_HITS, *_QUERIES, _DRAFTED, _ACCEPTED, _DONE),
        *(name + b"_bucket" for name in (*_SPEED, _FIRST)),
    )
)
_PREFIX = b"vllm:"


def is_vllm(line: bytes) -> bool:
    """Whether the line is of a snapshot of vLLM's counters."""
    return line.startswith((b"vllm:", b"# HELP vllm:", b"# TYPE vllm:"))


class VllmTotal:
    """What the counters grew by; has what `bands.Group` has."""

    def __init__(self, grown: dict[bytes, dict[bytes, float]]) -> None:
        self._grown = grown
        done = grown.get(_DONE, {})
        self.requests = round(sum(done.values()))
        failed = (count for labels, count in done.items() if _reason(labels) in _FAILED)
        self.failed = round(sum(failed))
        self.read, self.written = self._sum(_READ), self._sum(_WRITTEN)
        self.cached, self.read_known = self._sum(*_HITS), self._sum(*_QUERIES)
        self.drafted, self.accepted = self._sum(_DRAFTED), self._sum(_ACCEPTED)
        self.rounds = max(self.written - self.accepted, 0)

    @property
    def speed(self) -> Quantiles:
        """Of requests, in tokens a second."""
        by_request, by_chunk = map(self._buckets, _SPEED)
        return Inverse(by_request if by_request.count else by_chunk)

    @property
    def is_by_chunk(self) -> bool:
        """Whether `speed` is not of requests, but of chunks."""
        by_request, by_chunk = map(self._buckets, _SPEED)
        return by_chunk.count > 0 and not by_request.count

    @property
    def first_token(self) -> Quantiles:
        """Of requests, in seconds."""
        return self._buckets(_FIRST)

    def _sum(self, *names: bytes) -> int:
        """Of the first of `names` that there is; counters of several engines together."""
        found = next(filter(None, (self._grown.get(name) for name in names)), {})
        return round(sum(found.values()))

    def _buckets(self, name: bytes) -> Buckets:
        counts: dict[float, float] = {}
        for labels, count in self._grown.get(name + b"_bucket", {}).items():
            bound = _BOUND.search(labels)
            if bound is not None:
                value = float(bound[1])
                counts[value] = counts.get(value, 0.0) + count
        return Buckets(counts)


class VllmReader:
    """Reads one line after another. Its memory holds two snapshots' series."""

    def __init__(self, take: Take, wrong: Callable[[bytes], None]) -> None:
        self._wrong = wrong
        self._now: dict[tuple[bytes, bytes], float] = {}
        self._before: dict[tuple[bytes, bytes], float] | None = None
        self._grown: dict[tuple[bytes, bytes], float] = {}
        self.num_snapshots = 0

    def line(self, line: bytes) -> None:
        """Learn what a line says."""
        if not line.strip() or line.startswith(b"#"):
            return
        found = _SAMPLE.match(line)
        try:
            value = float(found[3]) if found is not None else -1.0
        except ValueError:
            value = -1.0
        if found is None or not value >= 0:
            # Gauges of other programs may be below zero or nan; vLLM's counters may not.
            if found is None or found[1].startswith(_PREFIX):
                self._wrong(line)
            return
        name = found[1].removeprefix(_PREFIX)
        if name not in _WANTED or name == found[1]:
            return
        series = name, found[2] or b""
        if series in self._now:
            self._end_snapshot()
        self._now[series] = value

    def new_file(self) -> None:
        """A snapshot does not go on in another file."""
        self._end_snapshot()

    def finish(self) -> None:
        """The last snapshot ends."""
        self._end_snapshot()

    @property
    def note(self) -> str:
        """What the figures are; after `finish`."""
        parts = [
            "counters do not tell the context of a request, its policy or its day, so there is the "
            "total only",
            "quantiles are as exact as the buckets of the server's histograms",
            f"what the counters grew by over {self.num_snapshots} snapshots"
            if self.num_snapshots > 1
            else "one snapshot counts from when the server started",
        ]
        if self.total().is_by_chunk:
            parts.append("speed is that of chunks, as this version counts no time a token")
        return "; ".join(parts)

    def total(self) -> VllmTotal:
        """What there is after `finish`."""
        grown = self._grown if self.num_snapshots > 1 else self._before or {}
        by_name: dict[bytes, dict[bytes, float]] = {}
        for (name, labels), count in grown.items():
            by_name.setdefault(name, {})[labels] = count
        return VllmTotal(by_name)

    def _end_snapshot(self) -> None:
        if not self._now:
            return
        self.num_snapshots += 1
        if self._before is not None:
            for series, value in self._now.items():
                before = self._before.get(series, 0.0)
                grown = value - before if value >= before else value
                self._grown[series] = self._grown.get(series, 0.0) + grown
        self._before = {**(self._before or {}), **self._now}
        self._now = {}


def _reason(labels: bytes) -> bytes:
    found = _REASON.search(labels)
    return found[1] if found is not None else b""
