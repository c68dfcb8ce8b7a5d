"""Copies beside vLLM's own drafter: a draft model, MTP or EAGLE.

A row whose copy is expected to bring more tokens gets the copy, any other keeps the drafter's.
What a copy brings is the sum of its survivals; what the drafter brings is counted, place by place.

The drafter's own passes are time. Where copies take all rows of a step it only reads what was
written, and where its passes cost more than they bring it is not run at all: a request that it has
not read to the end is then left to copies, and now and then a new request is given to it again.
Several ranks have to run the same passes, so with them it always runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.kernels import hosted
from copyahead.plugins.vllm.proposer import Proposer
from copyahead.plugins.vllm.settings import Settings

logger = logging.getLogger(__name__)

METHODS = frozenset({"draft_model", "eagle", "eagle3", "mtp"})
DECAY = 0.98
"""What the drafter brings is that of about its last 50 drafts."""
START_ACCEPTANCE = 0.7
START_WEIGHT = 4.0
TRY_AGAIN = 16
"""One new request in so many is given to a drafter that did not pay."""
PAYS_BY = 1.02
"""It pays when a step with it brings so many times as many tokens a second."""
TIME_DECAY = 0.9


def obstacle(runner: Any) -> str | None:
    """Why copies cannot stand beside this runner's drafter; None where they can."""
    config = runner.speculative_config
    if config.method not in METHODS:
        return f"method {config.method} is not one of {', '.join(sorted(METHODS))}"
    if runner.use_async_scheduling:
        return "async scheduling keeps tokens from the CPU: start vLLM with --no-async-scheduling"
    if getattr(config, "parallel_drafting", False):
        return "parallel_drafting is not known here"
    return None


