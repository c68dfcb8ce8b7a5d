"""Known faults: answers under a grammar (rows 17-19, 76-78), with the real llguidance."""

from __future__ import annotations

import json
import logging
import random
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from copyahead.engine import Engine, Request
from copyahead.errors import RequestError
from copyahead.grammar.compiler import Grammar, GrammarCompiler
from copyahead.grammar.state import GrammarState
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ForcedDrafter, Plan, ToyLM, ToyTokenizer
from copyahead.types import Draft, FinishReason, Source
from tests.engine.cases.models import RowLM, favourites, lookup_engine
from tests.toys import plain, run, same

pytest.importorskip("llguidance")

MERGED = [b'{"', b'":', b'"}', b", ", b"true", b"false", b'": "', b"name", b'["', b"  ", b"}}"]
TABLE = [b"", *(bytes([byte]) for byte in [9, 10, *range(32, 127)]), *MERGED]
TEXT = ToyTokenizer(TABLE)
SIZE = len(TABLE)
SPACE = TABLE.index(b" ")
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "maxItems": 3},
        },
        "required": ["name", "ok", "tags"],
        "additionalProperties": False,
    }
)


def text_backend(seed: int = 0, **options: Any) -> FakeBackend:
    options = {"context_size": 600, "num_slots": 2} | options
    return FakeBackend(ToyLM(seed=seed, vocab_size=SIZE), tokenizer=TEXT, **options)


COMPILER = GrammarCompiler(TEXT, SIZE)


def fed(grammar: str, tokens: Sequence[int] = ()) -> GrammarState:
    """A new state that has taken `tokens`."""
    state = COMPILER.compile(Grammar("grammar", grammar))
    for token in tokens:
        state.accept(token)
    return state


def legal(state: GrammarState) -> list[int]:
    if state.complete:
        return []
    row = np.zeros(SIZE, dtype=np.float32)
    state.mask(row)
    return [int(token) for token in np.flatnonzero(row == 0)]


def is_person(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "ok", "tags"} and isinstance(value["ok"], bool)


