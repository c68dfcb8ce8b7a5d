"""An answer's text as it is shown: thinking, content and calls, and which calls are dropped."""

from __future__ import annotations

import pytest

from copyahead.chat.reasoning import ReasoningSplitter
from copyahead.chat.reply import Reply
from copyahead.chat.tools.formats import HERMES
from copyahead.chat.tools.stream import ToolCallDelta, ToolCallStart

CALLS = HERMES.write([("look", '{"a": 1}'), ("write", '{"b": 2}'), ("look", "{}")])


def reply_to(text: str, step: int, *, max_calls: int | None = None) -> Reply:
    """The text pushed `step` characters at a time."""
    reply = Reply(ReasoningSplitter(False), HERMES.parser(), max_calls=max_calls)
    for start in range(0, len(text), step):
        reply.push(text[start : start + step])
    reply.finish()
    return reply


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("max_calls", [None, 0, 1, 2, 3, 4])
def test_calls_after_the_most_that_are_wanted_are_dropped(max_calls: int | None, step: int) -> None:
    reply = reply_to(f"well {CALLS}", step, max_calls=max_calls)
    calls = [("look", '{"a": 1}'), ("write", '{"b": 2}'), ("look", "{}")]
    assert [(call.name, call.arguments) for call in reply.calls] == calls[:max_calls]
    assert reply.content == "well"


def test_no_event_tells_of_a_call_that_is_dropped() -> None:
    reply = Reply(parser=HERMES.parser(), max_calls=1)
    events = [*reply.push(CALLS), *reply.finish()]
    assert {e.index for e in events if isinstance(e, ToolCallStart | ToolCallDelta)} == {0}


@pytest.mark.parametrize("step", [1, 1000])
def test_what_is_held_back_comes_at_the_end(step: int) -> None:
    reply = reply_to("<think>so</think>text <tool_c", step)
    assert (reply.reasoning, reply.content) == ("so", "text <tool_c")
    reply = reply_to('<think>so</think><tool_call>{"name": "look", "arguments": {"a"', step)
    assert (reply.reasoning, reply.content) == ("so", "")
    assert [(call.name, call.arguments) for call in reply.calls] == [("look", '{"a"')]


def test_half_a_surrogate_pair_is_in_no_name() -> None:
    text = HERMES.write([("look", "{}")]).replace("look", "l\\ud800k")
    reply = reply_to(text, 1)
    (call,) = reply.calls
    assert call.name == "l?k"
