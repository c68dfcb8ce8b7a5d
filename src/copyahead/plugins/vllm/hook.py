"""The plugin of vLLM's group `vllm.general_plugins`. It does nothing unless COPYAHEAD_VLLM_HOOK=1.

It stands around three functions of vLLM: the runner's drafting, so that rows come with the names of
their requests and copies can stand beside vLLM's own drafter; the runner's bookkeeping, so that the
store learns when a request ends; and the sampling of drafted rows, so that a seed gives its own
sample. Where any of them is not as it is known here, all stay as they are, and a line says so.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from typing import Any

from copyahead.errors import ConfigError
from copyahead.plugins.vllm.settings import Settings, read_settings

logger = logging.getLogger(__name__)

KNOWN = {
    "propose_draft_token_ids": ("self", "scheduler_output", "sampled_token_ids"),
    "_update_states": ("self", "scheduler_output"),
}
"""Functions of the runner, and their first arguments."""

_MARK = "_copyahead"


class UnknownVersion(Exception):  # noqa: N818
    """vLLM is not as it is known here."""


def register() -> None:
    """Called by vLLM in each of its processes, some more than once."""
    try:
        settings = read_settings()
    except ConfigError as error:
        logger.error("copyahead's hook is off: %s", error)
        return
    if not (settings.vllm.vllm_hook and settings.lookup.lookup):
        return
    try:
        install(settings)
    except Exception as error:
        logger.error(
            "copyahead's hook does not know this version of vLLM (%s), which runs without it", error
        )


def install(settings: Settings) -> None:
    """Stand around vLLM's functions. Raises UnknownVersion, with none changed, if one differs."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if getattr(GPUModelRunner, _MARK, False):
        return
    for name, expected in KNOWN.items():
        _expect(getattr(GPUModelRunner, name, None), name, expected)
    if settings.vllm.vllm_seeds:
        from copyahead.plugins.vllm import samples

        _expect(
            getattr(rejection_sampler, "rejection_sample", None),
            "rejection_sample",
            samples.REJECTION_ARGUMENTS,
        )
        _expect(
            rejection_sampler.RejectionSampler.forward,
            "RejectionSampler.forward",
            ("self", "metadata", "draft_probs", "logits", "sampling_metadata"),
        )
        _expect(
            getattr(rejection_sampler, "expand_batch_to_tokens", None),
            "expand_batch_to_tokens",
            ("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),
        )
        samples.install(rejection_sampler)
    runner: Any = GPUModelRunner
    runner.propose_draft_token_ids = _around_drafting(runner.propose_draft_token_ids, settings)
    runner._update_states = _around_bookkeeping(runner._update_states)
    setattr(runner, _MARK, True)
    # vLLM's newer runner has none of these functions, and is not taken unless it is asked for.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


def _expect(function: Any, name: str, arguments: tuple[str, ...]) -> None:
    if not callable(function):
        raise UnknownVersion(f"it has no {name}")
    found = tuple(inspect.signature(function).parameters)[: len(arguments)]
    if found != arguments:
        raise UnknownVersion(f"{name} takes {', '.join(found)}")


def _around_bookkeeping(original: Callable[..., Any]) -> Callable[..., Any]:
    def _update_states(self: Any, scheduler_output: Any, *more: Any, **options: Any) -> Any:
        proposer = _proposer_of(self)
        if proposer is not None and scheduler_output.finished_req_ids:
            # A set: sorted, so that every rank's store holds the same.
            proposer.finish(sorted(scheduler_output.finished_req_ids))
        return original(self, scheduler_output, *more, **options)

    return _update_states


def _around_drafting(original: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    def propose_draft_token_ids(
        self: Any, scheduler_output: Any, sampled_token_ids: Any, *more: Any, **options: Any
    ) -> Any:
        from copyahead.plugins.vllm.proposer import Proposer

        def theirs() -> Any:
            return original(self, scheduler_output, sampled_token_ids, *more, **options)

        drafter = getattr(self, "drafter", None)
        if isinstance(drafter, Proposer):
            name_requests(drafter, self, scheduler_output)
            return theirs()
        beside = _beside_of(self, settings)
        if beside is None:
            return theirs()
        return beside.propose(self, scheduler_output, sampled_token_ids, theirs)

    return propose_draft_token_ids


def name_requests(proposer: Any, runner: Any, scheduler_output: Any) -> None:
    """Tell the proposer whose rows come next, and how much of their drafts was verified."""
    batch = runner.input_batch
    names = list(batch.req_ids[: batch.num_reqs])
    tenants = [_tenant_of(runner.requests[name]) for name in names]
    verified = {
        name: len(tokens) for name, tokens in scheduler_output.scheduled_spec_decode_tokens.items()
    }
    proposer.name_requests(names, tenants, verified)


def _tenant_of(request: Any) -> str:
    """Whose text the request may copy from: an adapter's own."""
    adapter = getattr(request, "lora_request", None)
    return "" if adapter is None else str(adapter.lora_name)


def _proposer_of(runner: Any) -> Any:
    from copyahead.plugins.vllm.proposer import Proposer

    drafter = getattr(runner, "drafter", None)
    if isinstance(drafter, Proposer):
        return drafter
    beside = runner.__dict__.get(_MARK)
    return None if beside is None else beside.proposer


def _beside_of(runner: Any, settings: Settings) -> Any:
    """What stands beside the runner's own drafter; None where nothing can."""
    if _MARK not in runner.__dict__:
        from copyahead.plugins.vllm.beside import Beside, obstacle

        reason = obstacle(runner)
        if reason is None:
            runner.__dict__[_MARK] = Beside(runner, settings)
        else:
            logger.error("copyahead does not stand beside vLLM's drafter: %s", reason)
            runner.__dict__[_MARK] = None
    return runner.__dict__[_MARK]
