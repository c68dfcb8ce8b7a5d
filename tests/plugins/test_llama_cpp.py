"""The draft model for llama-cpp-python's high-level class, on the bundled model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

llama_cpp = pytest.importorskip("llama_cpp")

from copyahead.evaluate.workloads import COMMANDS  # noqa: E402
from copyahead.plugins.llama_cpp import LookupDraftModel  # noqa: E402

_LINES = "\n".join(f"{n}. {line}" for n, line in enumerate(COMMANDS[:8], start=1))
PROMPT = f"Commands:\n{_LINES}\n\nCommands:\n{_LINES}\n\nCommands:\n1. {COMMANDS[0]}\n2."
PAGE = Path(__file__).parents[2] / "docs" / "llama-cpp-python.md"


def made(model: Path, draft_model: Any = None) -> Any:
    """The class, with settings under which a row comes out the same in any pass."""
    return llama_cpp.Llama(
        model_path=str(model), n_ctx=512, n_threads=1, n_threads_batch=1, flash_attn=True,
        type_k=llama_cpp.GGML_TYPE_Q8_0, type_v=llama_cpp.GGML_TYPE_Q8_0, draft_model=draft_model,
        verbose=False,
    )  # fmt: skip


class Counted(LookupDraftModel):
    """Counts calls, which are passes, and drafted tokens."""

    calls = drafted = 0

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        found = super().__call__(input_ids, **kwargs)
        self.calls += 1
        self.drafted += len(found)
        return found


@pytest.fixture(scope="module")
def pair(bundled: Path) -> Iterator[tuple[Any, Any]]:
    """The model without drafts and with them."""
    first, second = made(bundled), made(bundled, Counted(max_draft_tokens=12))
    yield first, second
    first.close()
    second.close()


@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_in_fewer_passes(pair: Any, temperature: float) -> None:
    texts, counted = [], pair[1].draft_model
    before = counted.calls
    for llm in pair:
        answer = llm(PROMPT, max_tokens=40, temperature=temperature, seed=4)
        texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert counted.drafted > 0
    assert counted.calls - before < 30


def test_an_empty_draft_is_an_empty_array_of_ids() -> None:
    found = LookupDraftModel()(np.array([5, 6, 7], dtype=np.intc))
    assert (found.dtype, found.shape) == (np.dtype(np.intc), (0,))


@pytest.mark.model
def test_the_example_of_the_page_runs(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(example.replace('"model.gguf"', repr(str(bundled))), {})
    assert len(capsys.readouterr().out) > 10
