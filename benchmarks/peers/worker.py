"""Drives one peer in a process of its own: `worker.py NAME CORPUS MODE [COST]`; prints JSON.

MODE `replay`: teacher-forced over the corpus, as `copyahead replay` does; prints for each
category how many rounds drafted k tokens. MODE `speed`: times and memory over one long history
and the worst of some adversarial texts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers.adapters import MAX_DRAFT, Peer, make

Tokens = npt.NDArray[np.int32]

_ROUNDS = 2000
_WORST_LENGTH = 50_000
_WORST_ROUNDS = 300
_ALPHABET = 150_000


def kept_of(draft: Any, answer: list[int], at: int) -> int:
    count = 0
    for token in draft:
        if at + count >= len(answer) or token != answer[at + count]:
            break
        count += 1
    return count


def replay(name: str, data: Any, cost: float | None) -> dict[str, Any]:
    tokens, requests, categories = data["tokens"], data["requests"], data["categories"]
    found = {}
    for number, category in enumerate(categories):
        mine = requests[requests[:, 4] == number]
        peer = make(name, int(mine[:, 2].max()) + MAX_DRAFT, int(data["vocab_size"]), cost)
        drafted = [0] * (MAX_DRAFT + 1)
        emitted = nanoseconds = 0
        for base, start, end, *_ in mine.tolist():
            stream = tokens[base : base + end]
            peer.start(stream[:start].copy())
            answer, at = stream[start:].tolist(), 0
            while at < len(answer):
                began = perf_counter_ns()
                draft = peer.propose()
                nanoseconds += perf_counter_ns() - began
                kept = kept_of(draft, answer, at)
                peer.settle(answer[at : at + kept + 1])
                drafted[len(draft)] += 1
                at += kept + 1
            peer.stop()
            emitted += len(answer)
        rounds = sum(drafted)
        found[str(category)] = {
            "emitted": emitted, "drafted": drafted, "draft_us": nanoseconds / rounds / 1e3,
        }  # fmt: skip
    return found


def best_of(peer: Peer, times: int) -> int:
    """Nanoseconds of a propose, the least of some: what the scheduler adds is not the peer's."""
    best = 1 << 62
    for _ in range(times):
        began = perf_counter_ns()
        peer.propose()
        best = min(best, perf_counter_ns() - began)
    return best


def step(peer: Peer, stream: Tokens, at: int) -> int:
    """One teacher-forced round; where the next one starts."""
    draft = peer.propose()
    answer = stream[at : at + MAX_DRAFT + 1].tolist()
    emitted = answer[: kept_of(draft, answer, 0) + 1]
    peer.settle(emitted)
    return at + len(emitted)


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def speed(name: str, data: Any, cost: float | None) -> dict[str, Any]:
    stream = data["long"]
    prompt = len(stream) - 20_000
    peer = make(name, len(stream) + MAX_DRAFT, max(int(data["vocab_size"]), _ALPHABET), cost)
    peer.start(stream[:100].copy())
    peer.propose()
    peer.stop()
    before = resident()
    first = stream[:prompt].copy()
    began = perf_counter_ns()
    peer.start(first)
    index_ms = (perf_counter_ns() - began) / 1e6
    memory = (resident() - before) / prompt
    times: list[int] = []
    at = prompt
    while len(times) < _ROUNDS and at < len(stream) - MAX_DRAFT - 1:
        times.append(best_of(peer, 1))
        at = step(peer, stream, at)
    peer.stop()
    attach = []
    for _ in range(5):
        at = min(at + 500, len(stream))
        following = stream[:at].copy()
        began = perf_counter_ns()
        peer.start(following)
        attach.append((perf_counter_ns() - began) / 1e6)
        peer.stop()
    worst = {text: worst_propose(name, made, cost) for text, made in adversarial().items()}
    return {
        "index_ms": index_ms, "attach_ms": float(np.median(attach)), "bytes_a_token": memory,
        "propose_us_p50": float(np.percentile(times, 50)) / 1e3,
        "propose_us_p99": float(np.percentile(times, 99)) / 1e3,
        "worst_us": worst,
    }  # fmt: skip


def worst_propose(name: str, stream: Tokens, cost: float | None) -> float:
    peer = make(name, len(stream) + MAX_DRAFT, _ALPHABET, cost)
    at = len(stream) // 2
    peer.start(stream[:at].copy())
    worst = 0
    for _ in range(_WORST_ROUNDS):
        if at >= len(stream) - MAX_DRAFT - 1:
            break
        worst = max(worst, best_of(peer, 3))
        at = step(peer, stream, at)
    peer.stop()
    return worst / 1e3


def adversarial() -> dict[str, Tokens]:
    """Texts that are hard for one index or another."""
    rng = np.random.default_rng(0)
    size = _WORST_LENGTH
    texts = {
        "constant": np.full(size, 7),
        "period 63": np.arange(size) % 63,
        "fibonacci": np.array(fibonacci_word(size)),
        "random binary": rng.integers(0, 2, size),
        "random wide": rng.integers(0, _ALPHABET, size),
    }
    parts = [text[: size // 10] for text in texts.values()]
    texts["switching"] = np.concatenate([*parts, *parts])
    return {name: text.astype(np.int32) for name, text in texts.items()}


def fibonacci_word(size: int) -> list[int]:
    before, word = [1], [1, 0]
    while len(word) < size:
        before, word = word, word + before
    return word[:size]


def main() -> None:
    name, corpus, mode, *rest = sys.argv[1:]
    data = np.load(corpus)
    cost = float(rest[0]) if rest else None
    run = replay if mode == "replay" else speed
    print(json.dumps(run(name, data, cost)))


if __name__ == "__main__":
    main()
