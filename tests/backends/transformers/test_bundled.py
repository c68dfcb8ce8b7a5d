"""The bundled model as a folder of transformers: every workload of `compare`, and the server."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-transformers")
pytest.importorskip("transformers", reason="needs transformers: make test-transformers")
pytest.importorskip("gguf", reason="needs gguf: make test-transformers")

from copyahead.backends.llama_cpp.gguf import BUNDLED_PACKAGE, bundled_model
from copyahead.backends.transformers.tokenizer import FolderTokenizer
from copyahead.cli import run
from copyahead.evaluate.workloads import WORKLOADS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled file, as transformers reads it, written as hubs keep models."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    metadata.distribution(BUNDLED_PACKAGE)
    file, made = bundled_model(), tmp_path_factory.mktemp("folder") / "smollm2"
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(made)
    return made


def test_the_tokenizer_is_that_of_the_file(folder: Path) -> None:
    from copyahead.backends.llama_cpp.tokenizer import load_vocabulary

    of_file, of_folder = load_vocabulary(bundled_model()), FolderTokenizer(folder)
    text = Path(str(threading.__file__)).read_text(encoding="utf-8") + " naïve 漢字 🙂"
    for special in (True, False):
        tokens = of_folder.encode(text, special=special)
        assert tokens == of_file.encode(text, special=special)
    for token in range(of_file.vocab_size):
        assert of_folder.token_bytes(token) == of_file.token_bytes(token), token
    # llama.cpp knows further marks, such as those of a repository's name.
    assert {0, 2} == of_folder.end_tokens < of_file.end_tokens
    of_file.close()


def test_every_workload_is_the_same_in_float32(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(folder), "--dtype", "float32", "--device", "cpu", "--json"]
    assert run([*arguments, "--max-tokens", "48"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert [result["workload"] for result in found["results"]] == list(WORKLOADS)
    for result in found["results"]:
        assert result["identical"], result
    assert sum(result["num_accepted_tokens"] for result in found["results"]) > 0


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """Where a server over the folder listens."""
    command = [sys.executable, "-m", "copyahead", "serve", str(folder), "--port", "0"]
    server = subprocess.Popen(
        [*command, "--parallel", "2", "--ctx", "2048"], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    line = next(line for line in server.stderr if line.startswith("address: "))
    threading.Thread(target=server.stderr.read, daemon=True).start()
    yield line.split()[1]
    server.terminate()
    assert server.wait(60) == 0


def test_the_openai_client_is_answered(address: str) -> None:
    import openai

    tool: Any = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                "required": ["city"],
            },
        },
    }
    schema: Any = {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "schema": {
                "type": "object",
                "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}},
                "required": ["n"],
                "additionalProperties": False,
            },
        },
    }
    ask: Any = [{"role": "user", "content": "Is it warm in Rome?"}]
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", timeout=300) as client:
        (model,) = client.models.list().data
        assert model.id == "smollm2"
        options: Any = {"model": model.id, "messages": ask, "max_tokens": 300}
        answer = client.chat.completions.create(**options, temperature=0)
        assert answer.choices[0].message.content
        streamed = client.chat.completions.create(**options, temperature=0, stream=True)
        pieces = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
        assert "".join(pieces) == answer.choices[0].message.content
        called = client.chat.completions.create(
            **options, tools=[tool], tool_choice="required", temperature=0
        )
        calls: Any = called.choices[0].message.tool_calls
        (call,) = calls
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
        seeded = [
            client.chat.completions.create(
                **options, response_format=schema, temperature=1.0, seed=7
            ).choices[0]
            for _ in range(2)
        ]
        assert json.loads(seeded[0].message.content or "")["n"] in range(10)
        assert seeded[0].message.content == seeded[1].message.content
