"""Peers at many settings in one pass over a trace.

What these draft at a place depends on the text before it, not on how it was drafted. So all
settings share one history that grows by a token, and each is asked only where one of its rounds
starts: the drafts are those of as many runs, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from peers.adapters import (
    MAX_DRAFT,
    Buffered,
    Making,
    Peer,
    Tokens,
    TransformersLookup,
    VllmNgram,
)
from peers.llama_rules import Map, Mod, Rule, Simple

CHECK_EVERY = 50
"""One in so many drafts of an index is compared with the peer's own code."""


class Sweep(Protocol):
    """One peer at several settings, serving one request at a time."""

    def start(self, prompt: Tokens) -> None:
        """A request that has read `prompt`; it may go on from the one before."""

    def propose(self, number: int) -> Sequence[int]:
        """What setting `number` drafts here."""

    def accepted(self, number: int, count: int) -> None:
        """So many tokens of the last draft of a setting, which was not empty, were right."""

    def settle(self, token: int) -> None:
        """The next token of the answer."""

    def stop(self) -> None:
        """The request has ended."""


class Settings(NamedTuple):
    """A peer, and the settings that are tried. The first are its defaults."""

    names: tuple[str, ...]
    make: Callable[[Making], Sweep]


class SuffixTrees:
    """arctic-inference's suffix decoding, depth 64. Settings: `max_spec_factor`, `min_token_prob`.

    The tree of a prompt is kept where the next request goes on from it: an own tree for each, as a
    host makes it, drafts the same and takes hours to make.
    """

    def __init__(self, settings: Sequence[tuple[float, float]], keep: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self._cache: Any = SuffixDecodingCache(max_tree_depth=64, max_cached_requests=keep)
        self._settings = settings
        self._number = 0
        self._held = np.zeros(0, dtype=np.int32)
        self._tree: Any = None

    def start(self, prompt: Tokens) -> None:
        from arctic_inference.suffix_decoding.cache import SuffixTree

        self._number += 1
        size = len(self._held)
        goes_on = 0 < size <= len(prompt) and np.array_equal(self._held, prompt[:size])
        new = np.ascontiguousarray(prompt[size:] if goes_on else prompt)
        self._cache.start_request(self._number, new[:0])
        if goes_on:
            self._cache._local_trees[self._number] = self._tree
        self._tree = self._cache._local_trees[self._number]
        if len(new):
            SuffixTree.extend_ndarray(self._tree, 0, new)
        self._held = np.array(prompt)
        self._tail = np.zeros(MAX_DRAFT, dtype=np.int32)
        self._count = min(len(prompt), MAX_DRAFT)
        self._tail[MAX_DRAFT - self._count :] = prompt[len(prompt) - self._count :]
        self._written: list[int] = []

    def propose(self, number: int) -> Sequence[int]:
        factor, probability = self._settings[number]
        draft = self._cache.speculate(
            self._number,
            self._tail[MAX_DRAFT - self._count :],
            max_spec_tokens=MAX_DRAFT,
            max_spec_factor=factor,
            min_token_prob=probability,
        )
        tokens: Sequence[int] = draft.token_ids
        return tokens

    def accepted(self, number: int, count: int) -> None:
        pass

    def settle(self, token: int) -> None:
        self._cache.add_active_response(self._number, np.array([token], dtype=np.int32))
        self._tail[:-1] = self._tail[1:]
        self._tail[-1] = token
        self._count = min(self._count + 1, MAX_DRAFT)
        self._written.append(token)

    def stop(self) -> None:
        self._cache.stop_request(self._number)
        self._held = np.append(self._held, np.array(self._written, dtype=np.int32))


class FirstPlaces(Buffered):
    """The first place of every n-gram, for peers that search for it from the beginning."""

    def __init__(self, capacity: int, sizes: Sequence[int]) -> None:
        super().__init__(capacity)
        self._places: dict[int, dict[bytes, int]] = {size: {} for size in sizes}
        self._indexed = 0

    def start(self, prompt: Tokens) -> None:
        known = min(self.length, len(prompt))
        if known < self.length or not np.array_equal(self.held[:known], prompt[:known]):
            for places in self._places.values():
                places.clear()
            self._indexed = 0
        super().start(prompt)

    def find(self, size: int) -> int | None:
        """What follows the first place of the last `size` tokens starts here."""
        for known, places in self._places.items():
            for end in range(max(self._indexed + 1, known), self.length):
                places.setdefault(self.held[end - known : end].tobytes(), end)
        self._indexed = max(self._indexed, self.length - 1)
        if self.length < size:
            return None
        return self._places[size].get(self.held[self.length - size : self.length].tobytes())


class Lookup(NamedTuple):
    """A setting of a peer that copies from the first place of an n-gram."""

    least: int
    most: int
    drafted: int


class FirstPlaceSweep:
    """Drafts of vLLM's n-gram and of transformers' prompt lookup, found by an index.

    Their own search reads the whole history every round. One draft in `CHECK_EVERY` is compared
    with it, and a difference ends the run.
    """

    def __init__(
        self,
        made: Making,
        settings: Sequence[Lookup],
        own: Callable[[Lookup], Peer],
        end_tokens: Sequence[int] = (),
    ) -> None:
        sizes = range(min(s.least for s in settings), max(s.most for s in settings) + 1)
        self._held = FirstPlaces(made.capacity, sizes)
        self._settings = settings
        self._own = own
        self._peers: dict[int, Peer] = {}
        self._end_tokens = frozenset(end_tokens)
        self._asked = 0
        # Not installed is said before the work.
        own(settings[0])

    def start(self, prompt: Tokens) -> None:
        self._held.start(prompt)

    def propose(self, number: int) -> Sequence[int]:
        setting, held = self._settings[number], self._held
        draft: list[int] = []
        for size in range(setting.most, setting.least - 1, -1):
            place = held.find(size)
            if place is not None:
                draft = held.held[place : min(place + setting.drafted, held.length)].tolist()
                break
        ends = [n for n, token in enumerate(draft) if token in self._end_tokens]
        draft = draft[: ends[0]] if ends else draft
        self._asked += 1
        if self._asked % CHECK_EVERY == 0:
            self._check(number, draft)
        return draft

    def _check(self, number: int, draft: list[int]) -> None:
        if number not in self._peers:
            self._peers[number] = self._own(self._settings[number])
        peer = self._peers[number]
        peer.start(self._held.held[: self._held.length])
        theirs = list(peer.propose())
        if theirs != draft:
            raise AssertionError(f"{self._settings[number]}: {theirs} by its own code, not {draft}")

    def accepted(self, number: int, count: int) -> None:
        pass

    def settle(self, token: int) -> None:
        self._held.settle([token])

    def stop(self) -> None:
        pass


class Each:
    """Rules with a memory of their own for each setting."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def start(self, prompt: Tokens) -> None:
        for rule in self._rules:
            rule.start(prompt)

    def propose(self, number: int) -> Sequence[int]:
        rule: Any = self._rules[number]
        draft: Sequence[int] = rule.propose()
        return draft

    def accepted(self, number: int, count: int) -> None:
        self._rules[number].accepted(count)

    def settle(self, token: int) -> None:
        for rule in self._rules:
            rule.settle([token])

    def stop(self) -> None:
        pass


_TREES = [(f, p) for p, f in product((0.1, 0.3, 0.5, 0.7), (1.0, 2.0, 4.0, 8.0))]
_TREE_NAMES = tuple(f"factor {f:g}, p {p:g}" for f, p in _TREES)
_VLLM = [Lookup(least, 5, k) for least, k in product((5, 3, 2), (5, 3, 8, 16))]
_TRANSFORMERS = [Lookup(1, most, k) for most, k in product((2, 3), (10, 3, 20))]
_SIMPLE = [(12, 48, 48), (12, 48, 16)]
_MAP = [(12, 48, 48, 1), (12, 48, 16, 1), (8, 8, 8, 2)]
_MOD = [(24, 48, 64), (16, 8, 16)]


def _transformers(made: Making) -> Sweep:
    def own(s: Lookup) -> Peer:
        return TransformersLookup(made.capacity, s.most, s.drafted, made.end_tokens)

    return FirstPlaceSweep(made, _TRANSFORMERS, own, made.end_tokens)


def _vllm(made: Making) -> Sweep:
    return FirstPlaceSweep(made, _VLLM, lambda s: VllmNgram(made.capacity, *s))


def _maps(made: Making, *, choose: bool) -> Sweep:
    return Each([
        Map(made.capacity, size, copied, most, choose=choose, hits=hits)
        for size, copied, most, hits in _MAP
    ])  # fmt: skip


SWEEPS: dict[str, Settings] = {
    "suffix tree": Settings(_TREE_NAMES, lambda _: SuffixTrees(_TREES, 0)),
    "suffix tree + store": Settings(_TREE_NAMES, lambda _: SuffixTrees(_TREES, -1)),
    "vllm n-gram": Settings(tuple(f"{s.least} to {s.most}, {s.drafted}" for s in _VLLM), _vllm),
    "transformers": Settings(
        tuple(f"up to {s.most}, {s.drafted}" for s in _TRANSFORMERS), _transformers
    ),
    "llama.cpp simple": Settings(
        tuple(f"{n}, {most}" for n, _, most in _SIMPLE),
        lambda made: Each([Simple(made.capacity, *s) for s in _SIMPLE]),
    ),
    "llama.cpp map-k": Settings(
        tuple(f"{n}, {most}" for n, _, most, _ in _MAP), lambda made: _maps(made, choose=False)
    ),
    "llama.cpp map-k4v": Settings(
        tuple(f"{n}, {most}, {hits} hits" for n, _, most, hits in _MAP),
        lambda made: _maps(made, choose=True),
    ),
    "llama.cpp mod": Settings(
        tuple(f"{n}, {least} to {most}" for n, least, most in _MOD),
        lambda made: Each([Mod(made.capacity, *s) for s in _MOD]),
    ),
}
"""Every peer by name. What `generate` of transformers drafts has no default; 10 is its class's."""
RULES_ONLY = tuple(name for name in SWEEPS if name.startswith("llama.cpp"))
