"""Prompts for gaps: their order, what is cut off, and which of their tokens steer the model."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copyahead.server.infill.gap import Gap, GapPrompt, GapWriter
from copyahead.types import Token
from tests.server.infill.toys import FIM, PLAIN_FIM, SPELLED, GapTokenizer
from tests.server.toys import PIECES

TOKENIZER = GapTokenizer()
LONGEST = max(map(len, PIECES))
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*SPELLED, "<|end|>", "<|pre", "|>", "the ", "\n"]), st.text("ab <|\n")
    ),
    max_size=12,
).map("".join)


def prompt(gap: Gap, room: int | None = None, tokenizer: GapTokenizer = TOKENIZER) -> GapPrompt:
    assert tokenizer.fim is not None
    return GapWriter(tokenizer, tokenizer.fim, token_bytes=LONGEST).prompt(gap, room)


def shown(tokens: list[Token]) -> str:
    """The prompt as text, its control tokens spelled out."""
    names = dict(zip(range(FIM.prefix, FIM.prefix + 6), SPELLED, strict=True))
    parts = [names[t] if t in names else TOKENIZER.token_bytes(t).decode() for t in tokens]
    return "".join(parts)


def test_a_file_is_written_around_its_gap() -> None:
    found = prompt(Gap(before="def f(", behind="):\n"), 500)
    assert shown(found.tokens) == "<|pre|>def f(<|suf|>):\n<|mid|>"
    assert found.truncated is False


def test_files_beside_it_come_first_in_the_form_of_a_repository() -> None:
    gap = Gap(before="x", behind="y", files=[("a.py", "A\n"), ("b.py", "B\n")])
    assert shown(prompt(gap, 500).tokens) == (
        "<|repo|>myproject\n<|file|>a.py\nA\n<|file|>b.py\nB\n<|file|>filename\n"
        "<|pre|>x<|suf|>y<|mid|>"
    )


def test_a_model_that_knows_no_files_gets_them_as_text() -> None:
    gap = Gap(before="x", behind="y", files=[("a.py", "A"), ("b.py", "B")])
    found = prompt(gap, 500, GapTokenizer(PLAIN_FIM))
    between = "\n\n--- snippet ---\n\n"
    assert shown(found.tokens) == f"{between}A{between}B<|pre|>x<|suf|>y<|mid|>"


def test_a_leading_token_comes_before_everything() -> None:
    class WithFirst(GapTokenizer):
        def encode(self, text: str, *, special: bool = True) -> list[Token]:
            return [*([1] if special else []), *super().encode(text, special=special)]

    gap = Gap(before="x", behind="y", files=[("a", "A")])
    tokens = prompt(gap, 500, WithFirst()).tokens
    assert (tokens[0], tokens.count(1)) == (1, 1)
    assert len(tokens) == len(prompt(gap, 500).tokens) + 1


@given(before=TEXTS, behind=TEXTS, files=st.lists(st.tuples(TEXTS, TEXTS), max_size=3))
@pytest.mark.parametrize("finds_them", [False, True])
def test_its_control_tokens_are_those_for_the_gap_and_no_others(
    finds_them: bool, before: str, behind: str, files: list[tuple[str, str]]
) -> None:
    tokenizer = GapTokenizer(finds_them=finds_them)
    tokens = prompt(Gap(before=before, behind=behind, files=files), 2000, tokenizer).tokens
    control = [token for token in tokens if token in FIM.all or not tokenizer.token_bytes(token)]
    heads = [FIM.repository, *[FIM.separator] * (len(files) + 1)] if files else []
    assert control == [*heads, FIM.prefix, FIM.suffix, FIM.middle]
    around = shown(tokens[tokens.index(FIM.prefix) :])
    assert around == f"<|pre|>{before}<|suf|>{behind}<|mid|>"


@given(
    before=st.text("ab \n", max_size=200),
    behind=st.text("ab \n", max_size=200),
    sizes=st.lists(st.integers(0, 60), max_size=4),
    room=st.integers(3, 260),
)
@settings(deadline=None)
def test_what_does_not_fit_is_cut_off_farthest_from_the_gap(
    before: str, behind: str, sizes: list[int], room: int
) -> None:
    files = [(f"f{n}", "c" * size) for n, size in enumerate(sizes)]
    found = prompt(Gap(before=before, behind=behind, files=files), room)
    text = shown(found.tokens)
    assert len(found.tokens) <= room
    head, _, rest = text.partition("<|pre|>")
    kept_before, _, rest = rest.partition("<|suf|>")
    kept_behind = rest.removesuffix("<|mid|>")
    assert before.endswith(kept_before)
    assert behind.startswith(kept_behind)
    assert found.truncated == ((kept_before, kept_behind) != (before, behind))
    if found.truncated:
        # The file comes first: nothing beside it is there while some of it is not, but for what a
        # step leaves.
        assert len(found.tokens) - 3 >= (room - 3) * 15 // 16 - 1 or not kept_before
    kept = [name for name, _ in files if f"{name}\n" in head]
    assert kept == [name for name, _ in files][len(files) - len(kept) :]


def test_where_both_sides_are_too_long_a_quarter_stands_behind() -> None:
    found = prompt(Gap(before="b" * 5000, behind="a" * 5000), 403)
    assert shown(found.tokens).count("a") == 100
    assert 400 * 11 / 16 <= shown(found.tokens).count("b") <= 300


def test_the_next_key_leaves_the_beginning_where_it_was() -> None:
    """Or all of the prompt would have to be read again."""
    text = "".join(f"line {n}\n" for n in range(400))
    prompts = [prompt(Gap(before=text[:end], behind="z"), 800).tokens for end in range(2400, 2440)]
    same = [one[:100] == other[:100] for one, other in pairwise(prompts)]
    assert same.count(False) <= 1


def test_what_cannot_fit_is_not_even_tokenised() -> None:
    class Counting(GapTokenizer):
        num_characters = 0

        def encode(self, text: str, *, special: bool = True) -> list[Token]:
            self.num_characters += len(text)
            return super().encode(text, special=special)

    tokenizer = Counting()
    files = [("f", "f" * 100_000)] * 20
    found = prompt(Gap(before="b" * 10**6, behind="a" * 10**6, files=files), 100, tokenizer)
    assert found.truncated
    assert tokenizer.num_characters <= 3 * 100 * LONGEST
