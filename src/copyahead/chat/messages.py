"""Conversations as lists of plain messages, and ways of saying the same with fewer means.

A message here is a dict with `role` (system, user, assistant or tool) and `content`, a text. The
assistant's may hold `tool_calls` with their arguments as JSON text, and a tool's `tool_call_id`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from copyahead.chat.tools.formats import ToolFormat
from copyahead.errors import RequestError

Messages = list[dict[str, Any]]

_ROLES = {"developer": "system", "function": "tool"}
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def checked(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Messages in the plain form, the leading system messages as one.

    Raises RequestError that names the field for one that is no message, or holds no text.
    """
    if not messages:
        raise RequestError("messages is empty: give at least one", field="messages")
    plain = [_checked(message, f"messages[{place}]") for place, message in enumerate(messages)]
    systems = list(itertools.takewhile(lambda message: message["role"] == "system", plain))
    if systems:
        plain[0]["content"] = _paragraphs(*(message["content"] for message in systems))
        del plain[1 : len(systems)]
    return _named_results(plain)


def _named_results(messages: Messages) -> Messages:
    """Some templates want to know of a result what was called; clients give the call's id."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[str(call.get("id"))] = call["function"]["name"]
        name = names.get(str(message.get("tool_call_id")))
        if message["role"] == "tool" and name is not None:
            message.setdefault("name", name)
    return messages


def _checked(message: Any, where: str) -> dict[str, Any]:
    role = message.get("role") if isinstance(message, Mapping) else None
    role = _ROLES.get(str(role), role)
    if role not in ("system", "user", "assistant", "tool"):
        raise RequestError(
            f"{where}.role must be system, developer, user, assistant or tool, not {role!r}",
            field=f"{where}.role",
        )
    plain = {key: value for key, value in message.items() if value is not None}
    plain.update(role=role, content=text_of(message.get("content"), f"{where}.content"))
    calls = plain.pop("tool_calls", None)
    if calls:
        plain["tool_calls"] = [_call(call, f"{where}.tool_calls") for call in calls]
    return plain


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where} holds a call without a function and its name", field=where)
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"
    if not isinstance(arguments, str):
        raise RequestError(f"{where} holds arguments that are no JSON text", field=where)
    return {
        **call,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def text_of(content: Any, where: str) -> str:
    """Content as one text; RequestError, naming the part, for what is no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} must be a text or a list of parts", field=where)
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind else part
        at = f"{where}[{place}]"
        if kind is not None and kind not in _TEXT_PARTS:
            raise RequestError(
                f"{at} is a part of type {kind!r}, and the model reads text only", field=at
            )
        if not isinstance(text, str):
            field = f"{at}.{'refusal' if kind == 'refusal' else 'text'}" if kind else at
            what = "be a text" if kind else "have a type, or be a text"
            raise RequestError(f"{field} must {what}", field=field)
        texts.append(text)
    return "".join(texts)


def with_system(messages: Messages, text: str) -> Messages:
    """`text` at the end of the first system message."""
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": _paragraphs(messages[0]["content"], text)}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def folded_systems(messages: Messages) -> Messages:
    """System messages as the beginning of the user message after them."""
    folded: Messages = []
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
            continue
        content, waiting = _paragraphs(*waiting), []
        if content and message["role"] == "user":
            folded.append({**message, "content": _paragraphs(content, message["content"])})
        else:
            folded += [{"role": "user", "content": content}] if content else []
            folded.append(message)
    content = _paragraphs(*waiting)
    return [*folded, {"role": "user", "content": content}] if content else folded


def calls_as_text(messages: Messages, form: ToolFormat) -> Messages:
    """Calls as text in the content of their message, written as the model writes them."""
    shown: Messages = []
    for message in messages:
        calls = message.get("tool_calls")
        if not calls:
            shown.append(message)
            continue
        functions = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
        content = "\n".join(filter(None, (message["content"], form.write(functions))))
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        shown.append({**rest, "content": content})
    return shown


def results_as_text(messages: Messages) -> Messages:
    """Results of tools as user messages, those in a row as one."""
    shown: Messages = []
    for is_result, group in itertools.groupby(messages, lambda m: bool(m["role"] == "tool")):
        if is_result:
            texts = [f"Result of {m.get('name', 'the call')}:\n{m['content']}" for m in group]
            shown.append({"role": "user", "content": "\n\n".join(texts)})
        else:
            shown += group
    return shown


def single_calls(messages: Messages) -> Messages:
    """Several calls of one message as one message each, each followed by its result."""
    single: Messages = []
    results: dict[str, dict[str, Any]] = {}
    for place, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool" and results.pop(str(message.get("tool_call_id")), None):
            continue
        if len(calls) < 2:
            single.append(message)
            continue
        results = _results_after(messages, place)
        for number, call in enumerate(calls):
            content = message["content"] if number == 0 else ""
            single.append({**message, "content": content, "tool_calls": [call]})
            if str(call.get("id")) in results:
                single.append(results[str(call.get("id"))])
    return single


def short_ids(messages: Messages) -> Messages:
    """Ids of calls as nine hexadecimal digits, the same for the same id."""
    short: Messages = []
    for message in messages:
        one = dict(message)
        if "tool_calls" in one:
            one["tool_calls"] = [{**c, "id": _short(c.get("id"))} for c in one["tool_calls"]]
        if "tool_call_id" in one:
            one["tool_call_id"] = _short(one["tool_call_id"])
        short.append(one)
    return short


def _short(call_id: object) -> str:
    return hashlib.sha256(str(call_id).encode("utf-8", "replace")).hexdigest()[:9]


def _results_after(messages: Messages, place: int) -> dict[str, dict[str, Any]]:
    """The results that follow a message, by the id of their call."""
    results = {}
    for message in messages[place + 1 :]:
        if message["role"] != "tool":
            break
        results[str(message.get("tool_call_id"))] = message
    return results


def relaxed(messages: Messages) -> Messages:
    """For templates that insist on turns: a later system message is the user's, and neighbours
    of one role are one message."""
    merged: Messages = []
    texts: list[list[str]] = []
    for place, message in enumerate(messages):
        one = dict(message)
        if place and one["role"] == "system":
            one["role"] = "user"
        if merged and _can_join(merged[-1], one):
            texts[-1].append(one["content"])
        else:
            merged.append(one)
            texts.append([one["content"]])
    return [{**m, "content": _paragraphs(*t)} for m, t in zip(merged, texts, strict=True)]


def with_results(messages: Messages) -> Messages:
    """What the user says right after a result, as the end of that result: for templates that let
    users and the model take turns and do not count calls and their results."""
    joined: Messages = []
    for message in messages:
        last = joined[-1] if joined else None
        if last is not None and last["role"] == "tool" and message["role"] == "user":
            joined[-1] = {**last, "content": _paragraphs(last["content"], message["content"])}
        else:
            joined.append(message)
    return joined


def _can_join(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    called = "tool_calls" in first or "tool_calls" in second
    return first["role"] == second["role"] in ("user", "assistant") and not called


def _paragraphs(*texts: str) -> str:
    """All of them at once: joined one by one, many would be copied over and over."""
    return "\n\n".join(filter(None, texts))
