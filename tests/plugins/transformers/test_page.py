"""The examples of docs/transformers-generate.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.plugins.transformers.models import VOCAB, model_of  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "transformers-generate.md"


class Letters(dict[str, Any]):
    """A tokenizer for the page: each letter a token."""

    def __call__(self, text: str, return_tensors: str) -> Any:
        return {"input_ids": torch.tensor([[4 + ord(letter) % (VOCAB - 4) for letter in text]])}

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids.tolist()))


def test_the_examples_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of("Llama")
    names: dict[str, Any] = {"model": model, "tokenizer": Letters()}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(examples) == 2
    try:
        exec(examples[0], names)
        first = names["output"]
        exec(examples[1], names)
    finally:
        vars(model).pop("_get_candidate_generator", None)
    assert torch.equal(first, names["output"])
    assert len(capsys.readouterr().out.split()) > 40
