"""What a key may know of the server while it runs: its own requests, and nothing of others'."""

from __future__ import annotations

import time
from typing import Any

from copyahead.server.generation import Generation
from copyahead.stats import CopyStats


class TenantBooks:
    """The counters of each tenant: of the requests that have ended, and of those that run."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._ended: dict[str, CopyStats] = {}
        self._live: dict[str, dict[str, Generation]] = {}

    def begin(self, generation: Generation) -> None:
        """Count a generation among those that run."""
        self._live.setdefault(generation.tenant, {})[generation.id] = generation

    def end(self, generation: Generation, stats: CopyStats) -> None:
        """Count it, with `stats`, among those that have ended."""
        self._live.get(generation.tenant, {}).pop(generation.id, None)
        self._ended.setdefault(generation.tenant, CopyStats()).add(stats)

    def status(self, tenant: str) -> dict[str, Any]:
        """The fields of `GET /copyahead/status` that are `tenant`'s: sums since the server began,
        with what running requests have written so far."""
        live = list(self._live.get(tenant, {}).values())
        total = CopyStats()
        for stats in (self._ended.get(tenant, CopyStats()), *(each.stats for each in live)):
            total.add(stats)
        return {
            "running": sum(each.is_running for each in live),
            "waiting": sum(each.is_waiting for each in live),
            "uptime_seconds": round(time.monotonic() - self._began, 3),
            "tokens": total.num_output_tokens,
            "rounds": total.rounds,
            "drafted": total.num_draft_tokens,
            "accepted": total.num_accepted_tokens,
            "by_source": {
                str(source): {
                    "drafted": count.num_draft_tokens,
                    "accepted": count.num_accepted_tokens,
                }
                for source, count in sorted(total.by_source.items())
            },
        }
