"""Finds out what a chat template can do, by rendering small conversations.

Nothing is concluded from a template's text: only from what it makes of known words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from copyahead.chat.messages import Messages
from copyahead.chat.tools.formats import TAG_FORMATS, TagFormat
from copyahead.errors import TemplateLimitError

Render = Callable[[Messages, Messages | None], str]
"""Renders messages and tools; raises whatever a template raises."""


class TemplateCapabilities(msgspec.Struct, frozen=True):
    """What a template was found to do."""

    system: bool
    """Shows system messages."""
    parts: bool
    """Wants content as a list of parts."""
    tools: bool
    """Shows the tools it is given, and has calls written in a form that is known here."""
    calls: tuple[str | None, bool] | None
    """How it takes calls: the content beside them, and whether arguments are an object rather
    than text. None: not at all."""
    parallel_calls: bool
    """Takes several calls in one message."""
    tags: TagFormat | None
    """The form in which it has calls written, where that is one with tags."""
    results: bool
    """Shows messages of the role `tool`."""
    short_ids: bool
    """Takes ids of calls only where they have nine letters or digits."""


_USER = {"role": "user", "content": "Probe-user"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "Probe-description",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}
_NAME = re.compile(r'"name":\s*"probe_tool"')
_ARGUMENTS = re.compile(r'"(arguments|parameters)":\s*\{\s*"probe_key":\s*7')
_SHORT_ID, _LONG_ID = "probe0id", "call_probe0000000000000000id"
_WAYS: tuple[tuple[str | None, bool], ...] = (("", True), (None, True), ("", False), (None, False))


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its text as a list of parts."""
    text = message.get("content")
    return {**message, "content": [{"type": "text", "text": text}] if text else []}


def find_capabilities(render: Render) -> TemplateCapabilities:
    """What the template behind `render` can do. Raises TemplateLimitError where it tells nothing,
    as it takes too long over a few words."""

    def rendered(messages: Messages, tools: Messages | None = None) -> str:
        try:
            return render(messages, tools)
        except TemplateLimitError:
            raise
        except Exception:
            return ""

    parts = "Probe-user" not in rendered([_USER]) and "Probe-user" in rendered([in_parts(_USER)])

    def shown(message: dict[str, Any]) -> dict[str, Any]:
        return in_parts(message) if parts else message

    user = shown(_USER)
    written = {way: rendered([user, _calls(way)]) for way in _WAYS}
    forms = {way: _form(text) for way, text in written.items()}
    calls = next((way for way, form in forms.items() if form is not None), None)
    in_another_form = calls is None and any("probe_tool" in text for text in written.values())
    tools = not in_another_form and "probe_tool" in rendered([user], [_TOOL])
    if not tools:
        calls = None
    tags = forms[calls] if calls is not None else None
    result = {"role": "tool", "tool_call_id": f"{_SHORT_ID}0", "name": "probe_tool"}
    answered = [user, _calls(calls or _WAYS[0]), shown({**result, "content": "Probe-result"})]
    both = rendered([user, _calls(calls, 2)]) if calls is not None else ""
    long = rendered([user, _calls(calls, 1, _LONG_ID)]) if calls is not None else ""
    system = {"role": "system", "content": "Probe-system"}
    return TemplateCapabilities(
        system="Probe-system" in rendered([shown(system), user]),
        parts=parts,
        tools=tools,
        calls=calls,
        tags=tags if isinstance(tags, TagFormat) else None,
        parallel_calls="second_tool" in both,
        results="Probe-result" in rendered(answered),
        short_ids=calls is not None and not long,
    )


def _form(text: str) -> TagFormat | Literal["json"] | None:
    """How a rendered conversation writes the probe's call."""
    if _NAME.search(text) and _ARGUMENTS.search(text):
        return "json"
    # The breaks between tags differ from one version of a template to the next.
    tight = "".join(text.split())
    call = '{"probe_key": 7}'
    written = {form: form.write([("probe_tool", call)]) for form in TAG_FORMATS}
    return next((form for form, w in written.items() if "".join(w.split()) in tight), None)


def _calls(way: tuple[str | None, bool], count: int = 1, prefix: str = _SHORT_ID) -> dict[str, Any]:
    content, as_object = way
    calls = [
        {
            "id": f"{prefix}{place}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": {"probe_key": 7} if as_object else '{"probe_key": 7}',
            },
        }
        for place, name in enumerate(("probe_tool", "second_tool")[:count])
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}
