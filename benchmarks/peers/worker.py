"""Drives one peer in a process of its own: `worker.py JOB`, the job in JSON; prints JSON.

A job is `name`, `corpus` and `mode`, and may have `cost` and `prior`. Mode `replay`: teacher-forced
over the corpus, as `copyahead replay` does; prints for each category and setting how many rounds
drafted k tokens. Mode `fresh`: the same of the first request of each session, with a new drafter
for each. Mode `speed`: times and memory over one long history and the worst of some adversarial
texts.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from peers.adapters import MAX_DRAFT, Making, Peer, make
from peers.sweeps import SWEEPS, Sweep

Tokens = npt.NDArray[np.int32]

OPENING = 32
"""Tokens of an answer that count as its beginning, as in `copyahead replay`."""

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


@dataclass
class Tally:
    """Rounds of some requests."""

    emitted: int = 0
    drafted: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFT + 1))
    """`drafted[k]`: rounds that drafted k tokens."""
    opening_emitted: int = 0
    """The same of the rounds that start within the first tokens of an answer."""
    opening_drafted: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFT + 1))
    nanoseconds: int = 0

    def count(self, at: int, drafted: int, emitted: int, nanoseconds: int) -> None:
        self.emitted += emitted
        self.drafted[drafted] += 1
        self.nanoseconds += nanoseconds
        if at < OPENING:
            self.opening_emitted += emitted
            self.opening_drafted[drafted] += 1


Job = dict[str, Any]
Results = dict[str, dict[str, dict[str, Any]]]


def replay(job: Job, data: Any) -> Results:
    """By category and setting, what was drafted; a policy of this project has one setting."""
    tokens, requests, categories = data["tokens"], data["requests"], data["categories"]
    found: Results = {}
    for number, category in enumerate(categories):
        mine = requests[requests[:, 4] == number]
        if not len(mine):
            continue
        settings = SWEEPS[job["name"]].names if job["name"] in SWEEPS else ("",)
        tallies = [Tally() for _ in settings]
        # With a new drafter for each, or one for all.
        alone = job["mode"] == "fresh"
        for part in np.split(mine, range(1, len(mine))) if alone else [mine]:
            read = [(tokens[b : b + end], start) for b, start, end, *_ in part.tolist()]
            play(job, data, read, tallies)
        found[str(category)] = {
            setting: asdict(tally) for setting, tally in zip(settings, tallies, strict=True)
        }
    return found


def play(job: Job, data: Any, requests: list[tuple[Tokens, int]], tallies: list[Tally]) -> None:
    """All `requests` with one drafter."""
    made = making(job, data, max(len(stream) for stream, _ in requests) + MAX_DRAFT)
    if job["name"] not in SWEEPS:
        peer = make(job["name"], made)
        for stream, start in requests:
            one_peer(peer, stream, start, tallies[0])
        return
    sweep = SWEEPS[job["name"]].make(made)
    for stream, start in requests:
        all_settings(sweep, stream, start, tallies)


def making(job: Job, data: Any, capacity: int) -> Making:
    ends = tuple(data["end_tokens"].tolist())
    return Making(capacity, int(data["vocab_size"]), job.get("cost"), job.get("prior"), ends)


def one_peer(peer: Peer, stream: Tokens, start: int, tally: Tally) -> None:
    peer.start(stream[:start].copy())
    answer, at = stream[start:].tolist(), 0
    while at < len(answer):
        began = perf_counter_ns()
        draft = peer.propose()
        nanoseconds = perf_counter_ns() - began
        emitted = answer[at : at + kept_of(draft, answer, at) + 1]
        peer.settle(emitted)
        tally.count(at, len(draft), len(emitted), nanoseconds)
        at += len(emitted)
    peer.stop()


def all_settings(sweep: Sweep, stream: Tokens, start: int, tallies: list[Tally]) -> None:
    """Every setting goes its own way through the answer; each is asked where its rounds start."""
    sweep.start(stream[:start].copy())
    answer = stream[start:].tolist()
    following = [0] * len(tallies)
    for at, token in enumerate(answer):
        for number, tally in enumerate(tallies):
            if following[number] != at:
                continue
            began = perf_counter_ns()
            draft = sweep.propose(number)
            nanoseconds = perf_counter_ns() - began
            kept = kept_of(draft, answer, at)
            if draft:
                sweep.accepted(number, kept)
            emitted = min(kept + 1, len(answer) - at)
            tally.count(at, len(draft), emitted, nanoseconds)
            following[number] = at + emitted
        sweep.settle(token)
    sweep.stop()


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


def speed(job: Job, data: Any) -> dict[str, Any]:
    stream = data["long"]
    prompt = len(stream) - 20_000
    peer = make(job["name"], fast(job, len(stream), max(int(data["vocab_size"]), _ALPHABET)))
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
    worst = {text: worst_propose(job, made) for text, made in adversarial().items()}
    return {
        "index_ms": index_ms, "attach_ms": float(np.median(attach)), "bytes_a_token": memory,
        "propose_us_p50": float(np.percentile(times, 50)) / 1e3,
        "propose_us_p99": float(np.percentile(times, 99)) / 1e3,
        "worst_us": worst,
    }  # fmt: skip


def fast(job: Job, length: int, vocab_size: int) -> Making:
    return Making(length + MAX_DRAFT, vocab_size, job.get("cost"), job.get("prior"))


def worst_propose(job: Job, stream: Tokens) -> float:
    peer = make(job["name"], fast(job, len(stream), _ALPHABET))
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
    job = json.loads(sys.argv[1])
    data = dict(np.load(job["corpus"]))
    print(json.dumps(speed(job, data) if job["mode"] == "speed" else replay(job, data)))


if __name__ == "__main__":
    main()
