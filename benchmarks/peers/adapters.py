"""Each peer behind the same calls: `start`, `propose`, `settle`, `stop`.

Every one here is its own released code, called as its host calls it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

MAX_DRAFT = 64
STORE = " + store"
"""Ends the name of a drafter that also copies from requests before."""


OWN = "copyahead "
"""Begins the name of a policy of this project."""


class Making(NamedTuple):
    """What a drafter is made for."""

    capacity: int
    """Tokens of its longest request, and of a draft."""
    vocab_size: int
    cost: float | None = None
    """Of a row, for a drafter that asks."""
    prior: str | None = None
    """File of the tables that `priced` starts from."""
    end_tokens: tuple[int, ...] = ()


class Peer(Protocol):
    """One drafter, serving one request at a time."""

    def start(self, prompt: Tokens) -> None:
        """A request that has read `prompt`; it may go on from the one before."""

    def propose(self) -> Sequence[int]:
        """A draft for what comes next; may be called again."""

    def settle(self, emitted: Sequence[int]) -> None:
        """The round emitted these tokens."""

    def stop(self) -> None:
        """The request has ended."""


class Buffered:
    """Keeps the history in one array, as hosts do."""

    def __init__(self, capacity: int) -> None:
        self.held = np.zeros(capacity, dtype=np.int32)
        self.length = 0

    def start(self, prompt: Tokens) -> None:
        self.length = len(prompt)
        self.held[: self.length] = prompt

    def settle(self, emitted: Sequence[int]) -> None:
        end = self.length + len(emitted)
        self.held[self.length : end] = emitted
        self.length = end

    def stop(self) -> None:
        pass


class Copyahead:
    """copyahead through its public session API. Run by a Python that has it."""

    def __init__(self, policy: str, made: Making, *, shared: bool) -> None:
        from copyahead.config import SharedOptions
        from copyahead.contracts import Load
        from copyahead.drafters.factory import make_drafter, make_store
        from copyahead.drafters.prior import read_prior
        from copyahead.history.pool import HistoryPool
        from copyahead.step_cost import StepCost

        store = make_store(SharedOptions(shared=shared), made.vocab_size)
        pool = HistoryPool(1, made.capacity, made.vocab_size, store)
        load = Load(step_cost=StepCost.linear(0.03 if made.cost is None else made.cost))
        prior = None if made.prior is None else read_prior(Path(made.prior))
        self._drafter: Any = make_drafter(policy, pool, load, made.end_tokens, prior)

    def start(self, prompt: Tokens) -> None:
        self._session = self._drafter.open(prompt, slot=0)

    def propose(self) -> Sequence[int]:
        self._draft = self._session.propose(MAX_DRAFT)
        tokens: Sequence[int] = self._draft.tokens
        return tokens

    def settle(self, emitted: Sequence[int]) -> None:
        self._session.settle(self._draft, emitted)

    def stop(self) -> None:
        self._session.close()


class VllmNgram(Buffered):
    """vLLM's numba proposer: the earliest place of the longest of n-grams of `least` to `most`."""

    def __init__(self, capacity: int, least: int = 5, most: int = 5, drafted: int = 5) -> None:
        super().__init__(capacity)
        proposer = object.__new__(_vllm_module().NgramProposer)
        for name, value in {
            "min_n": least, "max_n": most, "k": drafted, "max_model_len": 1 << 30,
            "valid_ngram_draft": np.zeros((1, drafted), dtype=np.int32),
            "valid_ngram_num_drafts": np.zeros(1, dtype=np.int32),
            "num_tokens_threshold": 8192, "num_numba_thread_available": 1,
        }.items():  # fmt: skip
            setattr(proposer, name, value)
        self._proposer: Any = proposer
        self._drafted = drafted
        self._lengths = np.zeros(1, dtype=np.int32)
        self.start(np.arange(16, dtype=np.int32)[:capacity])
        self.propose()

    def propose(self) -> Sequence[int]:
        self._lengths[0] = self.length
        drafts: list[list[int]] = self._proposer.batch_propose(
            1, [0], self._lengths, self.held[None], self._drafted
        )
        return drafts[0]


