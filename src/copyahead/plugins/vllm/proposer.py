"""What vLLM's `custom_class` names: arrays of its runner in, drafts out.

vLLM calls `propose` once a step, after sampling, with all rows of its batch. Nothing that happens
here can fail a request: whatever raises makes the step a plain one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.config import MAX_DRAFT_TOKENS
from copyahead.contracts import Load
from copyahead.drafters.factory import make_drafter, make_store
from copyahead.drafters.lookup import LookupDrafter
from copyahead.drafters.priced import PricedDrafter
from copyahead.errors import ConfigError
from copyahead.history.pool import HistoryPool
from copyahead.kernels import hosted, warm_up
from copyahead.plugins.vllm.costs import Costs
from copyahead.plugins.vllm.counters import Counters
from copyahead.plugins.vllm.rows import RowBook
from copyahead.plugins.vllm.settings import Settings, parse_costs, read_settings
from copyahead.plugins.vllm.steps import PresetSteps, PricedSteps, Steps
from copyahead.step_cost import StepCost

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int32]

TOUCHED_BYTES = 256 << 20
"""Memory that is taken before the first request, for as many rows as it is enough for."""
LAST: list[Drafting] = []
"""What drafts in this process: one, once a proposer was made. For reports and tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a proposer has to know of the engine that it drafts for."""

    max_requests: int
    max_length: int
    """Tokens that a request may hold."""
    vocab_size: int
    max_draft_tokens: int
    max_step_tokens: int = 1 << 30
    """Tokens that one pass may take."""
    device: str = "cpu"
    share: Callable[[StepCost], StepCost] | None = None
    """Gives every rank the first one's cost; None where there is one rank."""


class Drafting:
    """The rows, the steps and the counters of one engine."""

    def __init__(self, host: Host, settings: Settings) -> None:
        """Raises ConfigError where a setting is wrong."""
        lookup = settings.lookup
        if settings.vllm.vllm_uniform and host.max_draft_tokens > lookup.max_draft_tokens:
            raise ConfigError(
                f"vllm_uniform drafts num_speculative_tokens={host.max_draft_tokens} at a time: "
                f"raise max_draft_tokens={lookup.max_draft_tokens} to as many"
            )
        self._host = host
        self._max_tokens = min(host.max_draft_tokens, lookup.max_draft_tokens, MAX_DRAFT_TOKENS)
        self._uniform = self._max_tokens if settings.vllm.vllm_uniform else 0
        pool = HistoryPool(
            host.max_requests + max(1, settings.vllm.vllm_kept),
            host.max_length + MAX_DRAFT_TOKENS,
            host.vocab_size,
            make_store(settings.shared, host.vocab_size),
        )
        pool.touch(TOUCHED_BYTES)
        self.costs = Costs(parse_costs(settings.vllm.costs), host.device, host.share)
        self.steps = _make_steps(lookup.policy, pool, Load(step_cost=self.costs.cost(1)))
        self.book = RowBook(pool, self.steps)
        self.rounds = self.steps.rounds
        self.counters = Counters(self.rounds.counters, settings.vllm.vllm_log_seconds)
        self._rows = np.full(host.max_requests, -1, dtype=np.int32)
        self._status = np.zeros(host.max_requests, dtype=np.int32)
        self._counts = np.zeros(host.max_requests, dtype=np.int32)
        self._drafted = np.zeros(host.max_requests, dtype=np.int32)
        self._num_rows = 0
        self._names: Sequence[str] | None = None
        self._number = 0
        self._began = 0.0
        self._timed_rows = 0
        """Tokens in the pass that runs now; 0 where it is not to be timed."""

    def step(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: Ints,
        tokens: Ints,
        names: Sequence[str] | None = None,
        tenants: Sequence[str] | None = None,
    ) -> hosted.Host:
        """Settle and draft; the arrays of the step. `rounds` has the drafts of each row."""
        began = time.perf_counter()
        self._number += 1
        host = self._view(sampled, lengths, tokens)
        count = len(sampled)
        if names is not None and names != self._names:
            host.rows[:] = [self.book.row_of(name) for name in names]
        self._names = names
        active = int(np.count_nonzero(host.counts))
        self.steps.price(self.costs.cost(active), max(1, active))
        sizes = hosted.Sizes(
            self._host.vocab_size,
            self._max_tokens,
            self._host.max_length,
            max(0, self._host.max_step_tokens - count),
            self._number,
            self._uniform,
        )
        unknown = self.steps.step(host, sizes, self.book.sessions)
        if unknown:
            self.book.find(host, self._number, names, tenants)
            self.steps.draft(host, sizes, self.book.sessions)
        elif count < self._num_rows:
            self.book.note(host, self._number)
        self._time(host, active, began, same=not unknown and count == self._num_rows)
        self._num_rows = count
        return host

    def cut(self, names: Sequence[str], verified: Mapping[str, int]) -> None:
        """Of the last drafts only so many tokens were verified; none if a request is not named."""
        rows = self._rows[: len(names)]
        if names != self._names:
            rows = np.array([self.book.row_of(name) for name in names], dtype=np.int32)
        known = rows >= 0
        counts = np.array([verified.get(name, 0) for name in names], dtype=np.int32)[known]
        drafted = self.rounds.drafted
        drafted[rows[known]] = np.minimum(drafted[rows[known]], counts)

    def finish(self, names: Sequence[str]) -> None:
        """These requests have ended. A new one may have the name, and the place, of an old one."""
        for name in names:
            row = self.book.row_of(name)
            if row >= 0:
                self._rows[self._rows == row] = -1
        self.book.finish(names)

    def drafts(self, host: hosted.Host) -> list[list[int]]:
        """The drafts of a step, one a row of the host."""
        counts = host.drafted.tolist()
        flat = self.rounds.flat[: sum(counts)].tolist()
        drafts, start = [], 0
        for count in counts:
            drafts.append(flat[start : start + count])
            start += count
        return drafts

    def reset(self) -> None:
        """Forget which row is which, after a fault. Texts stay where they are."""
        self._rows[:] = -1
        self._names = None
        self._num_rows = 0
        self._timed_rows = 0
        self.book.reset()

    def _view(self, sampled: Sequence[Sequence[int]], lengths: Ints, tokens: Ints) -> hosted.Host:
        count = len(sampled)
        self._counts[:count] = [len(new) for new in sampled]
        self._rows[count:] = -1
        if tokens.dtype != np.int32 or not tokens.flags.c_contiguous:
            tokens = np.ascontiguousarray(tokens, dtype=np.int32)
        return hosted.Host(
            tokens,
            np.ascontiguousarray(lengths[:count], dtype=np.int32),
            self._counts[:count],
            self._rows[:count],
            self._status[:count],
            self._drafted[:count],
        )

    def _time(self, host: hosted.Host, active: int, began: float, *, same: bool) -> None:
        """Take the time of the step that has ended, and note what the next one is made of."""
        if same and self._timed_rows and active == len(host.counts):
            self.costs.observe(active, self._timed_rows, began - self._began)
        self._began = began
        complete = active == len(host.counts)
        self._timed_rows = active + int(host.drafted.sum()) if complete else 0


