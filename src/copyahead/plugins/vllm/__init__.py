"""Drafts for vLLM.

proposer  the class that vLLM's method `custom_class` names: vLLM's arrays in, drafts out
rows      which row of the pool each of vLLM's rows is, found by content
steps     one step over all rows: one call of a kernel for `priced`, sessions for any other policy
costs     what a pass costs, from the steps' own times
settings  the options, from variables and a file
counters  what was drafted and kept, by source: the log, and vLLM's Prometheus registry
hook      the plugin that `COPYAHEAD_VLLM_HOOK=1` turns on: request ids, finished requests, copies
          beside vLLM's own drafter
samples   a seed's own sample, with drafts as without
measure   one engine that is timed, for `copyahead vllm-check`

Importing the package imports neither vLLM nor a kernel.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from copyahead.plugins.vllm.proposer import Proposer

__all__ = ["Proposer"]


def __getattr__(name: str) -> Any:
    if name == "Proposer":
        return import_module(f"{__name__}.proposer").Proposer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
