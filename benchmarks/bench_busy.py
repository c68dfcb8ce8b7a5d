"""Plain decoding while other programs use the CPUs: none, one, and as many as there are CPUs.

    python benchmarks/bench_busy.py [--peer-python PYTHON]

Contestants: as many threads as CPUs, kept; one thread, kept; threads that give way (the default);
and, with `--peer-python` (see `make bench-busy`), llama.cpp's own server. Each round goes through
all of them under each load; a card shows medians, and the last line is one JSON document. Between
a change of the load and the measurement every contestant decodes for a second and a half, in which
threads that give way have given way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from bench_llama_server import ask_peer, peer_server

from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.gguf import find_model
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.config import usable_cpus
from copyahead.contracts import Part

WARM_SECONDS = 1.5
SECONDS = 3.0
"""Longest measurement, where decoding all but stands still."""
TOKENS = 120
SPIN = [sys.executable, "-c", "while True: pass"]

Contestant = Callable[[], float]
"""Decodes, and says how many tokens a second."""


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """So many programs that each keep a CPU busy."""
    with ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(subprocess.Popen(SPIN))
            stack.callback(process.kill)
        yield


def ours(backend: LlamaBackend) -> Contestant:
    """Passes of one row, without an engine around them."""
    prompt = backend.tokenizer.encode("A list of rivers and the seas that they reach:\n")

    def decode(seconds: float) -> float:
        backend.truncate(0, 0)
        backend.forward([Part(0, 0, prompt, 1)])
        began = time.perf_counter()
        for count in range(1, TOKENS + 1):
            at = len(prompt) + count - 1
            backend.forward([Part(0, at, [prompt[count % len(prompt)]], 1)])
            passed = time.perf_counter() - began
            if passed > seconds:
                break
        return count / passed

    def run() -> float:
        until = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < until:
            decode(WARM_SECONDS)
        return decode(SECONDS)

    return run


def theirs(address: str, prompt: list[int]) -> Contestant:
    """llama.cpp's server, by its own clock."""

    def run() -> float:
        ask_peer(address, [prompt], 8)
        (timing,) = ask_peer(address, [prompt], 24)
        return timing["predicted_n"] / (timing["predicted_ms"] / 1e3)

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="GGUF file; the bundled model when not given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-python", help="Python of an environment that has xllamacpp")
    arguments = parser.parse_args()
    model, cpus = find_model(arguments.model), usable_cpus()
    with ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for name, threads, yields in (
            (f"{cpus} threads", cpus, False),
            ("1 thread", 1, False),
            ("gives way", cpus, True),
        ):
            settings = LlamaSettings(threads=threads, ctx=512, parallel=1)
            backend = LlamaBackend(model, settings, yields=yields)
            stack.callback(backend.close)
            contestants[name] = ours(backend)
        if arguments.peer_python:
            prompt = backend.tokenizer.encode("A list of rivers and the seas that they reach:\n")
            peer = stack.enter_context(peer_server(arguments.peer_python, model, "none", 1))
            contestants["llama.cpp's server"] = theirs(peer, prompt)
        speeds: dict[int, dict[str, list[float]]] = {
            count: {name: [] for name in contestants} for count in sorted({0, 1, cpus})
        }
        for _ in range(arguments.rounds):
            for count, of_load in speeds.items():
                for name, contestant in contestants.items():
                    with neighbours(count):
                        of_load[name].append(contestant())
    medians = {
        count: {name: round(statistics.median(values), 1) for name, values in of_load.items()}
        for count, of_load in speeds.items()
    }
    print(f"tokens a second, medians of {arguments.rounds} rounds, {cpus} CPUs")
    print(f"{'':20}" + "".join(f"{f'{count} busy':>10}" for count in medians))
    for name in contestants:
        print(f"{name:20}" + "".join(f"{medians[count][name]:10.1f}" for count in medians))
    print(json.dumps({"cpus": cpus, "tokens_per_second": medians}))


if __name__ == "__main__":
    main()
