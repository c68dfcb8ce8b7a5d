"""Token ids to text: whole characters, stop strings, and the same for every cutting."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.engine.text import MAX_STOP_LENGTH, TextStream
from copyahead.testing import TOY_PIECES, ToyTokenizer, rechunk

TOKENIZER = ToyTokenizer()
EMOJI = "\N{GRINNING FACE}"


def shown(tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[str, int]:
    """The whole text, and how many tokens it took, by the plain reading."""
    stream, text = TextStream(TOKENIZER, stop), ""
    for count, token in enumerate(tokens, start=1):
        stopped = stream.push(token)
        text += "".join(piece for piece, _ in stream.take())
        if stopped:
            return text, count
    stream.finish()
    return text + "".join(piece for piece, _ in stream.take()), len(tokens)


def tokens_of(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def test_plain_text_comes_out_at_once() -> None:
    stream = TextStream(TOKENIZER)
    assert not stream.push(1)
    assert stream.take() == (("a", False),)


@pytest.mark.parametrize("cut", [1, 2])
def test_a_character_in_parts_is_one_delta(cut: int) -> None:
    stream = TextStream(TOKENIZER)
    emoji = [13, 14, 15]
    for token in emoji[:cut]:
        stream.push(token)
        assert stream.take() == ()
    for token in emoji[cut:]:
        stream.push(token)
    assert stream.take() == ((EMOJI, False),)


def test_an_incomplete_character_at_the_end_is_dropped() -> None:
    assert shown([1, 13, 14]) == ("a", 3)


def test_a_stop_string_ends_the_text_before_it() -> None:
    # a, " ", "EN", "D", b: the stop completes at the fourth token.
    assert shown([1, 4, 5, 6, 2], ("END",)) == ("a ", 4)


def test_a_stop_string_inside_one_token() -> None:
    assert TOY_PIECES[7] == b"x END y"
    assert shown([1, 7, 2], ("END",)) == ("ax ", 2)


def test_a_stop_string_that_starts_and_ends_inside_tokens() -> None:
    # "x END y" + "a": stop "ND ya" begins in the middle of one and ends with the next.
    assert shown([7, 1, 2], ("ND ya",)) == ("x E", 2)


def test_the_stop_that_is_complete_first_wins() -> None:
    assert shown([1, 2, 3], ("bc", "ab")) == ("", 2)
    assert shown([7], ("D y", "EN")) == ("x ", 1)


def test_a_stop_string_of_emoji() -> None:
    assert shown([1, 13, 14, 15, 2], (EMOJI,)) == ("a", 4)


def test_a_live_prefix_is_held_back_and_released() -> None:
    stream = TextStream(TOKENIZER, ("END",))
    stream.push(1)
    stream.push(5)
    assert stream.take() == (("a", False),)
    stream.push(1)
    assert stream.take() == (("ENa", False),)
    stream.push(5)
    assert stream.take() == ()
    stream.finish()
    assert stream.take() == (("EN", False),)


def test_a_stop_string_before_min_tokens_is_text() -> None:
    stream = TextStream(TOKENIZER, ("ab",))
    stream.push(1, may_stop=False)
    assert not stream.push(2, may_stop=False)
    assert stream.take() == (("ab", False),)
    stream.push(1)
    assert stream.push(2)
    assert stream.take() == ()


def test_copied_runs_are_marked() -> None:
    stream = TextStream(TOKENIZER, ("END",))
    for token, copied in [(1, False), (2, True), (3, True), (5, True), (1, False)]:
        stream.push(token, copied=copied)
    assert stream.take() == (("a", False), ("bcEN", True), ("a", False))


TOKEN_LISTS = st.lists(st.integers(1, len(TOY_PIECES) - 1), min_size=1, max_size=9)
STOPS = st.lists(st.text("abENDx é" + EMOJI, min_size=1, max_size=3), max_size=3)


@given(TOKEN_LISTS, STOPS)
def test_every_cutting_gives_the_same_text(tokens: list[int], stops: list[str]) -> None:
    expected, num_taken = shown(tokens, tuple(stops))
    for steps in rechunk(tokens):
        stream, text, taken, stopped = TextStream(TOKENIZER, stops), "", 0, False
        for step in steps:
            for token in step:
                taken += 1
                stopped = stream.push(token)
                if stopped:
                    break
            text += "".join(piece for piece, _ in stream.take())
            if stopped:
                break
        if not stopped:
            stream.finish()
            text += "".join(piece for piece, _ in stream.take())
        assert (text, taken) == (expected, num_taken)


@given(TOKEN_LISTS, STOPS)
def test_the_text_is_that_of_the_bytes_up_to_the_first_stop(
    tokens: list[int], stops: list[str]
) -> None:
    text, taken = shown(tokens, tuple(stops))
    whole = b"".join(TOY_PIECES[token] for token in tokens[:taken])
    decoder_text = _without_broken_end(whole)
    ends = [decoder_text.find(stop) for stop in stops if stop in decoder_text]
    assert text == (decoder_text[: min(ends)] if ends else decoder_text) or ends


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    st.integers(0, 8),
)
def test_stop_strings_are_found_as_by_looking_everywhere(
    pieces: list[str], stops: list[str], num_free: int
) -> None:
    tokenizer = ToyTokenizer([piece.encode() for piece in pieces])
    stream, text, whole = TextStream(tokenizer, stops), "", ""
    for token, piece in enumerate(pieces):
        before, whole = len(whole), whole + piece
        stopped = stream.push(token, may_stop=token >= num_free)
        text += "".join(piece for piece, _ in stream.take())
        ends = [n for n in range(before + 1, len(whole) + 1) if whole[:n].endswith((*stops,))]
        if ends and token >= num_free:
            longest = max(len(stop) for stop in stops if whole[: ends[0]].endswith(stop))
            assert stopped
            assert text == whole[: ends[0] - longest]
            return
        assert not stopped
        # No more is held back than could still become a stop string.
        held = max(n for n in range(6) if any(whole.endswith(s[:n]) for s in stops if n < len(s)))
        assert text == whole[: len(whole) - held]


def test_a_long_stop_string_costs_no_more_than_the_text() -> None:
    stop = "a" * MAX_STOP_LENGTH
    stream, calls = TextStream(TOKENIZER, [stop.replace("a", "c"), stop[1:] + "b"]), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        for _ in range(2 * MAX_STOP_LENGTH):
            stream.push(1)
    finally:
        sys.setprofile(None)
    assert calls < 60 * MAX_STOP_LENGTH


def _without_broken_end(data: bytes) -> str:
    import codecs

    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
