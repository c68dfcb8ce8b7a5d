"""`copyahead serve` beside llama.cpp's own server, over HTTP: first token and decode speed.

`make bench-http` runs it with the peers' environment. Every contestant is a server in a process of
its own on the same model, context, KV type and threads; all are started first, and each round goes
through all of them in turn. Clients stream `/v1/completions` at once. Printed are medians over
rounds of the median client's time to first token, of its decode speed (tokens after the first over
the time they took), and of all clients' tokens over the wall time. No prompt comes twice.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from bench_llama_server import peer_server

from copyahead.backends.llama_cpp.gguf import find_model
from copyahead.evaluate.workloads import workload


class Timing(msgspec.Struct):
    """One client's stream."""

    first: float
    """Seconds to the first text."""
    last: float
    num_tokens: int

    @property
    def decode(self) -> float:
        """Tokens a second after the first."""
        return (self.num_tokens - 1) / max(self.last - self.first, 1e-9)


@contextmanager
def own_server(model: Path, lookup: bool, parallel: int) -> Iterator[str]:
    """The address of `copyahead serve`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "import copyahead.cli as c; c.main()", "serve", str(model)]
    command += ["--port", str(port), "--parallel", str(parallel), "--threads", "2"]
    command += ["--kv-type", "q8_0", "--lookup" if lookup else "--no-lookup"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(address)
        yield address
    finally:
        process.kill()
        process.wait()


def _wait(address: str) -> None:
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"{address} did not come up")


def stream(address: str, prompt: str, num_tokens: int) -> Timing:
    """One streamed completion."""
    body = {
        "model": "any",
        "prompt": prompt,
        "max_tokens": num_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    call = urllib.request.Request(
        f"{address}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    began, first, last, tokens = time.perf_counter(), 0.0, 0.0, 0
    with urllib.request.urlopen(call, timeout=300) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
            if any(choice.get("text") for choice in event.get("choices", ())):
                last = time.perf_counter() - began
                first = first or last
    return Timing(first=first, last=last, num_tokens=tokens)


def together(address: str, prompts: list[str], num_tokens: int) -> tuple[list[Timing], float]:
    """All prompts at once, and the wall time."""
    timings: list[Timing | None] = [None] * len(prompts)

    def ask(place: int) -> None:
        timings[place] = stream(address, prompts[place], num_tokens)

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(prompts))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [timing for timing in timings if timing], time.perf_counter() - began


def compare(
    servers: dict[str, str], name: str, num: int, arguments: argparse.Namespace
) -> dict[str, object]:
    """One workload with `num` clients; prints a card."""
    text = workload(name).prompt
    found: dict[str, list[tuple[float, float, float]]] = {server: [] for server in servers}
    for number in range(arguments.rounds):
        order = list(servers) if number % 2 else list(reversed(servers))
        prompts = [f"# {num}.{number}.{i}\n{text}" for i in range(num)]
        for server in order:
            timings, wall = together(servers[server], prompts, arguments.tokens)
            found[server].append(
                (
                    statistics.median(timing.first for timing in timings),
                    statistics.median(timing.decode for timing in timings),
                    sum(timing.num_tokens for timing in timings) / wall,
                )
            )
    print(f"{num} clients, {name}:            first token    decode/client    all, with prompts")
    rows = {}
    for server, runs in found.items():
        first, decode, total = (statistics.median(run[k] for run in runs) for k in range(3))
        rows[server] = {"first_token_s": first, "decode_tps": decode, "total_tps": total}
        print(f"  {server:22} {first:10.3f} s {decode:12.1f} tok/s {total:12.1f} tok/s", flush=True)
    return {"clients": num, "workload": name, "servers": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--workload", nargs="*", default=["prose", "list"])
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 4, 8])
    parser.add_argument("--mode", nargs="*", default=["none", "simple", "mod", "map_k"])
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    parallel = max(arguments.clients)
    results = []
    with ExitStack() as stack:
        enter = stack.enter_context
        servers = {
            "copyahead": enter(own_server(model, True, parallel)),
            "copyahead --no-lookup": enter(own_server(model, False, parallel)),
        }
        for mode in arguments.mode:
            address = enter(peer_server(arguments.peer_python, model, mode, parallel))
            servers[f"llama.cpp {mode}"] = address
        for address in servers.values():
            stream(address, "warm", 4)
        for num in arguments.clients:
            for name in arguments.workload:
                results.append(compare(servers, name, num, arguments))
    print(json.dumps({"model": model.name, "results": results}))


if __name__ == "__main__":
    main()
