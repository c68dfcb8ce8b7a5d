"""Known faults: text that leaves in blocks of several tokens (rows 22, 26)."""

from __future__ import annotations

from itertools import product

import pytest

from copyahead.engine import Chunk, Engine, Request
from copyahead.testing import FakeBackend, ForcedDrafter, ToyLM, ToyTokenizer, rechunk
from tests.engine.cases.models import EMOJI, choice_of, chunks_of
from tests.toys import plain, scripted

A, B, C, SPACE, EN, D = 1, 2, 3, 4, 5, 6
E1, E2, E3, ACUTE = 13, 14, 15, 16


def in_steps(steps: list[list[int]], request: Request, backend: FakeBackend) -> list[Chunk]:
    """The chunks of an answer that is emitted in exactly these steps.

    The first token of an answer comes out of its prompt, so it is a step by itself.
    """
    drafts: dict[int, list[int]] = {}
    written = 0
    for step in steps:
        drafts[written] = step[:-1]
        written += len(step)
    engine = Engine(backend, make_drafter=ForcedDrafter(drafts))
    return chunks_of(engine, request)


SCRIPTS = [
    ([A, B, SPACE, EN, D, C, A], (), "ab ENDca"),
    ([A, EN, EN, D, B, C], ("END",), "aEN"),
    ([A, E1, E2, E3, ACUTE, B], (), f"a{EMOJI}\u00e9b"),
    ([A, B, 7, C, A, B], ("ND y",), "abx E"),
    ([A, B, C, EN], ("END",), "abcEN"),
]


@pytest.mark.parametrize(("script", "stop", "text"), SCRIPTS)
@pytest.mark.parametrize("ending", ["eos", "length"])
def test_case_22_every_cutting_into_steps_streams_the_same(
    script: list[int], stop: tuple[str, ...], text: str, ending: str
) -> None:
    tokens = [*script, 0] if ending == "eos" else script
    request = Request(prompt=[D], stop=stop, max_tokens=len(tokens), logprobs=1)
    whole = plain(scripted(*script), request).choices[0]
    assert whole.text == text
    most = 0
    for rest in rechunk(tokens[1:]):
        chunks = in_steps([tokens[:1], *rest], request, scripted(*script))
        got = choice_of(chunks)
        assert (got.text, got.tokens, got.finish_reason) == (
            whole.text,
            whole.tokens,
            whole.finish_reason,
        )
        assert got.logprobs == whole.logprobs
        assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert len(got.copied) == len(got.tokens)
        most = max(most, *(len(chunk.tokens) for chunk in chunks))
    assert most == len(whole.tokens) - 1, "no block held all the rest: the test cut nothing"


@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("before", [0, 1, 3])
def test_case_26_a_character_in_two_steps_is_one_delta(cut: int, before: int) -> None:
    emoji = [E1, E2, E3]
    script = [A, *[B] * before, *emoji, C]
    steps = [[A], [*[B] * before, *emoji[:cut]], [*emoji[cut:], C], [0]]
    chunks = in_steps(steps, Request(prompt=[D]), scripted(*script))
    assert [chunk.text for chunk in chunks] == ["a", "b" * before, f"{EMOJI}c", ""]
    assert [len(chunk.tokens) for chunk in chunks] == [len(step) for step in steps]


@pytest.mark.parametrize("max_tokens", range(1, 8))
def test_case_26_an_answer_that_ends_in_a_character_shows_no_broken_one(max_tokens: int) -> None:
    script = [A, E1, E2, E3, E1, E2, B]
    texts = ["a", "a", "a", f"a{EMOJI}", f"a{EMOJI}", f"a{EMOJI}", f"a{EMOJI}\ufffdb"]
    request = Request(prompt=[D], max_tokens=max_tokens)
    for rest in rechunk(script[1:]):
        chunks = in_steps([script[:1], *rest], request, scripted(*script))
        got = choice_of(chunks)
        assert got.text == texts[max_tokens - 1]
        assert got.tokens == script[:max_tokens]


FAMILY = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_case_26_joined_characters_byte_by_byte(size: int) -> None:
    data = ("x" + FAMILY + "\u6f22\u5b57 end").encode()
    table = [b"", *(bytes([byte]) for byte in sorted(set(data)))]
    script = [table.index(bytes([byte])) for byte in data]
    tokenizer = ToyTokenizer(table)
    steps = [script[:1], *(script[i : i + size] for i in range(1, len(script), size))]
    model = ToyLM(script=script, vocab_size=len(table))
    backend = FakeBackend(model, tokenizer=tokenizer)
    chunks = in_steps(steps, Request(prompt=[1], max_tokens=len(script)), backend)
    assert choice_of(chunks).text == data.decode()
    assert all("\ufffd" not in chunk.text for chunk in chunks)


@pytest.mark.parametrize(("stop", "text"), [(EMOJI, "ab"), (f"b{EMOJI}c", "a"), (FAMILY, None)])
def test_case_26_a_stop_string_of_emoji(stop: str, text: str | None) -> None:
    script = [A, B, E1, E2, E3, C, A]
    request = Request(prompt=[D], stop=(stop,), max_tokens=7)
    for first, rest in product([script[:1]], rechunk(script[1:])):
        got = choice_of(in_steps([first, *rest], request, scripted(*script)))
        assert got.text == (f"ab{EMOJI}ca" if text is None else text)
