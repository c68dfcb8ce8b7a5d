"""Starting the server of a soak, as the program that users start."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx

_STOP_SECONDS = 60


@contextmanager
def served(
    port: int,
    arguments: Sequence[str] = (),
    *,
    num_files: int | None = None,
    python_path: Path | None = None,
) -> Iterator[tuple[str, int]]:
    """`copyahead serve` on `port`: its address and the id of its process.

    `num_files`: how many files it may open. `python_path`: the folder of the package, where it is
    another than the installed one. RuntimeError when it does not come up.
    """
    command = [sys.executable, "-c", "from copyahead.cli import main; main()", "serve"]
    command += ["--port", str(port), "--no-request-log", *arguments]
    narrow = None if num_files is None else partial(_narrow, num_files)
    environment = dict(os.environ)
    if python_path is not None:
        environment["PYTHONPATH"] = str(python_path.resolve())
    process = subprocess.Popen(command, preexec_fn=narrow, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(url, process)
        yield url, process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _narrow(num_files: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, num_files))


def wait_until_up(url: str, process: subprocess.Popen[Any] | None) -> None:
    """Until `/health` answers; RuntimeError when the server ends before it does."""
    for _ in range(1200):
        if process is not None and process.poll() is not None:
            raise RuntimeError("the server has ended")
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    raise RuntimeError("the server does not come up")
