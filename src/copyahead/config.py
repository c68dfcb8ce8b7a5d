"""The options of a run, each described once.

Flags, environment variables (`COPYAHEAD_` and the name in capitals), the documentation, and the
checks are derived from these fields: type, range, default and docstring.
How tokens are chosen is in `copyahead.sampling`; the knobs of each length policy stand beside it in
`copyahead.policies`.
"""

# No `from __future__ import annotations` here: a command may inherit from these classes, and its
# flags are read in its own module, where the names in annotations kept as text are not known.

import os
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from copyahead.errors import ConfigError
from copyahead.ranges import Range, check_ranges

KvType = Literal["auto", "f16", "bf16", "q8_0"]
HybridRule = Literal["priced", "agree", "longer", "first"]
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]

MAX_DRAFT_TOKENS = 64
"""No draft is longer than this, whatever the policy."""

DraftLength = Annotated[int, Range(1, MAX_DRAFT_TOKENS, hint="to draft nothing use --no-lookup")]
NumParallel = Annotated[int, Range(1, 256)]


def usable_cpus() -> int:
    """The logical CPUs that this process may run on; at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it, macOS and Windows do not.
    return max(1, len(affinity(0)) if affinity is not None else os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is loaded: a GGUF file by llama.cpp, or a folder by transformers."""

    ctx: Annotated[int, Range(64, 2**24)] = 4096
    """Most tokens one request may hold, prompt and answer together."""
    parallel: NumParallel = 1
    """Requests that run together."""
    threads: Annotated[int | None, Range(1, 1024)] = None
    """Threads of the model. When not given: one for each logical CPU that it may use, and fewer
    while other programs use these."""
    kv_type: KvType = "auto"
    """Type of a GGUF model's KV cache. `auto`: the fastest that the probe proves exact."""
    exact: bool = False
    """Insist on settings that the probe proves exact; fail where there are none."""
    gpu_layers: Annotated[int, Range(-1, 10_000)] = 0
    """Layers of a GGUF model to put on a GPU, in a build of llama.cpp that has one; -1 for all."""
    device: Device = "auto"
    """Where a folder's model runs. `auto`: on a GPU where torch finds one."""
    dtype: Dtype = "auto"
    """Type of a folder's numbers. `auto`: as they are stored, but float32 for float16 on a CPU."""
    verbose: bool = False
    """Show the log of llama.cpp or transformers."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.exact and self.kv_type == "f16" and self.threads != 1:
            raise ConfigError(
                "exact and kv_type f16 exclude each other: a one-row pass over an f16 cache is "
                "split over the threads and a longer one is not; take kv_type auto, bf16 or q8_0"
            )

    @property
    def num_threads(self) -> int:
        """The threads to use: `threads`, or what the process may run on."""
        return self.threads if self.threads is not None else usable_cpus()

    def check_file(self) -> None:
        """Raise ConfigError for an option that a GGUF file does not have."""
        for name in ("device", "dtype"):
            if getattr(self, name) != "auto":
                raise ConfigError(
                    f"{name} is for the folder of a transformers model, and the model is a GGUF "
                    "file: leave it out"
                )

    def check_folder(self) -> None:
        """Raise ConfigError for an option that the folder of a transformers model does not have."""
        for name, default in (("kv_type", "auto"), ("gpu_layers", 0)):
            if getattr(self, name) != default:
                raise ConfigError(
                    f"{name} is for GGUF files, and the model is a folder of transformers: leave "
                    "it out"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """Whether and how drafts are copied."""

    lookup: bool = True
    """Draft by copying. Off: plain decoding and nothing else."""
    policy: str = "priced"
    """Rule for how much of a copy to try: a name, or `name:knob=value,knob=value`."""
    max_draft_tokens: DraftLength = MAX_DRAFT_TOKENS
    """Longest draft, whatever the policy asks for."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelOptions:
    """A draft model, and which of its tokens and of the copies are verified."""

    draft_model: str | None = None
    """Path or name of a small model with the same tokenizer, to draft where there is nothing to
    copy."""
    draft_max: Annotated[int, Range(1, 32)] = 8
    """Most tokens that the draft model drafts in a row."""
    draft_min_prob: Annotated[float, Range(0.0, 1.0)] = 0.0
    """A draft of the model ends before the first token that it gives a lower probability."""
    draft_gpu_layers: Annotated[int, Range(-1, 10_000)] = 0
    """Layers of the draft model to put on a GPU; -1 for all."""
    draft_sample: bool = False
    """Sample the model's drafts at the request's temperature and verify them by rejection: more of
    them are kept, but a seed no longer gives the sample of plain decoding."""
    hybrid: HybridRule = "priced"
    """Which draft is verified: the one that is worth most (`priced`), a long copy or one that the
    model agrees with (`agree`), a copy that is at least as long as the model's draft (`longer`),
    or any copy before the model (`first`)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.draft_model is None:
            changed = (f for f in fields(self) if getattr(self, f.name) != f.default)
            for field in changed:
                raise ConfigError(
                    f"{field.name} needs draft_model: name a small model with the same tokenizer"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """Whether requests also copy from text of others, always of the same tenant."""

    shared: bool = False
    """Also copy from other conversations of the same tenant (API key)."""
    shared_tokens: Annotated[int, Range(1024, 2**26)] = 2**20
    """Tokens of other conversations to keep for each tenant, at 16 bytes each; the oldest go."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one client of a server may ask for."""

    max_body_mb: Annotated[float | None, Range(0.0, above=True)] = None
    """Largest body of a request, in megabytes; by default 16, and less where the context cannot
    hold what such a body says."""
    max_prompt_tokens: Annotated[int | None, Range(1)] = None
    """Longest prompt in tokens; by default whatever the context holds."""
    max_queue: Annotated[int, Range(0)] = 64
    """Answers that may wait for a slot; with more, a request is refused with status 429."""
    queue_seconds: Annotated[float, Range(0.0, above=True)] = 60.0
    """Longest wait for a slot; after it the request is refused with status 429."""
    max_connections: Annotated[int, Range(1)] = 512
    """Most connections at a time; fewer where the process may not open that many files. With more,
    the one whose client has let the server wait for longest is closed."""
    header_seconds: Annotated[float, Range(0.0, above=True)] = 20.0
    """How long a client may take to send the headers of a request."""
    body_seconds: Annotated[float, Range(0.0, above=True)] = 60.0
    """How long a client may take to send the body of a request; after it, status 408."""
    unread_seconds: Annotated[float, Range(0.0, above=True)] = 30.0
    """How long a client may read nothing of what is sent to it; then it is cut off."""
    keepalive_seconds: Annotated[float, Range(0.0)] = 10.0
    """A comment is sent on a stream that was silent for this long; 0 sends none."""
    shutdown_seconds: Annotated[float, Range(0.0)] = 30.0
    """How long running streams may go on after Ctrl-C or SIGTERM; a second ends them at once."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def max_body_bytes(self) -> int | None:
        """`max_body_mb` in bytes; None where it is not given."""
        return None if self.max_body_mb is None else int(self.max_body_mb * 1_000_000)
