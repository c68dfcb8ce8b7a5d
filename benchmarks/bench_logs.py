"""How long `copyahead logs` takes over a million lines, and how much memory.

Makes logs of each server in a temporary folder (policies, days, contexts and times drawn at
random), runs the command over each in a process of its own, and prints seconds, seconds of a CPU
and peak memory of that process. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

POLICIES = ("priced", "window", "hysteresis", "fixed:key=3,max_draft_tokens=8")


def own_lines(count: int) -> Iterator[str]:
    """As `copyahead serve` writes them, one in fifty of another kind."""
    draw = random.Random(1)
    for number in range(count):
        day = f"2026-{1 + number * 12 // count:02}-{1 + number % 28:02} 20:08:41,123"
        if number % 50 == 49:
            yield f"{day} INFO copyahead.server.service: refused status=400 code=x param=y"
            continue
        read, written = int(draw.lognormvariate(8.5, 1.3)), draw.randint(1, 900)
        drafted = draw.randint(0, 2 * written)
        yield (
            f"{day} INFO copyahead.server.service: request id=chatcmpl-{number:032x} route=chat "
            f"tenant={number % 7:016x} finish=stop read={read} cached={read // 2} "
            f"written={written} queue_ms={draw.random() * 9:.1f} "
            f"first_token_ms={draw.lognormvariate(6, 1):.1f} total_ms={draw.random() * 9000:.1f} "
            f"tok_s={draw.lognormvariate(4, 0.5):.1f} rounds={written // 2 + 1} "
            f"drafted={drafted} accepted={drafted // 3} prompts=1 policy={draw.choice(POLICIES)}"
        )


def llama_lines(count: int) -> Iterator[str]:
    """As llama.cpp's server writes them: eight lines a request."""
    draw = random.Random(1)
    for task in range(count // 8):
        clock = f"2026-05-{1 + task % 28:02} 11:04:29.854 | {task}.31.565.000 I slot "
        name = f"id {task % 4:2} | task {task} | "
        read, written = draw.randint(5, 20000), draw.randint(2, 900)
        yield f"{clock}get_availabl: {name}selected slot by LCP similarity, f_keep = 0.963"
        yield f"{clock}launch_slot_: {name}processing task, is_child = 0"
        for kind, size in (("prompt eval", read), ("       eval", written)):
            milliseconds = draw.lognormvariate(6, 1)
            yield (
                f"{clock}print_timing: {name}{kind} time = {milliseconds:10.2f} ms / {size:5} "
                f"tokens ({milliseconds / size:8.2f} ms per token, 192.17 tokens per second)"
            )
        yield f"{clock}print_timing: {name}      total time =    3634.48 ms /   668 tokens"
        yield f"{clock}print_timing: {name}   graphs reused =         23"
        yield (
            f"{clock}print_timing: {name}draft acceptance = 0.33333 ({written // 9:5} accepted / "
            f"{written // 3:5} generated), mean len = 3.00"
        )
        yield (
            f"{clock}     release: {name}stop processing: n_tokens = {read + written + 99}, "
            "truncated = 0"
        )


def run(path: Path, *options: str) -> tuple[float, float, float]:
    """Seconds, those of them on a CPU, and the peak of memory in MB, of one run of the command."""
    command = [sys.executable, "-m", "copyahead", "logs", str(path), "--json", *options]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the command failed with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    arguments = parser.parse_args()
    kinds: dict[str, Callable[[int], Iterator[str]]] = {
        "copyahead": own_lines,
        "llama-server": llama_lines,
    }
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in kinds.items():
            path, packed = Path(folder) / f"{name}.log", Path(folder) / f"{name}.log.gz"
            with path.open("w") as plain, gzip.open(packed, "wt", compresslevel=1) as file:
                for line in lines(arguments.lines):
                    plain.write(f"{line}\n")
                    file.write(f"{line}\n")
            by = ["--by", "policy", "--by", "day"]
            for title, each, options in (
                ("plain", path, []), ("gzip", packed, []), ("by policy and day", path, by),
            ):  # fmt: skip
                seconds, cpu, megabytes = run(each, *options)
                print(
                    f"{name:14} {title:18} {seconds:6.1f} s, {cpu:5.1f} s of a CPU, "
                    f"{megabytes:4.0f} MB",
                    flush=True,
                )
                figures = {"seconds": seconds, "cpu_seconds": cpu, "megabytes": megabytes}
                results.append({"log": name, "how": title, **figures})
    print(json.dumps({"lines": arguments.lines, "results": results}))


if __name__ == "__main__":
    main()
