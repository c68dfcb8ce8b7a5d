"""Known faults: how an answer ends when its end lies inside a block (rows 1-5, 71, 106)."""

from __future__ import annotations

import math

import pytest

from copyahead.engine import Completion, Engine, Request
from copyahead.sampling import SamplingOptions
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM, ToyTokenizer
from copyahead.types import FinishReason
from tests.engine.cases.models import choice_of, chunks_of, drafted_run, lookup_engine, repeating
from tests.toys import oracle, plain, run, same, scripted

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
A, B, C, SPACE, EN, D = 1, 2, 3, 4, 5, 6


def held_and_indexed(backend: FakeBackend, request: Request, draft: list[int]) -> list[list[int]]:
    """What the slot keeps, and what the drafter has learnt, when the request is done."""
    drafter = ForcedDrafter(oracle(request.prompt, draft, 12))
    engine = Engine(backend, make_drafter=drafter)
    engine.complete(request)
    return [backend.held[0], drafter.sessions[0].history]


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("ends", [(0,), (0, 16)])
@pytest.mark.parametrize("ignore", [False, True])
def test_case_01_eos_inside_a_draft(place: int, ends: tuple[int, ...], ignore: bool) -> None:
    body = [A, B, C, A, B, C, A, B]
    script = [*body[:place], ends[-1], *body[place:], 0]
    tokenizer = ToyTokenizer(end_tokens=ends)
    request = Request(prompt=[D], ignore_eos=ignore, max_tokens=len(script), logprobs=0)
    for length in range(10):
        got = drafted_run(
            scripted(*script, tokenizer=tokenizer), request, oracle([D], script, length)
        )
        assert same(got, plain(scripted(*script, tokenizer=tokenizer), request))
        choice = got.choices[0]
        expected = script if ignore else script[: place + 1]
        assert choice.tokens == expected
        assert choice.finish_reason is (LENGTH if ignore else STOP)
        assert got.stats.num_output_tokens == len(expected) == len(choice.logprobs)
        if not ignore:
            assert choice.text == "".join("_abc"[token] for token in body[:place])


@pytest.mark.parametrize("place", range(9))
def test_case_01_nothing_after_an_eos_is_cached_or_indexed(place: int) -> None:
    script = [A, B, C, A, B, C, A, B, C]
    script[place] = 0
    held, indexed = held_and_indexed(scripted(*script), Request(prompt=[D]), script)
    assert held == [D, *script[: place + 1]][: len(held)]
    assert len(held) >= 1 + place
    assert indexed == [D, *script[: place + 1]]


@pytest.mark.parametrize("before", range(10))
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 12])
def test_case_02_stop_string_anywhere_in_a_block(before: int, size: int) -> None:
    script = [A] * before + [EN, D] + [B] * (10 - before)
    request = Request(prompt=[C], stop=("END",))
    got = drafted_run(scripted(*script), request, oracle([C], script, size))
    assert same(got, plain(scripted(*script), request))
    choice = got.choices[0]
    assert (choice.text, choice.finish_reason) == ("a" * before, STOP)
    assert choice.tokens == script[: before + 2]


@pytest.mark.parametrize(
    ("script", "stop", "text"),
    [
        ([A, 7, B, B], ("END",), "ax "),
        ([7, A, B, B], ("ND ya",), "x E"),
        ([A, 7, B, B], ("ax END",), ""),
        ([A, B, C, A, B], ("ca", "bc"), "a"),
        ([A, B, C, A, B], ("ab", "abc"), ""),
        ([A, B, EN, A, EN, D], ("END",), "abENa"),
        ([A, EN, EN, D, B], ("END",), "aEN"),
    ],
)
def test_case_02_stop_strings_inside_tokens_and_two_at_once(
    script: list[int], stop: tuple[str, ...], text: str
) -> None:
    request = Request(prompt=[C], stop=stop)
    for size in range(8):
        got = drafted_run(scripted(*script), request, oracle([C], script, size))
        assert (got.text, got.choices[0].finish_reason) == (text, STOP)
        assert same(got, plain(scripted(*script), request))


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("kind", ["token", "text", "eos"])
def test_case_03_a_stop_and_the_length_limit_in_one_block(place: int, kind: str) -> None:
    limit = 5
    script = [A, B, A, B, A, B, A, B]
    script[place] = {"token": C, "text": C, "eos": 0}[kind]
    stops = {"token": {"stop_token_ids": (C,)}, "text": {"stop": ("c",)}, "eos": {}}[kind]
    request = Request(prompt=[D], max_tokens=limit, **stops)  # type: ignore[arg-type]
    for size in range(8):
        choice = drafted_run(scripted(*script), request, oracle([D], script, size)).choices[0]
        ends = place < limit
        assert choice.finish_reason is (STOP if ends else LENGTH)
        assert choice.tokens == script[: place + 1 if ends else limit]


