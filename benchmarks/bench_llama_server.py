"""copyahead's engine beside llama.cpp's own server: same model, prompts and settings, one run.

`make bench-server` installs the server into an environment of its own (`--peer-python`) and runs
this. All servers are started first and idle while another is measured; each round goes through
all contestants in turn, and a card shows medians of decode speed. The last line is one JSON
document. Decode speed is tokens after the first over the time they took; for several requests at
once it is all their tokens over the slowest one's time, with the prompts already read.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from copyahead.backends.llama_cpp.gguf import find_model
from copyahead.backends.probe.search import load
from copyahead.config import LookupOptions, ModelOptions
from copyahead.engine import Engine, Request
from copyahead.evaluate.workloads import workload
from copyahead.loading import make_engine

PEER = Path(__file__).with_name("llama_server_peer.py")
MODES = ("none", "simple", "mod", "map_k")


@contextmanager
def peer_server(python: str, model: Path, mode: str, num: int, ctx: int = 4096) -> Iterator[str]:
    """The address of a running server."""
    command = [python, str(PEER), str(model), "--mode", mode, "--parallel", str(num)]
    command += ["--ctx", str(ctx), "--threads", "2"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["address"]
    finally:
        process.kill()
        process.wait()


def peer_speed(address: str, prompts: list[list[int]], num_tokens: int) -> float:
    """Tokens a second of all prompts together, once they have been read."""
    ask_peer(address, prompts, 1)
    timings = ask_peer(address, prompts, num_tokens)
    slowest = max(timing["predicted_ms"] for timing in timings) / 1e3
    return sum(timing["predicted_n"] - 1 for timing in timings) / slowest


def ask_peer(address: str, prompts: list[list[int]], num_tokens: int) -> list[dict[str, float]]:
    """The server's own timings of requests that are made at once."""
    timings: list[dict[str, float]] = [{} for _ in prompts]

    def ask(place: int) -> None:
        body = {
            "prompt": prompts[place],
            "n_predict": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        call = urllib.request.Request(
            f"{address}/completion",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(call, timeout=300) as reply:
            timings[place] = json.load(reply)["timings"]

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return timings


def own_speed(engine: Engine, prompts: list[list[int]], num_tokens: int, lookup: bool) -> float:
    """The same for copyahead."""
    engine.complete_all([Request(prompt=prompt, max_tokens=1, lookup=lookup) for prompt in prompts])
    requests = [
        Request(prompt=prompt, max_tokens=num_tokens, ignore_eos=True, lookup=lookup)
        for prompt in prompts
    ]
    done = engine.complete_all(requests)
    slowest = max(completion.stats.decode_seconds for completion in done)
    return sum(completion.stats.num_output_tokens - 1 for completion in done) / slowest


def measure(contestants: dict[str, Callable[[int], float]], rounds: int) -> dict[str, list[float]]:
    """Speeds, each contestant run `rounds` times in turn after one run to warm up.

    A contestant is called with the number of the round: no prompt comes twice, because what an
    earlier answer left behind would then be replayed, and not copied from the prompt.
    """
    speeds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        order = list(contestants) if number % 2 else list(reversed(contestants))
        for name in order:
            speed = contestants[name](number)
            if number:
                speeds[name].append(speed)
    return speeds


def compare(
    engine: Engine, servers: dict[str, str], name: str, num: int, arguments: argparse.Namespace
) -> dict[str, object]:
    """One workload with `num` clients, everybody in turn; prints a card."""
    text, tokens = workload(name).prompt, arguments.tokens
    encode = engine.backend.tokenizer.encode

    def prompts(number: int) -> list[list[int]]:
        return [encode(f"# {number}.{i}\n{text}") for i in range(num)]

    contestants: dict[str, Callable[[int], float]] = {
        "plain": lambda number: own_speed(engine, prompts(number), tokens, False),
        "lookup": lambda number: own_speed(engine, prompts(number), tokens, True),
    }

    def peer(address: str) -> Callable[[int], float]:
        return lambda number: peer_speed(address, prompts(number), tokens)

    contestants |= {f"llama.cpp {mode}": peer(address) for mode, address in servers.items()}
    speeds = measure(contestants, arguments.rounds)
    cost = engine.backend.step_cost
    allowed = cost.limit() / (num / cost(num))
    print(f"{num} clients, {name}; the step cost allows {allowed:.2f} x plain:")
    for contestant, all_speeds in speeds.items():
        median, base = statistics.median(all_speeds), statistics.median(speeds["llama.cpp none"])
        print(f"  {contestant:18} {median:8.1f} tok/s {median / base:6.2f} x llama.cpp plain")
    return {"clients": num, "workload": name, "step_limit": allowed, "speeds": speeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--workload", nargs="*", default=["prose", "copy"])
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 4])
    parser.add_argument("--mode", nargs="*", default=list(MODES), help="of the peer; none first")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--policy", default=LookupOptions().policy)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    results = []
    for num in arguments.clients:
        options = ModelOptions(parallel=num, threads=2, kv_type="q8_0")
        engine = make_engine(load(model, options), lookup=LookupOptions(policy=arguments.policy))
        with engine, ExitStack() as stack:
            servers = {
                mode: stack.enter_context(peer_server(arguments.peer_python, model, mode, num))
                for mode in arguments.mode
            }
            results += [
                compare(engine, servers, name, num, arguments) for name in arguments.workload
            ]
    print(json.dumps({"model": model.name, "results": results}))


if __name__ == "__main__":
    main()
