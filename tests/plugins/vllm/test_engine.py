"""vLLM itself, on the CPU: `make test-vllm` runs these in an environment of its own.

COPYAHEAD_TEST_VLLM names the folder of a model, and in it `draft`, a model of its first layers.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from copyahead.children.process import ChildProcess
from copyahead.evaluate.workloads import workload

MODEL = os.environ.get("COPYAHEAD_TEST_VLLM", "")
PAGE = (Path(__file__).parents[3] / "docs" / "vllm.md").read_text(encoding="utf-8")
ENGINE = {
    "model": MODEL,
    "dtype": "float32",
    "max_model_len": 1600,
    "max_num_seqs": 4,
    "enforce_eager": True,
}
WORKS = ("list", "json", "prose")
SECONDS = 900.0
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL, reason="needs vLLM and a model: make test-vllm"),
]


def config_of_the_page(method: str) -> dict[str, Any]:
    """The `--speculative-config` with this method that the page shows."""
    shown = re.findall(r"--speculative-config '({.*?})'", PAGE, re.S)
    found = [config for config in map(msgspec.json.decode, shown) if config["method"] == method]
    assert found
    config: dict[str, Any] = found[0]
    return config


class Engine:
    """An engine in a process of its own."""

    def __init__(self, config: dict[str, Any] | None, hook: bool, **more: Any) -> None:
        self._child = ChildProcess(["-m", "copyahead.plugins.vllm.measure"])
        arguments = {**ENGINE, **more}
        if config is not None:
            arguments["speculative_config"] = config
        environment = {**VARIABLES, "COPYAHEAD_VLLM_HOOK": "1" if hook else "0"}
        self._ask({"engine": arguments, "environment": environment})

    def run(self, names: Sequence[str], temperature: float) -> Any:
        sampling = {"temperature": temperature, "max_tokens": 32, "seed": 3}
        texts = [workload(name).prompt for name in names]
        return self._ask({"texts": texts, "sampling": sampling})

    def _ask(self, document: Any) -> Any:
        return msgspec.json.decode(self._child.ask(msgspec.json.encode(document) + b"\n", SECONDS))

    def close(self) -> None:
        self._child.end()


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    """Plain decoding, and `custom_class` with the hook."""
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(Engine, None, False)
        custom = pool.submit(Engine, config_of_the_page("custom_class"), True)
    made = plain.result(), custom.result()
    yield made
    for engine in made:
        engine.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_that_of_plain_decoding(
    engines: tuple[Engine, Engine], temperature: float
) -> None:
    plain, custom = engines
    for name in WORKS:
        assert custom.run([name], temperature)["tokens"] == plain.run([name], temperature)["tokens"]
    together = [custom.run(WORKS, temperature), plain.run(WORKS, temperature)]
    assert together[0]["tokens"] == together[1]["tokens"]


def test_copies_are_kept_and_counted_as_vllm_counts_them(engines: tuple[Engine, Engine]) -> None:
    _, custom = engines
    before = custom.run(["prose"], 0.0)["copied"]
    answered = custom.run(["json"], 0.0)
    after = answered["copied"]
    assert answered["num_accepted_tokens"] > 15
    ours = sum(after[source][1] - before[source][1] for source in after)
    assert ours == answered["num_accepted_tokens"]


def test_copies_beside_a_draft_model(engines: tuple[Engine, Engine]) -> None:
    plain, _ = engines
    config = config_of_the_page("draft_model") | {"model": str(Path(MODEL) / "draft")}
    beside = Engine(config, True, async_scheduling=False)
    try:
        for temperature in (0.0, 0.8):
            for name in ("json", "prose"):
                answered = beside.run([name], temperature)
                assert answered["tokens"] == plain.run([name], temperature)["tokens"]
        copied = answered["copied"]
        assert copied["prompt"][1] > 10
        assert copied["model"][0] > 0
    finally:
        beside.close()


def test_vllms_server_with_its_own_clients(tmp_path: Path) -> None:
    import openai

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = msgspec.json.encode(config_of_the_page("custom_class")).decode()
    options = ["--dtype", "float32", "--max-model-len", "1600", "--max-num-seqs", "4"]
    log = (tmp_path / "log").open("w+b")
    server = subprocess.Popen(
        # The CPU build has no metadata under the name that `vllm serve` asks for.
        [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL, *options,
         "--enforce-eager",
         "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "m",
         "--speculative-config", config],
        env={**os.environ, **VARIABLES, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        stdout=log, stderr=log, start_new_session=True,
    )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{base}/health", server, log)
        client = openai.OpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0)
        prompt = workload("json").prompt
        whole = client.completions.create(model="m", prompt=prompt, max_tokens=32, temperature=0)
        parts = client.completions.create(
            model="m", prompt=prompt, max_tokens=32, temperature=0, stream=True
        )
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
        time.sleep(1.1)  # Counters are passed on once a second, in a step.
        client.completions.create(model="m", prompt=prompt, max_tokens=4, temperature=0)
        client.close()
        metrics = urllib.request.urlopen(f"{base}/metrics", timeout=60).read().decode()
        (kept,) = re.findall(
            r'copyahead:accepted_tokens_by_source_total{source="prompt"} ([\d.]+)', metrics
        )
        assert float(kept) > 15
    finally:
        log.close()
        end(server)


def end(server: subprocess.Popen[bytes]) -> None:
    """With all the processes that it has started."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, sent)
        with suppress(subprocess.TimeoutExpired):
            server.wait(30)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Any) -> None:
    """Until the server answers."""
    for _ in range(int(SECONDS)):
        if server.poll() is not None:
            log.seek(0)
            pytest.fail(log.read().decode(errors="replace")[-3000:])
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            time.sleep(1)
        else:
            return
    pytest.fail("the server does not answer")