@pytest.mark.parametrize("max_tokens", range(1, 21))
@pytest.mark.parametrize("size", [1, 3, 8, 60])
def test_case_04_and_05_exactly_max_tokens(max_tokens: int, size: int) -> None:
    script = [A, B, C] * 10
    request = Request(prompt=[D], max_tokens=max_tokens, logprobs=1)
    seen: list[int] = []

    def plan(history: tuple[int, ...]) -> list[int]:
        return [D, *script][len(history) : len(history) + size]

    drafter = ForcedDrafter(plan)
    engine = Engine(scripted(*script), make_drafter=drafter)
    got = engine.complete(request)
    choice = got.choices[0]
    assert choice.tokens == script[:max_tokens]
    assert choice.finish_reason is LENGTH
    assert got.stats.num_output_tokens == len(choice.logprobs) == max_tokens
    written = 1
    for draft, emitted in drafter.sessions[0].settled[1:]:
        seen.append(len(draft))
        assert len(draft) <= max_tokens - written - 1, "a draft past the budget"
        written += len(emitted)
    assert max_tokens <= 2 or max(seen) == min(size, max_tokens - 2)


@pytest.mark.parametrize("max_tokens", range(1, 11))
def test_case_04_copied_drafts_stay_inside_the_budget(max_tokens: int) -> None:
    request = Request(prompt=[A, B, C] * 6, max_tokens=max_tokens)

    def backend() -> FakeBackend:
        return scripted(*[A, B, C] * 9, num_prompt_tokens=18)

    with lookup_engine(backend(), "fixed:num_draft_tokens=8,longest_key=3") as engine:
        got = engine.complete(request)
    assert same(got, plain(backend(), request))
    assert len(got.choices[0].tokens) == max_tokens
    assert max_tokens <= 2 or got.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("size", [0, 4])
@pytest.mark.parametrize(
    ("script", "options", "tokens", "text", "reason"),
    [
        ([0, A, B], {}, [0], "", STOP),
        ([C, A, B], {"stop": ("c",)}, [C], "", STOP),
        ([C, A, B], {"stop_token_ids": (C,)}, [C], "", STOP),
        ([8, A, 0], {}, [8, A, 0], "{a", STOP),
        ([A, B, C], {"max_tokens": 0}, [], "", LENGTH),
        ([A, B, C], {"max_tokens": 1}, [A], "a", LENGTH),
        ([A, B, C], {"max_tokens": None}, [A, B, C, 0], "abc", STOP),
        ([A, B, C], {"max_tokens": 10**12}, [A, B, C, 0], "abc", STOP),
        ([A] * 300, {"max_tokens": None}, [A] * 63, "a" * 63, LENGTH),
        ([A] * 300, {"max_tokens": 10**12}, [A] * 63, "a" * 63, LENGTH),
    ],
)
def test_case_71_the_first_token_and_odd_limits(
    script: list[int],
    options: dict[str, object],
    tokens: list[int],
    text: str,
    reason: FinishReason,
    size: int,
) -> None:
    request = Request(prompt=[D], **options)  # type: ignore[arg-type]
    got = run(scripted(*script, context_size=64), [request], oracle([D], script, size))[0]
    choice = got.choices[0]
    assert (choice.tokens, choice.text, choice.finish_reason) == (tokens, text, reason)
    assert got.stats.num_output_tokens == len(tokens)


def test_case_71_no_tokens_asked_for_is_one_chunk_that_ends() -> None:
    with lookup_engine(FakeBackend()) as engine:
        chunks = chunks_of(engine, Request(prompt=[A], max_tokens=0))
        assert [chunk.finish_reason for chunk in chunks] == [LENGTH]
        assert choice_of(chunks).tokens == []
        assert engine.num_active == 0
        assert engine.backend.num_passes == 0  # type: ignore[attr-defined]


def passes(backend: FakeBackend, completion: Completion) -> int:
    assert completion.choices[0].finish_reason is LENGTH
    return backend.num_passes


@pytest.mark.parametrize("size", [1, 2, 4, 7, 10])
def test_case_106_no_round_is_wasted(size: int) -> None:
    sentence = [A, B, C, SPACE, D, 8, 9]
    answer, budget = 70, 3
    backend = repeating(sentence)
    with lookup_engine(backend, f"fixed:num_draft_tokens={size}") as engine:
        got = engine.complete(Request(prompt=[D], max_tokens=answer))
    # The first sentence is new; from then on every round brings a whole draft and one more.
    expected = len(sentence) + math.ceil((answer - len(sentence)) / (size + 1))
    assert passes(backend, got) <= expected + budget


def test_case_106_a_seeded_request_wastes_none_either() -> None:
    request = Request(
        prompt=[1, 2], sampling=SamplingOptions(temperature=0.9, seed=5), max_tokens=40
    )
    answer = plain(FakeBackend(ToyLM(seed=3)), request).choices[0].tokens
    backend = FakeBackend(ToyLM(seed=3))
    got = drafted_run(backend, request, oracle([1, 2], answer, 4))
    assert got.choices[0].tokens == answer
    assert backend.num_passes <= math.ceil(len(answer) / 5) + 2
