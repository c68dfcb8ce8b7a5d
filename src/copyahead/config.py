"""The options of a run, each described once.

Flags, environment variables (`COPYAHEAD_` and the name in capitals), and the
documentation are derived from these fields, their docstrings, and their checks.
How tokens are chosen is in `copyahead.sampling`; the knobs of each length policy stand beside it in
`copyahead.policies`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from copyahead.errors import ConfigError

KvType = Literal["auto", "f16", "bf16", "q8_0"]

MAX_DRAFT_TOKENS = 64
"""No draft is longer than this, whatever the policy."""


def check_range(name: str, value: int | None, low: int, high: int, hint: str = "") -> None:
    """Raise ConfigError unless `low <= value <= high`; None passes."""
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{name} must be from {low} to {high}, not {value}{hint}")


def usable_cpus() -> int:
    """The logical CPUs that this process may run on; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS and Windows do not.
    return max(1, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a llama.cpp model is loaded."""

    ctx: int = 4096
    """Most tokens one request may hold, prompt and answer together."""
    parallel: int = 1
    """Requests that run together."""
    threads: int | None = None
    """Threads of the model; one for each logical CPU that it may use when not given."""
    kv_type: KvType = "auto"
    """Type of the KV cache. `auto`: the fastest that the probe proves exact."""
    exact: bool = False
    """Insist on settings that the probe proves exact; fail where there are none."""
    gpu_layers: int = 0
    """Layers to put on a GPU, in a build of llama.cpp that has one; -1 for all."""
    verbose: bool = False
    """Show llama.cpp's own log."""

    def __post_init__(self) -> None:
        check_range("ctx", self.ctx, 64, 2**24)
        check_range("parallel", self.parallel, 1, 256)
        check_range("threads", self.threads, 1, 1024)
        check_range("gpu_layers", self.gpu_layers, -1, 10_000)
        if self.exact and self.kv_type == "f16" and self.threads != 1:
            raise ConfigError(
                "exact and kv_type f16 exclude each other: a one-row pass over an f16 cache is "
                "split over the threads and a longer one is not; take kv_type auto, bf16 or q8_0"
            )

    @property
    def num_threads(self) -> int:
        """The threads to use: `threads`, or what the process may run on."""
        return self.threads if self.threads is not None else usable_cpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """Whether and how drafts are copied."""

    lookup: bool = True
    """Draft by copying. Off: plain decoding and nothing else."""
    policy: str = "priced"
    """Rule for how much of a copy to try: a name, or `name:knob=value,knob=value`."""
    max_drafts: int = MAX_DRAFT_TOKENS
    """Longest draft, whatever the policy asks for."""

    def __post_init__(self) -> None:
        check_range(
            "max_drafts",
            self.max_drafts,
            1,
            MAX_DRAFT_TOKENS,
            "; to draft nothing use --no-lookup",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Whether requests also copy from text of others, always of the same tenant."""

    shared: bool = False
    """Also copy from other conversations of the same tenant (API key)."""
    shared_tokens: int = 2**20
    """Tokens of other conversations to keep for each tenant, at 16 bytes each; the oldest go."""

    def __post_init__(self) -> None:
        check_range("shared_tokens", self.shared_tokens, 1024, 2**26)
