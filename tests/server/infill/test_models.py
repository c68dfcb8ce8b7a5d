"""Code completion over real files: a tiny GGUF that can fill gaps, and the bundled model, which
cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")

import copyahead
from copyahead.backends.llama_cpp.tokenizer import load_vocabulary
from copyahead.contracts import FimTokens
from copyahead.engine.async_engine import AsyncEngine
from copyahead.server.infill.gap import Gap, GapWriter
from copyahead.server.service import ServerOptions, Service
from tests.server.toys import serving, serving_model, toy_template
from tests.tiny_models import FIM, REAL_VOCAB, write_plain

SPELLED = [f"<|fim_{name}|>" for name in FIM]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gaps") / "gaps.gguf"
    write_plain(path, fills_gaps=True)
    return path


@pytest.fixture(scope="module")
def url(path: Path) -> Iterator[str]:
    engine = copyahead.load(path, model=copyahead.ModelOptions(ctx=512, threads=1))
    service = Service(AsyncEngine(engine), ServerOptions(), toy_template())
    with serving(service) as (url, _):
        yield url


def test_the_tokens_are_those_that_the_file_names(path: Path) -> None:
    vocabulary = load_vocabulary(path)
    try:
        first = REAL_VOCAB
        assert vocabulary.fim == FimTokens(
            prefix=first,
            suffix=first + 1,
            middle=first + 2,
            repository=first + 3,
            separator=first + 4,
            padding=first + 5,
        )
        assert vocabulary.vocab_size == REAL_VOCAB + len(FIM)
        # llama.cpp ends an answer there itself.
        assert vocabulary.fim.ends <= vocabulary.end_tokens
    finally:
        vocabulary.close()


def test_spelled_control_tokens_are_letters(path: Path) -> None:
    vocabulary = load_vocabulary(path)
    try:
        assert vocabulary.fim is not None
        text = "the fox " + " ".join(SPELLED) + "<s></s>"
        gap = Gap(before=text, behind=text, files=[(text, text)])
        writer = GapWriter(vocabulary, vocabulary.fim, token_bytes=8)
        tokens = writer.prompt(gap, 5000).tokens
        control = [token for token in tokens if not vocabulary.token_bytes(token)]
        fim = vocabulary.fim
        assert control == [
            1, fim.repository, fim.separator, fim.separator, fim.prefix, fim.suffix, fim.middle,
        ]  # fmt: skip
    finally:
        vocabulary.close()


def test_a_gap_is_filled_whole_and_as_a_stream(url: str) -> None:
    body = {
        "input_prefix": "the fox is in the ", "input_suffix": " and the dog is on it",
        "input_extra": [{"filename": "a", "text": "the dog"}], "n_predict": 24, "temperature": 0,
    }  # fmt: skip
    whole = httpx.post(f"{url}/infill", json=body, timeout=60).json()
    assert 0 < whole["tokens_predicted"] <= 24
    streamed = httpx.post(f"{url}/infill", json={**body, "stream": True}, timeout=60).text
    assert streamed.count('"stop":true') == 1
    again = httpx.post(f"{url}/infill", json=body, timeout=60).json()
    assert (again["content"], again["tokens"]) == (whole["content"], whole["tokens"])
    assert again["timings"]["cache_n"] == whole["tokens_evaluated"] - 1


def test_more_than_the_context_is_cut(url: str) -> None:
    body = {"input_prefix": "the fox " * 900, "input_suffix": "the dog " * 900, "n_predict": 8}
    answer = httpx.post(f"{url}/infill", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["truncated"] is True


@pytest.mark.model
def test_the_bundled_model_is_refused_by_name() -> None:
    engine = copyahead.load(None, model=copyahead.ModelOptions(ctx=512, threads=1))
    with serving_model(engine) as url:
        answer = httpx.post(f"{url}/infill", json={"input_prefix": "a", "input_suffix": "b"})
        suffixed = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "suffix": "b"})
    assert (answer.status_code, suffixed.status_code) == (501, 400)
    assert "was not taught to fill gaps" in answer.json()["error"]["message"]
    assert suffixed.json()["error"]["param"] == "suffix"
