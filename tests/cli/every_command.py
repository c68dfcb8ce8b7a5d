"""Runs every command as its own process would, over a toy: `python -m tests.cli.every_command OUT`.

Writes the exit status of each to the file OUT, as JSON. The commands get whatever streams it has.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from copyahead import loading
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.backends.probe import search
from copyahead.cli import main
from copyahead.types import Exactness
from tests.cli import toys

# The toy answers "é" and other characters that ASCII lacks.
PROMPT = "Größe, café, 東京. " * 4
TRACE = {"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "é é é"}]}
LOG = (
    "request id=é route=chat tenant=- finish=stop read=8 cached=6 written=12 queue_ms=0.2 "
    "first_token_ms=3.4 total_ms=9.0 tok_s=101.1 rounds=3 drafted=10 accepted=8 policy=é\n"
)
COMMANDS = {
    "generate": ["generate", "--prompt", PROMPT],
    "generate --json": ["generate", "--prompt", PROMPT, "--json"],
    "generate --file -": ["generate", "--file", "-"],
    "compare": ["compare", "--workload", "short", "--max-tokens", "9"],
    "demo": ["demo", "--policy", "fixed"],
    "probe": ["probe"],
    "probe --json": ["probe", "--json"],
    "policies": ["policies"],
    "warmup": ["warmup"],
    "serve": ["serve", "--port", "70000"],
    "help": ["--help"],
    "version": ["--version"],
    "wrong": ["generate", "--ctx", "é"],
}


def load(*_: object, lookup: Any = None, **__: object) -> Any:
    backend = toys.backend(prompt=PROMPT)
    backend.model.script = tuple(toys.BYTES.encode(PROMPT))
    return loading.make_engine(backend, lookup=lookup)


def probed(*_: object, **__: object) -> search.ProbeResult:
    return search.ProbeResult(
        settings=LlamaSettings(),
        exactness=Exactness(level="exact", rows=64, max_abs_diff=0.0, batched=True),
        step_seconds={1: 0.01, 2: 0.011},
        spread=0.5,
        any_threads=True,
        prefix=9,
        seconds=1.0,
        library="",
        fingerprint="",
        capabilities=toys.backend().capabilities,
    )


def run_all(commands: dict[str, list[str]]) -> dict[str, int]:
    """The exit status of each, run in a fork of this process."""
    found = {}
    for name, arguments in commands.items():
        child = os.fork()
        if child == 0:
            sys.argv = ["copyahead", *arguments]
            main()
        _, status = os.waitpid(child, 0)
        found[name] = os.waitstatus_to_exitcode(status)
    return found


if __name__ == "__main__":
    out = Path(sys.argv[1])
    trace = out.with_name("é.jsonl")
    trace.write_text(json.dumps(TRACE))
    log = out.with_name("é.log")
    log.write_text(LOG)
    with (
        mock.patch.object(loading, "load", load),
        mock.patch.object(search, "find_settings", probed),
    ):
        replay = ["replay", str(trace), "--policy", "single", "--jobs", "1"]
        logs = ["logs", str(log)]
        statuses = run_all({**COMMANDS, "replay": replay, "logs": logs})
    out.write_text(json.dumps(statuses))