BAD_TEXT = '"age": 99, <b>no JSON</b> "name" : null, [[ {"ok": "maybe"} ]]\n'


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("policy", ["fixed:num_draft_tokens=6,shortest_key=1", "single"])
def test_case_17_lookups_that_break_the_schema(
    seed: int, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = TEXT.encode(BAD_TEXT * 3)
    request = Request(
        prompt=prompt,
        json_schema=PERSON,
        sampling=SamplingOptions(temperature=0.8, seed=seed),
    )
    free = Request(prompt=prompt, sampling=SamplingOptions(temperature=0.8, seed=9), max_tokens=60)
    expected = plain(text_backend(seed), request)
    assert expected.choices[0].finish_reason is FinishReason.STOP
    assert is_person(expected.text)
    with caplog.at_level(logging.WARNING), lookup_engine(text_backend(seed), policy) as engine:
        got, neighbour = engine.complete_all([request, free])
    assert same(got, expected)
    assert same(neighbour, plain(text_backend(seed), free))
    assert not caplog.records


@pytest.mark.parametrize("noise", range(6))
def test_case_17_any_draft_leaves_constrained_text_as_it_is(noise: int) -> None:
    request = Request(
        prompt=[SPACE], json_schema=PERSON, sampling=SamplingOptions(temperature=1.0, seed=noise)
    )
    expected = plain(text_backend(noise), request)
    answer = expected.choices[0].tokens
    chance = random.Random(noise)
    rounds: list[int] = []

    def plan(history: tuple[int, ...]) -> list[int]:
        # Right for a while, then anything: legal, illegal, or no token at all.
        right = answer[len(history) - 1 :][: chance.randrange(6)]
        rounds.append(len(right))
        return [*right, *(chance.randrange(-1, SIZE + 2) for _ in range(chance.randrange(4)))]

    got = run(text_backend(noise), [request], plan)[0]
    assert same(got, expected)
    assert any(rounds)
    assert got.stats.drafter_faults == 0
    if len(answer) > 20:
        assert got.stats.num_accepted_tokens > 0


def test_case_17_forced_tokens_are_drafted_only_where_drafting_is_on() -> None:
    request = Request(prompt=[SPACE], grammar='start: "name: true, false" /[a-z]/')
    backend = text_backend()
    expected = plain(backend, request)
    assert expected.stats.num_draft_tokens == 0, "an engine without lookup drafts nothing"
    with lookup_engine(text_backend()) as engine:
        got = engine.complete(request)
        off = engine.complete(Request(prompt=[SPACE], grammar=request.grammar, max_draft_tokens=0))
    assert same(got, expected)
    assert same(off, expected)
    assert off.stats.num_draft_tokens == 0
    assert got.stats.by_source[Source.GRAMMAR].num_draft_tokens > 0


SPLIT_GRAMMAR = 'start: item (", " item)*\nitem: "true" | "false" | /[a-c]{1,3}/ | "{" item "}"'


def legal_walk(state: GrammarState, chance: random.Random, length: int) -> list[int]:
    walk: list[int] = []
    while len(walk) < length and (choices := [t for t in legal(state) if t]):
        walk.append(chance.choice(choices))
        state.accept(walk[-1])
    return walk


@pytest.mark.parametrize("trial", range(40))
def test_case_18_looking_at_a_draft_leaves_no_trace_in_the_grammar(trial: int) -> None:
    chance = random.Random(trial)
    taken: list[int] = []
    state = fed(SPLIT_GRAMMAR)
    while len(taken) < 12 and not state.complete:
        before = legal(state)
        walk = legal_walk(fed(SPLIT_GRAMMAR, taken), chance, chance.randrange(6))
        wrong = [TEXT.encode("Q")[0]] * chance.randrange(4)
        kept = state.cut(Draft(tokens=(*walk, *wrong), source=Source.OUTPUT))
        assert kept.tokens == tuple(walk), "a draft is cut at its first illegal token"
        state.forced(8)
        assert legal(state) == before
        for token in kept.tokens[: chance.randrange(len(kept) + 1)]:
            state.accept(token)
            taken.append(token)
        assert legal(state) == legal(fed(SPLIT_GRAMMAR, taken))
        if not walk:
            break


ENDS = [
    # grammar, the model's own script, what is written, with which end
    ('start: "ab"', "abcabc", "ab", False),
    ('start: "a" "b"?', "abcabc", "ab", False),
    ('start: "{" /[a-z]/ "}"', "{x}{x}", "{x}", False),
    ('start: "a" "b"*', "ab", "ab", True),
]


@pytest.mark.parametrize(("grammar", "wants", "text", "by_eos"), ENDS)
@pytest.mark.parametrize("size", range(8))
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_case_19_a_grammar_that_ends_inside_a_block(
    grammar: str, wants: str, text: str, by_eos: bool, size: int, ignore_eos: bool
) -> None:
    script = [*TEXT.encode(wants), 0, *TEXT.encode("abab")]

    def backend() -> FakeBackend:
        model = ToyLM(script=script, vocab_size=SIZE)
        return FakeBackend(model, tokenizer=TEXT)

    request = Request(prompt=[SPACE], grammar=grammar, ignore_eos=ignore_eos)
    drafter = ForcedDrafter(lambda h: [SPACE, *script][len(h) : len(h) + size])
    got = Engine(backend(), make_drafter=drafter).complete(request)
    choice = got.choices[0]
    assert (choice.text, choice.finish_reason) == (text, FinishReason.STOP)
    assert choice.tokens == [*TEXT.encode(text), *([0] if by_eos else [])]
    assert same(got, plain(backend(), request))
    assert drafter.sessions[0].history == [SPACE, *choice.tokens]


@pytest.mark.parametrize("grammar", ['start: "a" "true"?', 'start: "a" /[ ]*/'])
def test_case_19_a_model_without_an_end_token(grammar: str) -> None:
    # The last id must not be taken for an end token, nor written as one.
    tokenizer = ToyTokenizer([b"a", b" ", b"b", b"true"], end_tokens=())
    model = RowLM(lambda _: [3.0, 2.0, 1.0, 4.0], 4)
    request = Request(prompt=[2], grammar=grammar, max_tokens=5)
    got = plain(FakeBackend(model, tokenizer=tokenizer), request).choices[0]
    assert got.text == ("atrue" if "true" in grammar else "a    ")
    expected = FinishReason.STOP if "true" in grammar else FinishReason.LENGTH
    assert got.finish_reason is expected


@pytest.mark.parametrize("size", [0, 8])
def test_case_76_a_model_that_loves_spaces_still_closes_its_json(size: int) -> None:
    # Spaces whenever they are legal, else the end, else whatever comes.
    row = favourites({SPACE: 9.0, TABLE.index(b"  "): 10.0, TABLE.index(b"\n"): 8.0, 0: 7.0}, SIZE)
    row[TABLE.index(b'"')] = 6.0
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}, "n": {"enum": ["x"]}},
            "required": ["ok", "n"],
            "additionalProperties": False,
        }
    )
    backend = FakeBackend(RowLM(lambda _: row, SIZE), tokenizer=TEXT, context_size=1200)
    spaces: Plan = lambda _history: [TABLE.index(b"  ")] * size  # noqa: E731
    got = run(backend, [Request(prompt=[SPACE], json_schema=schema)], spaces)[0]
    assert got.choices[0].finish_reason is FinishReason.STOP
    assert json.loads(got.text) == {"ok": json.loads(got.text)["ok"], "n": "x"}
    longest = max(len(gap) for gap in re.findall(r"\s+", got.text))
    assert longest == 32, "each gap is filled up to the bound, and no further"


