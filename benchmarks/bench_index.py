"""How long drafting and indexing take, through the Python API, on this machine.

    python benchmarks/bench_index.py [--json]

Prints a card, and one JSON document as its last line. The text is made here: words of a skewed
vocabulary with passages copied from earlier on, which is what makes an index work hard. Times
are the best of few passes, so that another process does not count; every call is counted in the
percentiles. A row that is filled for the first time pays for memory that the system has not yet
handed out (`index_fresh_ms`, the median of five); rows are reused from then on.
"""

from __future__ import annotations

import gc
import json
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from copyahead.contracts import Drafter, Load, Query
from copyahead.drafters.factory import make_drafter
from copyahead.history.pool import HistoryPool
from copyahead.kernels import warm_up
from copyahead.step_cost import StepCost
from copyahead.types import NO_DRAFT, Draft

Text = npt.NDArray[np.int32]

VOCAB = 50_000
HISTORY = 200_000
PROMPT = 220_000
BATCH = 80
WINDOW = "window:key=2,min_match=2,max_skip=0"
HYSTERESIS = "hysteresis:min_match=2,min_match_running=2,min_match_after_empty=2"


def copied_text(length: int, seed: int = 0) -> Text:
    """Skewed random tokens; of every 500, with chance 0.4, a passage from earlier on."""
    rng = np.random.default_rng(seed)
    text = (rng.zipf(1.3, length) % VOCAB).astype(np.int32)
    for start in range(1000, length - 500, 500):
        if rng.random() < 0.4:
            origin = int(rng.integers(0, start - 500))
            text[start : start + 500] = text[origin : origin + 500]
    return text


def adversarial(length: int) -> dict[str, Text]:
    """Texts that make indexes slow: everything matches, or nearly."""
    rng = np.random.default_rng(1)
    period = rng.integers(0, VOCAB, 63)
    fibonacci = "a"
    before = "b"
    while len(fibonacci) < length:
        fibonacci, before = fibonacci + before, fibonacci
    noisy = np.resize(period, length)
    noisy[rng.random(length) < 0.02] = 7
    texts = {
        "constant": np.full(length, 7),
        "period 63": np.resize(period, length),
        "noisy period": noisy,
        "Fibonacci word": np.frombuffer(fibonacci[:length].encode(), dtype=np.uint8),
        "random binary": rng.integers(0, 2, length),
        "random": rng.integers(0, VOCAB, length),
    }
    return {name: text.astype(np.int32) for name, text in texts.items()}


def summary(times: Sequence[int]) -> dict[str, float]:
    """Median, 99th percentile, and longest, in microseconds."""
    ordered = sorted(times)
    at = [ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]]
    return dict(zip(("p50_us", "p99_us", "max_us"), (round(t / 1e3, 2) for t in at), strict=True))


def drafter_of(policy: str, rows: int, capacity: int) -> Drafter:
    """A drafter over a pool of its own; `priced` at 0.03 steps a row."""
    load = Load(step_cost=StepCost.linear(0.03))
    return make_drafter(policy, HistoryPool(rows, capacity, VOCAB), load)


def tokens_of(text: Text) -> Sequence[int]:
    """An array is read faster than a list, and the contract asks for no more than its items."""
    return cast("Sequence[int]", text)


def replay(policy: str, text: Text, start: int, rounds: int) -> dict[str, float]:
    """Draft against `text` from token `start` on, as a request would, timing every propose."""
    session = drafter_of(policy, 1, len(text) + 100).open(tokens_of(text[:start]), slot=0)
    answer = text[start:].tolist()
    times: list[int] = []
    done = drafted = 0
    while done < len(answer) - 70 and len(times) < rounds:
        begun = perf_counter_ns()
        draft = session.propose(64)
        times.append(perf_counter_ns() - begun)
        kept = 0
        while kept < len(draft) and draft.tokens[kept] == answer[done + kept]:
            kept += 1
        session.settle(draft, answer[done : done + kept + 1])
        done += kept + 1
        drafted += len(draft)
    return summary(times) | {"drafted_per_round": round(drafted / len(times), 2)}


def batch(policy: str) -> dict[str, float]:
    """One `propose_batch` for many rows of long histories."""
    texts = [copied_text(20_000, seed) for seed in range(BATCH)]
    drafter = drafter_of(policy, BATCH, 20_100)
    sessions = [drafter.open(tokens_of(text[:19_500]), slot=row) for row, text in enumerate(texts)]
    answers = [text[19_500:].tolist() for text in texts]
    limits = [64] * BATCH
    times = []
    drafted = 0
    for place in range(400):
        begun = perf_counter_ns()
        drafts = drafter.propose_batch(sessions, limits)
        times.append(perf_counter_ns() - begun)
        for session, draft, answer in zip(sessions, drafts, answers, strict=True):
            drafted += len(draft)
            session.settle(draft.first(1), answer[place : place + 1])
    result = summary(times)
    return result | {"drafted_per_row": round(drafted / 400 / BATCH, 2)}


