"""A call that is a JSON object: which keys it may have, and where its strings end."""

from __future__ import annotations

import json

import pytest

from copyahead.chat.reply import Reply
from copyahead.chat.tools.formats import HERMES, JSON, ToolFormat
from copyahead.chat.tools.json_call import NAME_LIMIT

LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def reply_to(text: str, form: ToolFormat = HERMES) -> Reply:
    reply = Reply(parser=form.parser([LOOK]))
    for char in text:
        reply.push(char)
    reply.finish()
    return reply


@pytest.mark.parametrize(("key", "is_call"), [("id", True), ("type", True), ("size", False)])
def test_an_object_without_markers_is_a_call_only_with_the_keys_of_one(
    key: str, is_call: bool
) -> None:
    text = json.dumps({"name": "look", key: "x", "arguments": {"a": 1}})
    reply = reply_to(text, JSON)
    assert [call.arguments for call in reply.calls] == (['{"a": 1}'] if is_call else [])
    assert reply.content == ("" if is_call else text)
    # Between markers it is one with any keys.
    marked = reply_to(f"<tool_call>{text}</tool_call>")
    assert [call.arguments for call in marked.calls] == ['{"a": 1}']


@pytest.mark.parametrize("length", [NAME_LIMIT, NAME_LIMIT + 1])
def test_a_name_that_is_too_long_is_text_at_once(length: int) -> None:
    text = '<tool_call>{"name": "' + "n" * length
    reply = Reply(parser=HERMES.parser())
    reply.push(text)
    assert reply.content == (text if length > NAME_LIMIT else "")


@pytest.mark.parametrize("value", ["x\\", 'x"', '\\"', "\\\\", "}", '"}'])
def test_strings_end_where_json_ends_them(value: str) -> None:
    arguments = json.dumps({"a": value, "b": [value]})
    reply = reply_to(HERMES.write([("look", arguments), ("look", "{}")]))
    assert [call.arguments for call in reply.calls] == [arguments, "{}"]
    assert reply.content == ""


def test_the_first_arguments_of_a_call_are_its_arguments() -> None:
    twice = '{"name": "look", "arguments": {"a": 1}, "parameters": {"b": 2}}'
    reply = reply_to(f"<tool_call>{twice}</tool_call>")
    assert [call.arguments for call in reply.calls] == ['{"a": 1}']