def test_case_76_endless_text_ends_with_length() -> None:
    schema = json.dumps({"type": "string"})
    row = favourites({SPACE: 9.0}, SIZE)
    backend = FakeBackend(RowLM(lambda _: row, SIZE), tokenizer=TEXT, context_size=100)
    choice = plain(backend, Request(prompt=[SPACE], json_schema=schema)).choices[0]
    assert choice.finish_reason is FinishReason.LENGTH
    assert len(choice.tokens) == 99


def test_case_77_many_schema_requests_with_bad_drafts(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(3)
    wanted = [
        Request(
            prompt=[SPACE, 1 + place % 5],
            json_schema=PERSON if place % 3 else json.dumps({"enum": [place, "x", None]}),
            sampling=SamplingOptions(temperature=1.0, seed=place),
        )
        for place in range(32)
    ]

    def bad(history: tuple[int, ...]) -> list[int]:
        return [chance.randrange(SIZE) for _ in range(chance.randrange(9))]

    options = {"num_slots": 32, "context_size": 256, "num_cells": 2500, "max_rows": 96}
    with caplog.at_level(logging.WARNING):
        got = run(text_backend(5, **options), wanted, bad)
    assert not caplog.records
    for request, completion in zip(wanted, got, strict=True):
        assert same(completion, plain(text_backend(5, context_size=256), request))
        choice = completion.choices[0]
        assert choice.error is None
        if choice.finish_reason is FinishReason.STOP:
            json.loads(choice.text)


BAD_GRAMMARS: list[tuple[str, Any]] = [
    ("grammar", ""),
    ("grammar", "start: ((("),
    ("grammar", "start: /[a/"),
    ("grammar", "start: nothing"),
    ("grammar", 'begin: "a"'),
    ("grammar", 7),
    ("json_schema", ""),
    ("json_schema", "{not json"),
    ("json_schema", '{"type": "no such type"}'),
    ("json_schema", '{"type": "string", "pattern": "[a"}'),
    ("json_schema", '{"$ref": "#/nowhere"}'),
    ("json_schema", '{"type": "array", "uniqueItems": true, "contains": {"type": "null"}}'),
    ("json_schema", "[" * 5000),
    ("json_schema", "7"),
    ("json_schema", {"type": "object"}),
]


@pytest.mark.parametrize(("field", "value"), BAD_GRAMMARS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("n", [1, 3])
def test_case_78_a_grammar_that_does_not_compile_is_refused(field: str, value: Any, n: int) -> None:
    backend = text_backend()
    with lookup_engine(backend) as engine:
        options: Any = {field: value}
        with pytest.raises(RequestError, match=field) as caught:
            engine.submit(Request(prompt=[SPACE], n=n, **options), lambda _: None)
        assert caught.value.field == field
        assert backend.num_passes == backend.num_samplers == engine.num_active == 0
        assert engine.complete(Request(prompt=[SPACE], max_tokens=3)).choices[0].error is None


def test_case_78_both_constraints_exclude_each_other() -> None:
    with lookup_engine(text_backend()) as engine, pytest.raises(RequestError) as caught:
        engine.complete(Request(prompt=[SPACE], grammar='start: "a"', json_schema="{}"))
    assert caught.value.field == "grammar"


DEAD_ENDS: list[tuple[str, dict[int, float]]] = [
    # The tokenizer has nothing for "z".
    ('start: "ab" "z"', {}),
    ('start: "ab" /[z]+/', {}),
    # The only token that the grammar allows is barred.
    ('start: "ab" "c"', {3: -100.0}),
]


@pytest.mark.parametrize(("grammar", "bias"), DEAD_ENDS)
@pytest.mark.parametrize("size", range(5))
def test_case_78_a_dead_end_fails_one_request_and_no_more(
    grammar: str, bias: dict[int, float], size: int
) -> None:
    tokenizer = ToyTokenizer([b"", b"a", b"b", b"c", b"d"])
    stuck = Request(prompt=[4], grammar=grammar, sampling=SamplingOptions(logit_bias=bias))
    free = Request(prompt=[4, 1], max_tokens=12)

    def backend() -> FakeBackend:
        return FakeBackend(ToyLM(seed=3, vocab_size=5), tokenizer=tokenizer)

    def plan(history: tuple[int, ...]) -> list[int]:
        return [4, 1, 2, 3, 3][len(history) : len(history) + size]

    got = run(backend(), [stuck, free, stuck], plan)
    for failed in (got[0], got[2]):
        choice = failed.choices[0]
        assert choice.finish_reason is FinishReason.ERROR
        assert choice.error
        assert "\n" not in choice.error
        assert "Traceback" not in choice.error
        assert choice.tokens == plain(backend(), stuck).choices[0].tokens
        assert failed.stats.num_output_tokens == len(choice.tokens)
    assert same(got[1], plain(backend(), free))
