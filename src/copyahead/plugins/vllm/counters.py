"""What was drafted and what of it was kept, by source: a line in the log, and Prometheus.

vLLM counts drafts itself, and right, whoever made them. Where they came from is known here alone.
An engine in a process of its own has a registry that nobody reads: vLLM's `/metrics` shows these
counters then where `PROMETHEUS_MULTIPROC_DIR` is set.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.kernels import hosted
from copyahead.types import Source

logger = logging.getLogger(__name__)

SOURCES = {
    hosted.PROMPT: Source.PROMPT,
    hosted.OUTPUT: Source.OUTPUT,
    hosted.FROM_STORE: Source.SHARED,
    hosted.FROM_MODEL: Source.MODEL,
}
FLUSH_SECONDS = 1.0
"""Prometheus is told this often at most."""

Counts = npt.NDArray[np.int64]


class Counters:
    """Reads the counters of the steps now and then, and passes on what has come to them."""

    def __init__(self, counts: Counts, log_seconds: float) -> None:
        """`counts`: by source, tokens drafted and accepted."""
        self.faults = 0
        self._counts = counts
        self._log_seconds = log_seconds
        self._logged_at = self._flushed_at = time.monotonic()
        self._logged = self._flushed = counts.copy()
        self._logged_faults = 0
        self._metrics = _metrics()

    def tick(self) -> None:
        """Called every step."""
        now = time.monotonic()
        if now - self._flushed_at < FLUSH_SECONDS:
            return
        self._flushed_at = now
        self.flush()
        if self._log_seconds and now - self._logged_at >= self._log_seconds:
            self._logged_at = now
            self.log()

    def fault(self, error: Exception) -> None:
        """A step was plain because of `error`. The first is logged with where it came from."""
        self.faults += 1
        if self.faults == 1:
            logger.warning(
                "drafting failed and this step is plain; further faults are counted: %r",
                error,
                exc_info=error,
            )

    def flush(self) -> None:
        """Tell Prometheus."""
        if self._metrics is None:
            return
        drafted, accepted = self._metrics
        for number, source in SOURCES.items():
            new = self._counts[number] - self._flushed[number]
            drafted.labels(source).inc(int(new[hosted.DRAFTED]))
            accepted.labels(source).inc(int(new[hosted.ACCEPTED]))
        self._flushed = self._counts.copy()

    def log(self) -> None:
        """A line, where something was drafted since the last one."""
        new = self._counts - self._logged
        faults = self.faults - self._logged_faults
        if not new.any() and not faults:
            return
        parts = [
            f"{source} {new[number, hosted.ACCEPTED]} of {new[number, hosted.DRAFTED]}"
            for number, source in SOURCES.items()
            if new[number].any()
        ]
        logger.info(
            "accepted of drafted tokens: %s; faults: %d", ", ".join(parts) or "none", faults
        )
        self._logged, self._logged_faults = self._counts.copy(), self.faults


def _metrics() -> tuple[Any, Any] | None:
    """Two counters by source in the process's registry; None where there is no Prometheus."""
    try:
        from prometheus_client import REGISTRY, Counter
    except ImportError:
        return None
    made = []
    for name, about in (
        ("copyahead:draft_tokens_by_source", "Drafted tokens, by where they were copied from"),
        ("copyahead:accepted_tokens_by_source", "Those that were kept"),
    ):
        # One engine after another in one process counts on.
        known = getattr(REGISTRY, "_names_to_collectors", {}).get(name)
        made.append(known or Counter(name, about, ["source"]))
    return made[0], made[1]
