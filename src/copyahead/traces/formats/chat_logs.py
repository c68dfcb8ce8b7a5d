"""Logs of requests and their answers: chat and text completions, Anthropic's, and Responses.

The prompt was read and the answer written. An answer that the client only sent back is read.
"""

from __future__ import annotations

from typing import Any

import msgspec

from copyahead.traces.formats import responses
from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.messages import (
    BOOKKEEPING,
    CONTEXT,
    context_of,
    is_message,
    messages_of,
    read_message,
    role_of,
)
from copyahead.traces.formats.reading import Item, Notes, Reading, keys_of, text_of, words

_ANSWERS = ("response", "completion", "output")
_TEXTS = ("response", "text", "completion", "generated_text", "output", "output_text")
_BODY = words("body messages prompt input choices output message content error")
"""One of these is in every request and response."""
_SETTINGS = words(
    "user stop stop_sequences tool_choice response_format format service_tier reasoning_effort "
    "reasoning thinking text truncation include options keep_alive modalities output_config "
    "prompt_cache_key safety_identifier stream_options anthropic_version betas container "
    "context_management"
)
"""Keys of a request that set how it is answered, and that no model reads."""
_REQUEST = CONTEXT | BOOKKEEPING | _SETTINGS | {"messages", "prompt", "input"}
_RESPONSE = (
    CONTEXT
    | BOOKKEEPING
    | _SETTINGS
    | {"choices", "content", "output", "message", "role", "done_reason", "system_fingerprint"}
    | {"provider", "error", "incomplete_details", "previous_response_id", "prompt", *_TEXTS}
)
_CHOICE = BOOKKEEPING | {"message", "text", "token_ids", "prompt_token_ids", "matched_stop"}


def is_log(item: Item) -> bool:
    """Whether an object holds a request and its answer."""
    if "request" in item:
        return "response" in item
    if "choices" in item:
        return "messages" in item or "prompt" in item
    if not any(item.get(key) for key in _ANSWERS):
        return False
    messages = item.get("messages")
    if isinstance(messages, list) and messages:
        # Where the last one is an answer, the conversation is whole without what stands beside.
        return role_of(messages[-1]) not in ("assistant", "exit")
    return "input" in item and "instruction" not in item


def read_log(reading: Reading, item: Item) -> None:
    """One request and its answer."""
    request, response = _halves(item, reading.notes)
    prompt, choices = request.get("prompt"), response.get("choices")
    if choices and isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        _tokens(reading, prompt, choices[0])
    elif isinstance(response.get("output"), list) and "messages" not in request:
        responses.read_response(reading, request, response)
    else:
        answer = _answer(response, reading.notes)
        reading.request(reading.place, _prompt(request, reading.notes), answer)


def _halves(item: Item, notes: Notes) -> tuple[Item, Item]:
    if "request" in item:
        notes.keys(item, BOOKKEEPING | {"request", "response", "error"}, "a log's line")
        request, response = _body(item["request"], "request"), _body(item["response"], "response")
    elif "choices" in item:
        notes.keys(item, _REQUEST | _RESPONSE, "a log's line")
        return item, item
    else:
        key = next(key for key in _ANSWERS if item.get(key))
        request = {name: value for name, value in item.items() if name != key}
        asked = request.get("input")
        if "messages" in request or not isinstance(asked, dict):
            response = _body_or_answer(item[key])
        else:
            request, response = asked, _body_or_answer(item[key])
    notes.keys(request, _REQUEST | {"previous_response_id"}, "a request")
    if not is_message(response):
        notes.keys(response, _RESPONSE, "a response")
    return request, response


def _body_or_answer(value: Any) -> Item:
    """A response, or the answer alone: text, a message, or a list of them or of items."""
    if isinstance(value, str):
        return {"text": value}
    return {"output": value} if isinstance(value, list) else _body(value, "response")


def _body(value: Any, name: str) -> Item:
    """A request or a response, as an object, as text, or inside an envelope."""
    if isinstance(value, str):
        value = _object(value) or ({"text": value} if name == "response" else None)
    if isinstance(value, dict) and isinstance(value.get("body"), (dict, str)):
        return _body(value["body"], name)
    if not isinstance(value, dict):
        raise ValueError(f"the {name} is not a JSON object")
    return value


def _object(text: str) -> Item | None:
    """The request or response that `text` encodes; an answer may be JSON and none of that."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    known = isinstance(value, dict) and _BODY & value.keys()
    return value if known else None


def _prompt(request: Item, notes: Notes) -> list[Message]:
    context = context_of(request, notes)
    if "messages" in request:
        return context + messages_of(request["messages"], notes, written=False)
    for key in ("prompt", "input"):
        if isinstance(request.get(key), str):
            return [*context, Message("user", request[key])]
    if isinstance(request.get("prompt"), list):
        return [*context, Message("user", _only_text(request["prompt"]))]
    if isinstance(request.get("input"), list):
        return context + responses.items_of(request["input"], notes, written=False)
    raise ValueError(
        f"the request has no messages, and no prompt of text or of token ids (it has "
        f"{keys_of(request)})"
    )


def _only_text(prompts: list[Any]) -> str:
    if len(prompts) != 1:
        raise ValueError(f"the request has {len(prompts)} prompts: record one a line")
    return text_of(prompts[0], "the prompt")


def _answer(response: Item, notes: Notes) -> list[Message]:
    if response.get("choices"):
        return _first_choice(response["choices"], notes)
    if isinstance(response.get("message"), dict):
        return read_message(response["message"], notes, written=True)
    if "content" in response:
        return read_message({"role": "assistant", **response}, notes, written=True)
    if isinstance(response.get("output"), list):
        return messages_of(response["output"], notes, written=True)
    for key in _TEXTS:
        if response.get(key):
            return [Message("assistant", text_of(response[key], "the answer"), written=True)]
    raise ValueError(
        "the response has no choices, output, message or content: the request failed, or was a "
        f"stream (it has {keys_of(response)})"
    )


def _first_choice(choices: Any, notes: Notes) -> list[Message]:
    if len(choices) > 1:
        notes.add("choices after the first", "other answers to the same request are not read")
    choice = choices[0]
    if isinstance(choice, dict):
        notes.keys(choice, _CHOICE, "a choice")
        if "message" in choice:
            return read_message(choice["message"], notes, written=True)
    text = text_of(choice["text"], "the answer")
    return [Message("assistant", text, written=bool(text))]


def _tokens(reading: Reading, prompt: list[Any], choice: Item) -> None:
    """A prompt of token ids, with those of its answer as vLLM's server gives them when asked."""
    if "token_ids" not in choice:
        raise ValueError("the prompt is token ids and the answer has none: record its token_ids")
    reading.tokens(reading.place, prompt, choice["token_ids"])