@lru_cache(maxsize=1)
def _vllm_module() -> Any:
    # Only this one module is needed, and the configuration class only as a name.
    stub: Any = types.ModuleType("vllm.config")
    stub.VllmConfig = object
    package = types.ModuleType("vllm")
    sys.modules.update({"vllm": package, "vllm.config": stub})
    return _load_module("vllm", "v1/spec_decode/ngram_proposer.py")


class SuffixTree:
    """arctic-inference's suffix decoding: depth 64, and at most `keep` answers in its store."""

    def __init__(self, factor: float, keep: int, least_probability: float = 0.1) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(max_tree_depth=64, max_cached_requests=keep)
        self._factor, self._least = factor, least_probability
        self._number = 0

    def start(self, prompt: Tokens) -> None:
        self._number += 1
        prompt = np.ascontiguousarray(prompt)
        self._cache.start_request(self._number, prompt)
        self._tail = prompt[-64:].copy()

    def propose(self) -> Sequence[int]:
        draft = self._cache.speculate(
            self._number,
            self._tail,
            max_spec_tokens=MAX_DRAFT,
            max_spec_factor=self._factor,
            min_token_prob=self._least,
        )
        tokens: Sequence[int] = draft.token_ids
        return tokens

    def settle(self, emitted: Sequence[int]) -> None:
        new = np.array(emitted, dtype=np.int32)
        self._cache.add_active_response(self._number, new)
        self._tail = np.ascontiguousarray(np.concatenate([self._tail, new])[-64:])

    def stop(self) -> None:
        self._cache.stop_request(self._number)


class TransformersLookup:
    """transformers' prompt lookup: the earliest place of the last n-gram of up to `most` tokens.

    Its n-grams of up to 2 tokens are a default; how many are drafted has none in `generate`.
    """

    def __init__(
        self, capacity: int, most: int = 2, drafted: int = 10, end_tokens: Sequence[int] = ()
    ) -> None:
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        torch.set_num_threads(1)
        self._held = torch.zeros((1, capacity), dtype=torch.int64)
        self._torch = torch
        self._generator = PromptLookupCandidateGenerator(
            torch.tensor(list(end_tokens)) if end_tokens else None,
            num_output_tokens=drafted,
            max_matching_ngram_size=most,
            max_length=1 << 30,
        )

    def start(self, prompt: Tokens) -> None:
        self._length = len(prompt)
        self._held[0, : self._length] = self._torch.from_numpy(prompt.astype(np.int64))

    def propose(self) -> Sequence[int]:
        ids = self._held[:, : self._length]
        candidates, _ = self._generator.get_candidates(ids)
        drafted: list[int] = candidates[0, self._length :].tolist()
        return drafted

    def settle(self, emitted: Sequence[int]) -> None:
        end = self._length + len(emitted)
        self._held[0, self._length : end] = self._torch.tensor(emitted)
        self._length = end

    def stop(self) -> None:
        pass


def _load_module(package: str, path: str) -> Any:
    """One source file of an installed package, without importing the package."""
    import importlib.metadata
    import importlib.util

    for name in (f"{package}-cpu", package):
        try:
            found = importlib.metadata.distribution(name).locate_file(f"{package}/{path}")
        except importlib.metadata.PackageNotFoundError:
            continue
        spec = importlib.util.spec_from_file_location("peer_module", str(found))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    raise ModuleNotFoundError(f"{package} is not installed")


PEERS: dict[str, Callable[[int], Peer]] = {
    "vllm n-gram 5/5": VllmNgram,
    "suffix tree f1": lambda _: SuffixTree(1.0, 0),
    "transformers 2/10": TransformersLookup,
}
"""Those whose times are taken, at their defaults."""


def make(name: str, made: Making) -> Peer:
    """The peer called `name`; `copyahead POLICY` is this project, also with ` + store`."""
    if name.startswith(OWN):
        policy = name.removeprefix(OWN).removesuffix(STORE)
        return Copyahead(policy, made, shared=name.endswith(STORE))
    return PEERS[name](made.capacity)