def indexing() -> dict[str, float]:
    """A long prompt into a fresh row and into used ones, and the next turn's attach."""
    text = copied_text(PROMPT)
    pool = HistoryPool(6, PROMPT + 3000, VOCAB)
    fresh = sorted(timed(partial(pool.attach, row, text)) for row in range(5))[2]
    used = []
    for _ in range(5):
        pool.truncate(0, 0)
        used.append(timed(lambda: pool.attach(0, text)))
    turn = np.concatenate([text, copied_text(2000, 9)])
    attached = []
    as_list = []
    turn_list = turn.tolist()
    for _ in range(5):
        pool.truncate(0, PROMPT)
        attached.append(timed(lambda: pool.attach(0, turn)))
        pool.truncate(0, PROMPT)
        as_list.append(timed(lambda: pool.attach(0, turn_list)))
    row = pool.cells[0].nbytes / len(pool.cells[0])
    return {
        "index_ns_per_token": round(min(used) * 1e6 / PROMPT, 2),
        "index_220k_ms": round(min(used), 2),
        "index_fresh_ms": round(fresh, 2),
        "attach_next_turn_ms": round(min(attached), 3),
        "attach_next_turn_from_list_ms": round(min(as_list), 3),
        "bytes_per_token": row,
        "mib_per_history": pool.heads[0].nbytes / 2**20,
    }


def timed(call: Callable[[], object]) -> float:
    """Milliseconds."""
    begun = perf_counter_ns()
    call()
    return (perf_counter_ns() - begun) / 1e6


def worst() -> dict[str, dict[str, float]]:
    """Every policy-like query on every adversarial text; best of 3 calls each."""
    result = {}
    for name, text in adversarial(PROMPT).items():
        pool = HistoryPool(1, PROMPT, VOCAB)
        pool.attach(0, text)
        times = []
        for cut in range(300):
            pool.truncate(0, PROMPT - cut)
            for keys in ((2,), (3, 2), (4, 1)):
                for winner in ("longest", "furthest"):
                    query = Query(keys=keys, min_match=65, max_tokens=64, winner=winner)
                    kept = Query(keys=keys, min_match=1, max_tokens=64, winner=winner)
                    for asked in (query, kept):
                        calls = (timed(partial(pool.search, 0, asked)) for _ in range(3))
                        times.append(int(min(calls) * 1e6))
        result[name] = summary(times)
    return result


def worst_priced() -> dict[str, dict[str, float]]:
    """The default policy at the end of every adversarial text; best of 3 calls each."""
    result = {}
    for name, text in adversarial(PROMPT).items():
        session = drafter_of("priced", 1, PROMPT).open(tokens_of(text[:-700]), slot=0)
        times = []
        for token in text[-700:].tolist():
            times.append(int(min(timed(partial(session.propose, 64)) for _ in range(3)) * 1e6))
            session.settle(NO_DRAFT, [token])
        result[name] = summary(times)
    return result


def naive_scan(text: Sequence[int], key: int, max_tokens: int) -> Draft:
    """What many engines do: compare the last `key` tokens with every position, newest first."""
    tail = text[-key:]
    for end in range(len(text) - 1, key - 1, -1):
        if text[end - 1] == tail[-1] and text[end - key : end] == tail:
            return Draft(tuple(text[end : end + max_tokens]))
    return Draft()


def naive() -> dict[str, float]:
    text = copied_text(HISTORY + 60).tolist()
    times = []
    for cut in range(60):
        held = text[: HISTORY + cut]
        begun = perf_counter_ns()
        naive_scan(held, 3, 10)
        times.append(perf_counter_ns() - begun)
    return summary(times)


def measure() -> dict[str, Any]:
    """All of it, as the JSON document."""
    gc.disable()
    text = copied_text(HISTORY + 20_000)
    replay("fixed", text, HISTORY, 200)
    policies = {
        "priced": "priced",
        "hysteresis": HYSTERESIS,
        "window": WINDOW,
        "single": "single",
        "fixed": "fixed",
    }
    result: dict[str, Any] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "propose_200k": {name: replay(p, text, HISTORY, 5000) for name, p in policies.items()},
        "propose_naive_scan": naive(),
        "propose_batch_80": {
            "priced": batch("priced"),
            "hysteresis": batch("hysteresis"),
            "window": batch(WINDOW),
            "single": batch("single"),
            "every row a long draft": batch(HYSTERESIS),
        },
        "indexing": indexing(),
        "worst": worst(),
        "worst_priced": worst_priced(),
    }
    gc.enable()
    return result


def main() -> None:
    warm_up()
    result = measure()
    if "--json" not in sys.argv:
        show(result)
    print(json.dumps(result))


def show(result: Mapping[str, object], indent: int = 0) -> None:
    for name, value in result.items():
        if isinstance(value, Mapping):
            print(" " * indent + name)
            show(value, indent + 2)
        else:
            print(f"{' ' * indent}{name:32} {value}")


if __name__ == "__main__":
    main()
