"""Each peer behind the same calls: `start`, `propose`, `settle`, `stop`.

Every peer is its own released code, called as its host calls it, with two exceptions that say so:
`llama.cpp simple` and `llama.cpp mod` are rules read from that project's documentation
(docs/speculative.md there) and written down here, so that their times mean nothing.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

MAX_DRAFT = 64
STORE = " + store"
"""Ends the name of a drafter that also copies from requests before."""


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

    def __init__(
        self, policy: str, capacity: int, vocab_size: int, cost: float | None, *, shared: bool
    ) -> None:
        from copyahead.config import SharedOptions
        from copyahead.contracts import Load
        from copyahead.drafters.factory import make_drafter, make_store
        from copyahead.history.pool import HistoryPool
        from copyahead.step_cost import StepCost

        store = make_store(SharedOptions(shared=shared), vocab_size)
        pool = HistoryPool(1, capacity, vocab_size, store)
        load = Load(step_cost=StepCost.linear(0.03 if cost is None else cost))
        self._drafter: Any = make_drafter(policy, pool, load)

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
    """vLLM's numba proposer: n-grams of 5 tokens, 5 drafted, its documented default."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Only this one module is needed, and the configuration class only as a name.
        stub: Any = types.ModuleType("vllm.config")
        stub.VllmConfig = object
        package = types.ModuleType("vllm")
        sys.modules.update({"vllm": package, "vllm.config": stub})
        module = _load_module("vllm", "v1/spec_decode/ngram_proposer.py")
        self._proposer = object.__new__(module.NgramProposer)
        for name, value in {
            "min_n": 5, "max_n": 5, "k": 5, "max_model_len": capacity,
            "valid_ngram_draft": np.zeros((1, 5), dtype=np.int32),
            "valid_ngram_num_drafts": np.zeros(1, dtype=np.int32),
            "num_tokens_threshold": 8192, "num_numba_thread_available": 1,
        }.items():  # fmt: skip
            setattr(self._proposer, name, value)
        self._lengths = np.zeros(1, dtype=np.int32)
        self.start(np.arange(16, dtype=np.int32))
        self.propose()

    def propose(self) -> Sequence[int]:
        self._lengths[0] = self.length
        drafts: list[list[int]] = self._proposer.batch_propose(
            1, [0], self._lengths, self.held[None], 5
        )
        return drafts[0]


class SuffixTree:
    """arctic-inference's suffix decoding: depth 64, with and without its store of answers."""

    def __init__(self, factor: float, keep: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache = SuffixDecodingCache(max_tree_depth=64, max_cached_requests=keep)
        self._factor = factor
        self._number = 0

    def start(self, prompt: Tokens) -> None:
        self._number += 1
        prompt = np.ascontiguousarray(prompt)
        self._cache.start_request(self._number, prompt)
        self._tail = prompt[-64:].copy()

    def propose(self) -> Sequence[int]:
        draft = self._cache.speculate(
            self._number, self._tail, max_spec_tokens=MAX_DRAFT, max_spec_factor=self._factor
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
    """transformers' prompt lookup: n-grams of up to 3 tokens, 10 drafted."""

    def __init__(self, capacity: int) -> None:
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        torch.set_num_threads(1)
        self._held = torch.zeros((1, capacity), dtype=torch.int64)
        self._torch = torch
        self._generator = PromptLookupCandidateGenerator(
            num_output_tokens=10, max_matching_ngram_size=3, max_length=1 << 30
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


class Grams(Buffered):
    """Keeps what followed each n-gram, as new tokens come. Base of llama.cpp's rules."""

    def __init__(self, capacity: int, size: int) -> None:
        super().__init__(capacity)
        self.size = size
        self.places: dict[bytes, int] = {}
        self._indexed = 0

    def start(self, prompt: Tokens) -> None:
        known = min(self._indexed, len(prompt))
        if not np.array_equal(self.held[:known], prompt[:known]) or known < self._indexed:
            self.forget()
            self._indexed = 0
        super().start(prompt)
        self._index()

    def settle(self, emitted: Sequence[int]) -> None:
        super().settle(emitted)
        self._index()

    def forget(self) -> None:
        self.places.clear()

    def value(self, end: int) -> int:
        """What is kept of an n-gram that ends before token `end`."""
        return end

    def key(self, tokens: Tokens, end: int) -> bytes:
        return tokens[end - self.size : end].tobytes()

    def _index(self) -> None:
        for end in range(max(self._indexed, self.size), self.length):
            self.places[self.key(self.held, end)] = self.value(end)
        self._indexed = max(0, self.length)


class LlamaSimple(Grams):
    """The newest earlier place of the last 12 tokens, and 48 tokens of what followed."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, 12)

    def propose(self) -> Sequence[int]:
        if self.length < self.size:
            return ()
        place = self.places.get(self.key(self.held, self.length))
        if place is None:
            return ()
        tokens: list[int] = self.held[place : min(place + 48, self.length)].tolist()
        return tokens


class LlamaMod(Grams):
    """A table from 24 tokens to the next one, over all requests; 48 to 64 drafted or none."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, 24)

    def forget(self) -> None:
        """The pool outlives requests."""

    def value(self, end: int) -> int:
        return int(self.held[end])

    def propose(self) -> Sequence[int]:
        if self.length < self.size:
            return ()
        window = self.held[self.length - self.size : self.length].tolist()
        draft: list[int] = []
        while len(draft) < MAX_DRAFT:
            token = self.places.get(np.array(window[-self.size :], dtype=np.int32).tobytes())
            if token is None:
                break
            draft.append(token)
            window.append(token)
        return draft if len(draft) >= 48 else ()


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
    "suffix tree f4": lambda _: SuffixTree(4.0, 0),
    "suffix tree f1 + store": lambda _: SuffixTree(1.0, -1),
    "transformers 3/10": TransformersLookup,
    "llama.cpp simple": LlamaSimple,
    "llama.cpp mod": LlamaMod,
}
RULES_ONLY = ("llama.cpp simple", "llama.cpp mod")


def make(name: str, capacity: int, vocab_size: int, cost: float | None) -> Peer:
    """The peer called `name`; `copyahead POLICY` is this project, also with ` + store`."""
    if name.startswith("copyahead "):
        policy = name.removeprefix("copyahead ").removesuffix(STORE)
        shared = name.endswith(STORE)
        return Copyahead(policy, capacity, vocab_size, cost, shared=shared)
    return PEERS[name](capacity)