class Acceptance:
    """How many of the drafter's tokens are kept, place by place."""

    def __init__(self, longest: int) -> None:
        self._kept = np.full(longest, START_ACCEPTANCE * START_WEIGHT)
        self._tried = np.full(longest, START_WEIGHT)

    def expected(self, length: int) -> float:
        """Tokens that are kept, on average, of so many."""
        return float(np.cumprod(self._kept[:length] / self._tried[:length]).sum())

    def settle(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """So many of a draft were kept: the places up to the first that was not are known."""
        known = min(num_accepted_tokens + 1, num_draft_tokens)
        self._kept[:known] *= DECAY
        self._tried[:known] *= DECAY
        self._tried[:known] += 1.0
        self._kept[:num_accepted_tokens] += 1.0


class Times:
    """Seconds of the drafter by what it is asked for, and of everything else in a step."""

    def __init__(self) -> None:
        self._drafting: dict[int, float] = {}
        self._rest: float | None = None

    def observe(self, chain: int, drafting: float, rest: float | None) -> None:
        """The drafter took `drafting` for `chain` tokens each; the rest of the step took `rest`."""
        self._drafting[chain] = _mean(self._drafting.get(chain), drafting)
        if rest is not None:
            self._rest = _mean(self._rest, rest)

    def pays(self, chain: int, brings: float) -> bool:
        """Whether a chain that brings so many tokens a step is worth its passes."""
        if self._rest is None or chain not in self._drafting:
            return True
        with_it = (1.0 + brings) / (self._rest + self._drafting[chain])
        return with_it > PAYS_BY / self._rest

    def is_cheap(self, chain: int) -> bool:
        """Whether a pass that only reads is no great part of a step."""
        if self._rest is None or chain not in self._drafting:
            return True
        return self._drafting[chain] < 0.1 * self._rest


def _mean(before: float | None, new: float) -> float:
    return new if before is None else TIME_DECAY * before + (1.0 - TIME_DECAY) * new


class Beside:
    """What stands beside one runner's drafter."""

    def __init__(self, runner: Any, settings: Settings) -> None:
        self.proposer = Proposer(runner.vllm_config)
        longest = runner.speculative_config.num_speculative_tokens
        self._chain = min(longest, settings.vllm.vllm_chain or longest)
        self._always = runner.parallel_config.world_size > 1
        self._acceptance = Acceptance(longest)
        self._times = Times()
        self._unread: set[str] = set()
        """Requests that the drafter has not read to the end."""
        self._known: set[str] = set()
        self._num_new = 0
        self._pays = True
        self._ended = 0.0

    def propose(
        self, runner: Any, scheduler_output: Any, sampled: Any, theirs: Callable[[], Any]
    ) -> Any:
        """The drafts of a step: copies, and what `theirs` gives, row by row."""
        from copyahead.plugins.vllm.hook import name_requests

        drafting = self.proposer.drafting
        if drafting is None:
            return theirs()
        began = time.perf_counter()
        batch = runner.input_batch
        names = list(batch.req_ids[: batch.num_reqs])
        new = self._new_tokens(runner, sampled)
        lengths = self._write(runner, sampled, new)
        self._learn(drafting, names, new)
        name_requests(self.proposer, runner, scheduler_output)
        copies = self.proposer.propose(new, lengths, batch.token_ids_cpu)
        self._meet(names)
        wanted = self._wanted(drafting, names, new, copies)
        chain = self._chain if any(wanted) or self._always else 0
        drafts: Any = [[] for _ in names]
        run = self._always or chain > 0 or self._should_read(names)
        if run:
            asked = time.perf_counter()
            drafts = self._run(scheduler_output, chain, theirs)
            rest = asked - self._ended if self._ended else None
            self._times.observe(chain, time.perf_counter() - asked, rest)
        else:
            self._unread.update(names)
            runner._draft_probs = None
        self._ended = time.perf_counter()
        logger.debug("copies and chain %d took %.6f s", chain, self._ended - began)
        return self._choose(runner, drafting, copies, drafts, wanted)

    def _new_tokens(self, runner: Any, sampled: Any) -> list[list[int]]:
        """What was sampled, without what vLLM throws away."""
        if isinstance(sampled, list):
            return sampled
        size = runner.input_batch.vocab_size
        found = [[token for token in row if 0 <= token < size] for row in sampled.tolist()]
        for place in np.flatnonzero(runner.discard_request_mask.np[: len(found)]).tolist():
            found[place] = []
        return found

    def _write(
        self, runner: Any, sampled: Any, new: Sequence[Sequence[int]]
    ) -> npt.NDArray[np.int32]:
        """The rows' lengths with what is new, which is written where vLLM will write it too."""
        batch = runner.input_batch
        lengths: npt.NDArray[np.int32] = batch.num_tokens_no_spec[: len(new)].astype(np.int32)
        if isinstance(sampled, list):
            return lengths
        for place, tokens in enumerate(new):
            end = int(lengths[place])
            batch.token_ids_cpu[place, end : end + len(tokens)] = tokens
            lengths[place] += len(tokens)
        return lengths

    def _learn(self, drafting: Any, names: Sequence[str], new: Sequence[Sequence[int]]) -> None:
        """What became of the drafter's tokens in the pass that has ended."""
        rounds = drafting.rounds
        for name, tokens in zip(names, new, strict=True):
            row = drafting.book.row_of(name)
            if row >= 0 and tokens and rounds.sources[row] == hosted.FROM_MODEL:
                drafted = int(rounds.drafted[row])
                if drafted:
                    self._acceptance.settle(drafted, min(len(tokens) - 1, drafted))

    def _meet(self, names: Sequence[str]) -> None:
        """New requests: to be read by the drafter, unless it does not pay."""
        present = set(names)
        for name in names:
            if name not in self._known:
                self._num_new += 1
                if not self._pays and self._num_new % TRY_AGAIN:
                    self._unread.add(name)
        self._known = present
        self._unread &= present

    def _wanted(
        self,
        drafting: Any,
        names: Sequence[str],
        new: Sequence[Sequence[int]],
        copies: Sequence[Sequence[int]],
    ) -> list[bool]:
        """Which rows are to get the drafter's tokens."""
        brings = self._acceptance.expected(self._chain)
        self._pays = self._always or self._times.pays(self._chain, brings)
        wanted = []
        for name, tokens, copy in zip(names, new, copies, strict=True):
            row = drafting.book.row_of(name)
            worth = float(drafting.rounds.worths[row]) if row >= 0 and copy else 0.0
            may = bool(tokens) and name not in self._unread and self._pays
            wanted.append(may and worth < brings)
        return wanted

    def _should_read(self, names: Sequence[str]) -> bool:
        """Whether the drafter is to read what was written, though nobody takes its tokens."""
        if all(name in self._unread for name in names):
            return False
        return self._pays or self._times.is_cheap(0)

    def _run(self, scheduler_output: Any, chain: int, theirs: Callable[[], Any]) -> Any:
        """Have the drafter draft so many tokens; with none it only reads."""
        before = scheduler_output.num_spec_tokens_to_schedule
        scheduler_output.num_spec_tokens_to_schedule = chain
        try:
            found = theirs()
        finally:
            scheduler_output.num_spec_tokens_to_schedule = before
        return found.tolist() if hasattr(found, "tolist") else found

    def _choose(
        self,
        runner: Any,
        drafting: Any,
        copies: list[list[int]],
        drafts: Sequence[list[int]],
        wanted: Sequence[bool],
    ) -> list[list[int]]:
        rounds, names = drafting.rounds, runner.input_batch.req_ids
        chosen = []
        for place, (copy, draft, want) in enumerate(zip(copies, drafts, wanted, strict=True)):
            row = drafting.book.row_of(names[place])
            if not want or not draft:
                chosen.append(copy)
                continue
            chosen.append(draft)
            if row >= 0:
                # A copy that is not verified was not drafted.
                rounds.counters[rounds.sources[row], hosted.DRAFTED] -= len(copy)
                rounds.sources[row] = hosted.FROM_MODEL
                rounds.drafts[row, : len(draft)] = draft
                rounds.drafted[row] = len(draft)
                rounds.counters[hosted.FROM_MODEL, hosted.DRAFTED] += len(draft)
        if runner._draft_probs is not None:
            runner._draft_probs = with_copies(runner._draft_probs, chosen, wanted)
        return chosen


def with_copies(probs: Any, chosen: Sequence[Sequence[int]], wanted: Sequence[bool]) -> Any:
    """The drafter's distributions, with certainty in the rows that hold copies."""
    longest = max(1, *(len(draft) for draft in chosen))
    whole = probs.new_zeros((len(chosen), longest, probs.shape[-1]))
    for place, (draft, want) in enumerate(zip(chosen, wanted, strict=True)):
        if want:
            whole[place, : probs.shape[1]] = probs[place]
        else:
            for position, token in enumerate(draft):
                whole[place, position, token] = 1.0
    return whole