class Proposer:
    """Drafts for vLLM. Its `speculative_config` names this class."""

    def __init__(self, vllm_config: Any) -> None:
        """Raises ConfigError, before any request, where a setting is wrong."""
        settings = read_settings()
        log_as_vllm()
        self.host = host_of(vllm_config)
        self.settings = settings
        self._drafting: Drafting | None = None
        if settings.lookup.lookup:
            # Everything is compiled and allocated here, and nothing in a request.
            warm_up()
            self._drafting = Drafting(self.host, settings)
            LAST[:] = [self._drafting]
        self._names: Sequence[str] | None = None
        self._tenants: Sequence[str] = ()

    @property
    def drafting(self) -> Drafting | None:
        """What drafts; None where COPYAHEAD_LOOKUP=0."""
        return self._drafting

    def load_model(self, *_args: Any, **_kwargs: Any) -> None:
        """There is no model to load."""

    def name_requests(
        self, names: Sequence[str], tenants: Sequence[str], verified: Mapping[str, int]
    ) -> None:
        """Whose rows the next call is about, and whose text each may copy from.

        `verified`: how many tokens of a request's draft were in the pass; none if it is not named.
        """
        self._names, self._tenants = names, tenants
        if self._drafting is not None:
            self._drafting.cut(names, verified)

    def finish(self, names: Sequence[str]) -> None:
        """These requests have ended."""
        if self._drafting is not None:
            self._drafting.finish(names)

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Ints,
        token_ids_cpu: Ints,
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """A draft for each row of the batch; an empty one where nothing was sampled."""
        drafting = self._drafting
        names, self._names = self._names, None
        if drafting is None or not len(sampled_token_ids):
            return [[] for _ in sampled_token_ids]
        try:
            host = drafting.step(
                sampled_token_ids, num_tokens_no_spec, token_ids_cpu, names, self._tenants
            )
            drafts = drafting.drafts(host)
            drafting.counters.tick()
            return drafts
        except Exception as error:
            drafting.counters.fault(error)
            try:
                drafting.reset()
            except Exception:
                logger.warning("drafting is off: its rows could not be given back", exc_info=True)
                self._drafting = None
            return [[] for _ in sampled_token_ids]


def log_as_vllm() -> None:
    """Send what copyahead logs where vLLM's log goes, unless it was told where to go."""
    ours, theirs = logging.getLogger("copyahead"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level)
        ours.propagate = False


def host_of(vllm_config: Any) -> Host:
    """What a `VllmConfig` says of the engine."""
    model, scheduler = vllm_config.model_config, vllm_config.scheduler_config
    device = getattr(vllm_config.device_config, "device_type", "") or "gpu"
    ranks = vllm_config.parallel_config.tensor_parallel_size
    return Host(
        max_requests=scheduler.max_num_seqs,
        max_length=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_draft_tokens=vllm_config.speculative_config.num_speculative_tokens,
        max_step_tokens=scheduler.max_num_batched_tokens,
        device=str(device),
        share=share_among_ranks if ranks > 1 else None,
    )


def share_among_ranks(cost: StepCost) -> StepCost:
    """The first rank's cost, on every rank."""
    from vllm.distributed.parallel_state import get_tp_group

    points: dict[int, float] = get_tp_group().broadcast_object(cost.points(), src=0)
    return StepCost(points)


def _make_steps(policy: str, pool: HistoryPool, load: Load) -> Steps:
    drafter = make_drafter(policy, pool, load)
    if isinstance(drafter, PricedDrafter):
        return PricedSteps(drafter, pool, load)
    assert isinstance(drafter, LookupDrafter)
    return PresetSteps(drafter, pool, load)
