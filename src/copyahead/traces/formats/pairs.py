"""Pairs of what was asked and what was answered: texts, messages, or token ids."""

from __future__ import annotations

from typing import Any

from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.messages import BOOKKEEPING, CONTEXT, context_of, messages_of, name_of
from copyahead.traces.formats.reading import Item, Notes, Reading, text_of

_PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("prompt", "output"),
    ("instruction", "output"),
    ("instruction", "response"),
)
_READ_IDS = ("prompt_token_ids", "prompt_ids", "input_ids", "prompt", "input")
_WRITTEN_IDS = (
    "output_token_ids", "output_ids", "completion_token_ids", "completion_ids", "token_ids",
    "completion", "output", "response",
)  # fmt: skip
QUESTIONS = tuple(dict.fromkeys([*_READ_IDS, *(asked for asked, _ in _PAIRS)]))
ANSWERS = tuple(dict.fromkeys([*_WRITTEN_IDS, *(answered for _, answered in _PAIRS)]))
"""The names under which what was read, and what was written, may stand."""


def is_pair(item: Item) -> bool:
    """Whether an object holds a text or messages, and the answer to them."""
    return any(_fits(item, pair) for pair in _PAIRS)


def read_pair(reading: Reading, item: Item) -> None:
    """The prompt, or the instruction and its input, were read; the answer was written."""
    asked, answered = next(pair for pair in _PAIRS if _fits(item, pair))
    notes = reading.notes
    known = {asked, answered, "input", "history"} if asked == "instruction" else {asked, answered}
    notes.keys(item, known | CONTEXT | BOOKKEEPING, f"an object with {asked} and {answered}")
    prompt = context_of(item, notes)
    if asked == "instruction":
        prompt += _earlier(item.get("history"))
        texts = [text_of(item.get(key), key) for key in ("instruction", "input")]
        prompt.append(Message("user", "\n".join(text for text in texts if text)))
    else:
        prompt += _side(item[asked], "user", notes)
    reading.request(name_of(item, reading.place), prompt, _side(item[answered], "assistant", notes))


def is_token_pair(item: Item) -> bool:
    """Whether an object holds the token ids of a prompt and of its answer."""
    return _ids(item, _READ_IDS) is not None and _ids(item, _WRITTEN_IDS) is not None


def read_token_pair(reading: Reading, item: Item) -> None:
    """No tokenizer is needed; the prompt's ids were read and the answer's written."""
    read, written = _ids(item, _READ_IDS), _ids(item, _WRITTEN_IDS)
    reading.notes.keys(item, BOOKKEEPING | {"prompt", "text", "output"}, "a pair of token ids")
    reading.tokens(name_of(item, reading.place), item[str(read)], item[str(written)])


def _fits(item: Item, pair: tuple[str, str]) -> bool:
    return pair[0] in item and pair[1] in item


def _ids(item: Item, keys: tuple[str, ...]) -> str | None:
    """The first of `keys` that holds a list that begins with a number."""
    return next((key for key in keys if _numbers(item.get(key))), None)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and value != [] and isinstance(value[0], int)


def _side(value: Any, role: str, notes: Notes) -> list[Message]:
    """Text, or messages."""
    written = role == "assistant"
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, list):
        return messages_of(value, notes, written=written)
    text = text_of(value, "the answer" if written else "the prompt")
    return [Message(role, text, written=written and bool(text))]


def _earlier(history: Any) -> list[Message]:
    """Rounds before the instruction, each of a question and its answer; all of it was read."""
    return [
        Message(role, text_of(text, "history"))
        for turn in history or ()
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
