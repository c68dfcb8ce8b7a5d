"""Which body of an attack keeps a server's process from doing anything else, and for how long?

    python benchmarks/soak_stalls.py
    python benchmarks/soak_stalls.py --attack systems -- --max-body-mb 16 --ctx 131072

starts `copyahead serve` with a thread that sleeps 5 ms again and again, and sends the bodies of
`soak_attacks.py` one by one. A stall is how much later than asked the thread woke up; of that, no
more than the process computed meanwhile, so that other programs do not count.

What it cannot show: stalls that several requests make together; `soak_server.py --attack` does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import httpx
from soak_attacks import Nulls, Pieces, Schemas, Systems
from soak_serve import wait_until_up
from soak_target import CHAT

_SLEEP_SECONDS = 0.005
_KINDS = ("nulls", "systems", "pieces", "schemas")


def bodies(name: str) -> Iterator[tuple[str, bytes]]:
    """Path and body of everything large that an attack sends."""
    if name == "nulls":
        yield from Nulls()._bodies
    elif name == "systems":
        yield from ((CHAT, body) for body in Systems()._bodies)
    elif name == "pieces":
        pieces = Pieces()
        yield "/detokenize", pieces._ids
        yield from (("/tokenize", body) for body in (pieces._middle, pieces._large))
    else:
        yield from ((CHAT, json.dumps(body).encode()) for body in Schemas()._bodies)


def watched_server(arguments: list[str]) -> None:
    """Serve, and answer each line in with the longest stall since the last one, in ms."""
    longest = 0.0

    def watch() -> None:
        nonlocal longest
        while True:
            began, computed = time.perf_counter(), time.process_time()
            time.sleep(_SLEEP_SECONDS)
            late = time.perf_counter() - began - _SLEEP_SECONDS
            longest = max(longest, min(late, time.process_time() - computed))

    def answer() -> None:
        nonlocal longest
        for _ in sys.stdin:
            print(1000 * longest, flush=True)
            longest = 0.0

    for target in (watch, answer):
        threading.Thread(target=target, daemon=True).start()
    from copyahead.cli import main

    sys.argv = ["copyahead", "serve", *arguments]
    main()


def measure(url: str, server: subprocess.Popen[str], name: str) -> list[dict[str, object]]:
    """One row for each body."""
    rows: list[dict[str, object]] = []
    headers = {"content-type": "application/json"}
    for path, body in bodies(name):
        _stall(server)
        began = time.monotonic()
        status = httpx.post(url + path, content=body, headers=headers, timeout=60).status_code
        seconds = time.monotonic() - began
        row = {"attack": name, "path": path, "bytes": len(body), "status": status}
        rows.append({**row, "stall_ms": round(_stall(server), 1), "seconds": round(seconds, 2)})
        print(
            "{attack} {path} {bytes} B: {status}, stall {stall_ms} ms, {seconds} s  ".format(
                **rows[-1]
            ),
            repr(body[:60]),
            flush=True,
        )
    return rows


def _stall(server: subprocess.Popen[str]) -> float:
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    return float(server.stdout.readline())


def main() -> int:
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attack", nargs="+", choices=_KINDS, default=list(_KINDS))
    parser.add_argument("--port", type=int, default=18081)
    parser.add_argument("--watched", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("serve", nargs="*", help="arguments of `copyahead serve`, after `--`")
    given = parser.parse_args()
    if given.watched:
        watched_server(given.serve)
        return 0
    arguments = ["--port", str(given.port), "--no-request-log", *given.serve]
    command = [sys.executable, __file__, "--watched", "--", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        try:
            url = f"http://127.0.0.1:{given.port}"
            wait_until_up(url, server)
            rows = [row for name in given.attack for row in measure(url, server, name)]
        finally:
            server.terminate()
    print(json.dumps({"stalls": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
