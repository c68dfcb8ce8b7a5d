"""lm-eval's own client scores answers of the real model: `make test-lm-eval` installs it apart."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import copyahead
from copyahead.contracts import Part
from tests.server.toys import serving_model

PROGRAM = Path(__file__).parents[2] / ".venv-lm-eval" / "bin" / "lm_eval"
QUESTIONS = (
    ("The colour of fresh grass is", (" green", " purple"), 0),
    ("Fresh snow is", (" black", " white"), 1),
    ("The capital of France is the city of", (" Paris", " lamp posts"), 0),
    ("One, two, three, four,", (" giraffe, six", " five, six"), 1),
)
TASK = """\
task: made_up
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(not PROGRAM.exists(), reason="lm-eval is not there: make test-lm-eval"),
]


def likelihood(engine: copyahead.Engine, text: str, more: str) -> float:
    """The sum of log-probabilities of `more` after `text`, from the model's own rows."""
    backend, encode = engine.backend, engine.backend.tokenizer.encode
    first, rest = encode(text), encode(text + more)[len(encode(text)) :]
    backend.truncate(0, 0)
    part = Part(0, 0, [*first, *rest], len(rest) + 1)
    rows = backend.forward([part])[0].astype(np.float64)
    top = rows.max(axis=1, keepdims=True)
    logs = rows - top - np.log(np.exp(rows - top).sum(axis=1, keepdims=True))
    backend.truncate(0, 0)
    return float(sum(logs[place, token] for place, token in enumerate(rest)))


def test_a_task_is_scored_as_the_model_itself_does(tmp_path: Path) -> None:
    data, cache = tmp_path / "questions.jsonl", tmp_path / "cache"
    data.write_text(
        "".join(
            json.dumps({"question": question, "choices": choices, "answer": answer}) + "\n"
            for question, choices, answer in QUESTIONS
        )
    )
    (tmp_path / "made_up.yaml").write_text(TASK.format(data=data))
    engine = copyahead.load(None, model=copyahead.ModelOptions(ctx=512, threads=1))
    expected = [
        [likelihood(engine, q, choice) for choice in choices] for q, choices, _ in QUESTIONS
    ]
    with serving_model(engine) as url:
        model = f"model=any,base_url={url}/v1/completions,tokenizer_backend=remote,max_retries=1"
        done = subprocess.run(
            [
                *(str(PROGRAM), "run", "--model", "local-completions", "--model_args", model),
                *("--include_path", str(tmp_path), "--tasks", "made_up", "--log_samples"),
                *("--output_path", str(tmp_path / "out")),
            ],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    (samples,) = tmp_path.rglob("samples_made_up_*.jsonl")
    found = [json.loads(line) for line in samples.read_text().splitlines()]
    scores = [[float(answer[0]) for (answer,) in sample["resps"]] for sample in found]
    # Each is rounded for the wire.
    assert scores == [pytest.approx(row, abs=1e-3) for row in expected]
    right = [
        int(np.argmax(row)) == answer for row, (*_, answer) in zip(expected, QUESTIONS, strict=True)
    ]
    assert [sample["acc"] for sample in found] == right
