"""The commands, given the folder of a transformers model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-transformers")
pytest.importorskip("transformers", reason="needs transformers: make test-transformers")

from copyahead.chat.template.template import ChatTemplate
from copyahead.cli import run
from copyahead.engine import Request
from copyahead.loading import load
from copyahead.sampling import SamplingOptions
from tests.backends.transformers.models import CHAT_TEMPLATE, make_model, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make_model("qwen3").float(), tmp_path_factory.mktemp("models") / "tiny-0.1B")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPYAHEAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("COPYAHEAD_THREADS", "1")
        patch.setenv("COPYAHEAD_DEVICE", "cpu")
        yield
    torch.set_num_threads(before)


def test_generate(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", str(folder), "--max-tokens", "12", "--ignore-eos", "--json"]
    written = []
    for more in ([], ["--no-lookup"]):
        assert run([*arguments, "--prompt", "The list of files: main.py", *more]) == 0
        written.append(json.loads(capfd.readouterr().out))
    assert written[0]["tokens"] == written[1]["tokens"]
    assert written[0]["settings"]["dtype"] == "float32"
    assert run([*arguments, "--chat", "--prompt", "The list"]) == 0
    assert len(json.loads(capfd.readouterr().out)["tokens"]) == 12


def test_compare_and_probe(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    workload = ["--workload", "prose", "--max-tokens", "16"]
    assert run(["compare", str(folder), *workload, "--exact", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["exactness"]["level"] == "exact"
    assert found["results"][0]["identical"]
    assert run(["probe", str(folder), "--exact"]) == 0
    shown = capfd.readouterr().out
    assert "settings: float32, attention row by row, calls of " in shown
    assert "exactness: exact up to " in shown


def test_chat_and_grammar(folder: Path) -> None:
    with load(folder) as engine:
        template = ChatTemplate.from_backend(engine.backend)
        assert template.source == CHAT_TEMPLATE
        assert template.controls.find("a<|im_end|>b") != []
        template.close()
        prompt = engine.backend.tokenizer.encode("The list")
        schema = '{"enum": ["main.py", "engine.py"]}'
        for sampling in (SamplingOptions(), SamplingOptions(temperature=1.0, seed=3)):
            request = Request(prompt=prompt, json_schema=schema, sampling=sampling, max_tokens=40)
            assert json.loads(engine.complete(request).text) in ("main.py", "engine.py")


def test_what_is_no_model_is_said_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", str(tmp_path), "--prompt", "a"]) == 2
    assert "is a directory without config.json" in capfd.readouterr().err
    (tmp_path / "config.json").write_text('{"model_type": "perpetuum"}')
    assert run(["generate", str(tmp_path), "--prompt", "a"]) == 2
    shown = capfd.readouterr().err
    assert "transformers cannot load" in shown
    assert "Traceback" not in shown
    assert run(["generate", str(tmp_path), "--prompt", "a", "--kv-type", "bf16"]) == 2
    assert "--kv-type is for GGUF files" in capfd.readouterr().err
