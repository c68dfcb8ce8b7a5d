"""Many kinds of request together on the real model: each equals its plain run alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest

import copyahead
from copyahead.engine import Completion, Engine, Request
from copyahead.evaluate.workloads import workload
from copyahead.sampling import SamplingOptions
from tests.machine import THREADS

pytestmark = [pytest.mark.model, pytest.mark.slow]

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "berths": {"type": "integer"},
            "open": {"type": "boolean"},
        },
        "required": ["name", "berths", "open"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    options = copyahead.ModelOptions(ctx=2048, parallel=9, threads=THREADS, exact=True)
    with copyahead.load(None, model=options) as engine:
        yield engine


def requests(engine: Engine) -> dict[str, Request]:
    """Eight kinds, all sampled with a seed but the first."""

    def ask(text: str, **options: object) -> Request:
        tokens = engine.backend.tokenizer.encode(text)
        sampling = options.pop("sampling", SamplingOptions(temperature=0.8, seed=11))
        return Request(prompt=tokens, max_tokens=60, sampling=sampling, **options)  # type: ignore[arg-type]

    warm = SamplingOptions(temperature=0.8, seed=7)
    copy = workload("list").prompt
    return {
        "copy": ask(copy, sampling=SamplingOptions()),
        "prose": ask(workload("prose").prompt, ignore_eos=True),
        "schema": ask("A harbour as JSON:\n", json_schema=SCHEMA),
        "penalties": ask(
            copy,
            sampling=replace(
                warm, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2
            ),
        ),
        "bias": ask(copy, sampling=replace(warm, logit_bias={198: -100.0, 28: 2.0})),
        "stop": ask(copy, stop=("pytest", "make"), sampling=SamplingOptions()),
        "two answers": ask("The tide tables of the harbour say", n=2),
        "logprobs": ask(copy, logprobs=5, sampling=replace(warm, top_p=0.9, top_k=40, min_p=0.01)),
    }


def answers(completion: Completion) -> list[object]:
    return [
        (choice.tokens, choice.text, choice.finish_reason, choice.logprobs)
        for choice in completion.choices
    ]


def test_eight_kinds_together_equal_their_plain_runs_alone(engine: Engine) -> None:
    exactness = engine.backend.exactness
    assert exactness is not None
    assert exactness.level == "exact"
    assert exactness.batched
    wanted = requests(engine)
    together = engine.complete_all(list(wanted.values()))
    drafted = sum(completion.stats.num_accepted_tokens for completion in together)
    assert drafted > 20, "nothing was copied: the comparison would show little"
    for (name, request), got in zip(wanted.items(), together, strict=True):
        engine.reset()
        alone = engine.complete(msgspec.structs.replace(request, lookup=False))
        assert alone.stats.num_draft_tokens == 0
        assert answers(got) == answers(alone), name


def test_the_schema_is_followed(engine: Engine) -> None:
    text = engine.complete(requests(engine)["schema"]).text
    assert set(json.loads(text)) == {"name", "berths", "open"}


def test_a_second_turn_reads_only_its_new_tail(engine: Engine) -> None:
    engine.reset()
    tokenizer = engine.backend.tokenizer
    first = tokenizer.encode(workload("copy").prompt)
    turn = engine.complete(Request(prompt=first, max_tokens=40))
    answer = turn.choices[0].tokens
    second = [*first, *answer, *tokenizer.encode("\n\nAnd once more:\n\n", special=False)]
    again = engine.complete(Request(prompt=second, max_tokens=20))
    assert turn.stats.num_cached_tokens == 0
    assert len(first) + len(answer) - 1 <= again.stats.num_cached_tokens < len(second)
    engine.reset()
    fresh = engine.complete(Request(prompt=second, max_tokens=20, lookup=False))
    assert answers(again) == answers(fresh)
