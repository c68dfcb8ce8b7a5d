"""A model runner of vLLM's kind, without vLLM: rows in arrays, moved, reused and swapped.

Each request writes a script of its own, so that what it writes does not depend on drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]


class Propose(Protocol):
    def __call__(
        self, sampled: list[list[int]], lengths: Ints, tokens: Ints, /
    ) -> list[list[int]]: ...


@dataclass
class Running:
    """A request: what it holds, what it will write, and how much of its prompt was read."""

    name: str
    text: list[int]
    script: list[int]
    prompt: int
    read: int = 0
    draft: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return not self.script


class Runner:
    """The batch. Its arrays are those that a proposer is given."""

    def __init__(self, max_requests: int, max_length: int, chunk: int = 10**9) -> None:
        self.tokens = np.zeros((max_requests, max_length), dtype=np.int32)
        self.lengths = np.zeros(max_requests, dtype=np.int32)
        self.max_length = max_length
        self.chunk = chunk
        self.batch: list[Running] = []
        self.rounds = 0

    def add(self, request: Running) -> None:
        request.draft = []
        self.batch.append(request)
        self._write(len(self.batch) - 1)

    def remove(self, place: int) -> Running:
        """Take one out; the last row moves into its place."""
        gone = self.batch[place]
        last = self.batch.pop()
        if gone is not last:
            self.batch[place] = last
            self._write(place)
        return gone

    def swap(self, one: int, other: int) -> None:
        self.batch[one], self.batch[other] = self.batch[other], self.batch[one]
        self._write(one)
        self._write(other)

    def _write(self, place: int) -> None:
        text = self.batch[place].text
        self.tokens[place, : len(text)] = text
        self.lengths[place] = len(text)

    def step(self, propose: Propose) -> list[list[int]]:
        """One pass over all, and the drafts for the next."""
        sampled = []
        for place, request in enumerate(self.batch):
            new = self._sample(request)
            end = len(request.text)
            request.text += new
            self.tokens[place, end : end + len(new)] = new
            self.lengths[place] = len(request.text)
            sampled.append(new)
        drafts = propose(sampled, self.lengths, self.tokens)
        assert len(drafts) == len(self.batch)
        for request, draft in zip(self.batch, drafts, strict=True):
            request.draft = draft
        return drafts

    def _sample(self, request: Running) -> list[int]:
        if request.read < len(request.text) - 1 - len(request.draft) and not request.draft:
            request.read += self.chunk
        if request.read < request.prompt:
            return []
        kept = 0
        while (
            kept < min(len(request.draft), len(request.script) - 1)
            and request.draft[kept] == request.script[kept]
        ):
            kept += 1
        new = request.script[: kept + 1]
        del request.script[: kept + 1]
        self.rounds += 1
        return new


def copied(random: Random, prompt: list[int], length: int, alphabet: list[int]) -> list[int]:
    """What a request writes: pieces of its prompt, with an error now and then."""
    script: list[int] = []
    while len(script) < length:
        start = random.randrange(len(prompt))
        script += prompt[start : start + random.randint(3, 40)]
        script.append(random.choice(alphabet))
    return script[:length]


def a_request(
    random: Random, name: str, alphabet: list[int], prompt: list[int] | None = None
) -> Running:
    """A request whose text is of `alphabet`."""
    if prompt is None:
        prompt = [random.choice(alphabet) for _ in range(random.randint(4, 120))]
    script = copied(random, prompt, random.randint(5, 60), alphabet)
    return Running(name, list(prompt), script, len(prompt))
