"""Copies beside a draft model that is made up: what each rule is worth on recorded text.

    python benchmarks/bench_hybrid.py TRACE... [--cost 0.03,0.3] [--every N] [--pass-cost 0.03]

The draft model is right with a probability that it knows: a function of the place in the text, with
0.15, 0.4, 0.65, 0.9 or 0.98 at a sixth to a quarter of the places each, 0.68 on the mean, whatever
the copies say there. Behind a token that the text does not have, it goes on at random. One pass of
it costs `--pass-cost` steps, a row that it reads beside that `--read-cost`. `--every` N takes every
N-th session only. Prints a table, and one JSON document as its last line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from copyahead.acceptance import num_accepted
from copyahead.contracts import Drafter, DraftSession, Load, NextToken
from copyahead.drafters.factory import make_drafter
from copyahead.drafters.hybrid import HybridDrafter
from copyahead.history.pool import HistoryPool
from copyahead.step_cost import StepCost
from copyahead.traces.corpus import Corpus, build_corpus
from copyahead.traces.formats.importers import read_traces
from copyahead.traces.replay import Phases, replay_sessions
from copyahead.traces.tokenizers import find_tokenizer
from copyahead.types import NO_DRAFT, Draft, Source, Token

CHANCES = (0.15, 0.15, 0.4, 0.4, 0.65, 0.65, 0.65, 0.9, 0.9, 0.9, 0.98, 0.98, 0.98)
RULES = ("first", "longer", "agree", "priced")


class MadeUpSession:
    """One request: it knows where in the corpus its text stands."""

    window: int | None = None

    def __init__(self, drafter: MadeUpDrafter, base: int, length: int) -> None:
        self._drafter = drafter
        self._base = base
        self._length = length
        self._num_read = 0
        self._ahead: tuple[Token, ...] = ()

    def num_unread(self, chain: Sequence[Token]) -> int:
        unread = self._length - self._num_read
        kept = num_accepted(self._ahead, chain) if unread == 0 else 0
        return max(1, unread + len(chain) - kept)

    def next(self, chain: Sequence[Token]) -> NextToken:
        """The token of the text where it is right, and another one where it is not."""
        self._num_read, self._ahead = self._length, tuple(chain)
        place = self._base + self._length
        text = self._drafter.corpus.tokens[place : place + len(chain) + 1].tolist()
        chance, is_right, other = self._drafter.fates[
            (place + len(chain)) % len(self._drafter.fates)
        ]
        if is_right and len(text) > len(chain) and text[:-1] == list(chain):
            return NextToken(text[-1], chance)
        return NextToken(int(other), chance)

    def propose(self, limit: int) -> Draft:
        chain: list[Token] = []
        while len(chain) < min(limit, self._drafter.max_chain):
            (found,) = self._drafter.extend([self], [chain])
            chain.append(found.token)
        return Draft(tokens=tuple(chain), source=Source.MODEL) if chain else NO_DRAFT

    def settle(self, draft: Draft, emitted: Sequence[Token]) -> None:
        if self._num_read == self._length:
            self._num_read += num_accepted(self._ahead, emitted)
        self._ahead = ()
        self._length += len(emitted)

    def truncate(self, length: int) -> None:
        self._length = min(length, self._length)

    def close(self) -> None:
        """It holds nothing."""


class MadeUpDrafter:
    """Implements `contracts.ChainDrafter`."""

    def __init__(self, corpus: Corpus, max_chain: int, a_pass: float, a_row: float) -> None:
        self.corpus = corpus
        self.max_chain = max_chain
        self._seconds = a_pass, a_row
        self.spent = 0.0
        random = np.random.default_rng(0)
        count = 1_000_003
        chances = random.choice(CHANCES, count)
        right = random.random(count) < chances
        others = random.integers(0, corpus.vocab_size, count)
        self.fates = list(zip(chances.tolist(), right.tolist(), others.tolist(), strict=True))

    def open(self, prompt: Any, *, slot: int, **_options: Any) -> MadeUpSession:
        base = (prompt.ctypes.data - self.corpus.tokens.ctypes.data) // prompt.itemsize
        return MadeUpSession(self, base, len(prompt))

    def extend(self, sessions: Any, chains: Sequence[Sequence[Token]]) -> list[Any]:
        pairs = list(zip(sessions, chains, strict=True))
        self.spent += self.seconds(sum(s.num_unread(c) for s, c in pairs))
        return [session.next(chain) for session, chain in pairs]

    def num_rows(self, session: Any, chain: Sequence[Token]) -> int:
        return int(session.num_unread(chain))

    def seconds(self, num_rows: int) -> float:
        return self._seconds[0] + self._seconds[1] * (num_rows - 1)

    def propose_batch(self, sessions: Sequence[DraftSession], limits: Sequence[int]) -> list[Draft]:
        return [s.propose(limit) for s, limit in zip(sessions, limits, strict=True)]

    def forget(self) -> None:
        """It holds nothing."""

    def check(self) -> None:
        """It has no books."""


def replay(corpus: Corpus, every: int, make: Callable[[int], Drafter]) -> Phases:
    """Every N-th session of each category, each category with a drafter of its own."""
    found = Phases()
    for category in range(len(corpus.categories)):
        found += replay_sessions(corpus, corpus.sessions(category)[::every], make)
    return found


def measure(corpus: Corpus, name: str, cost: StepCost, options: argparse.Namespace) -> list[float]:
    """Speed-up, tokens a round, passes of the model a round, and microseconds a propose."""
    chains = MadeUpDrafter(corpus, options.chain, options.pass_cost, options.read_cost)
    load = Load(step_cost=cost)

    def make(capacity: int) -> Drafter:
        if name == "model alone":
            return cast("Drafter", chains)
        pool = HistoryPool(1, capacity, corpus.vocab_size)
        copies = make_drafter(options.policy, pool, load, corpus.end_tokens)
        if name == "copies alone":
            return copies
        return HybridDrafter(cast("Any", copies), cast("Any", chains), cast("Any", name), load)

    tally = replay(corpus, options.every, make).both()
    passes = chains.spent / options.pass_cost / tally.rounds
    speedup = tally.emitted / (tally.cost(cost) + chains.spent)
    micros = tally.propose_ns / tally.rounds / 1000
    return [speedup, tally.emitted / tally.rounds, passes, micros]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="copies beside a made-up draft model")
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--cost", default="0.03,0.3", help="a row's cost, in steps")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--chain", type=int, default=3)
    parser.add_argument("--pass-cost", type=float, default=0.03)
    parser.add_argument("--read-cost", type=float, default=0.0)
    parser.add_argument("--policy", default="priced")
    parser.add_argument("--only", nargs="+", default=["copies alone", "model alone", *RULES])
    options = parser.parse_args()
    traces = read_traces(options.traces)
    corpus = build_corpus(traces, find_tokenizer(None)[1])
    rows: list[dict[str, Any]] = []
    print(f"{'':14} {'a row':>6} {'speed-up':>9} {'tok/round':>10} {'passes':>7} {'draft µs':>9}")
    for row_cost in map(float, options.cost.split(",")):
        for name in options.only:
            found = measure(corpus, name, StepCost.linear(row_cost), options)
            speedup, tokens, passes, micros = found
            shown = f"{speedup:9.3f} {tokens:10.2f} {passes:7.2f} {micros:9.1f}"
            print(f"{name:14} {row_cost:6g} {shown}", flush=True)
            rows.append({"rule": name, "row_cost": row_cost, "speedup": speedup, "passes": passes})
    print(json.dumps({"hybrid": rows, "traces": [Path(t).name for t in options.traces]}))


if __name__ == "__main__":
    main()
