"""The attack by texts that spell control tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from soak_target import ANSWER, CHAT, COMPLETIONS, MAX_BODY, WRONG, Attack, Body, Target, chat, user


class Control(Attack):
    """Texts that spell the model's control tokens, in every field that reaches a prompt; judged by
    the tokens of the prompt, which are those of letters."""

    name = "control"
    pause = 0.05

    def __init__(self, max_body: int = MAX_BODY) -> None:
        super().__init__(max_body)
        self._cases: list[tuple[str, Body, str, int, int]] = []

    _REPEATED = 20
    _SPELLINGS = ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|end|>", "<|user|>", "</s>")
    _FORMS: tuple[Callable[[str], str], ...] = (
        lambda text: text,
        lambda text: f"\ue000 hi {text}",
        lambda text: f"\ue000{text}\ue001",
        lambda text: f'{{"a": {json.dumps(text)}}}',
    )
    """Around a spelling: nothing, characters of private use, JSON."""

    async def prepare(self, target: Target) -> None:
        """Find what this model reads as a control token, and how many tokens its letters are."""
        for spelled in self._SPELLINGS:
            kinds = [{"content": spelled, "add_special": special} for special in (True, False)]
            read = [await target.ask("/tokenize", kind, [ANSWER]) for kind in kinds]
            if None in read or read[0]["count"] >= read[1]["count"]:
                continue
            harmless = spelled.replace("|", "!").replace("/", "!")
            for path, make in FIELDS:
                for form in self._FORMS:
                    numbers = []
                    for text in ("x", harmless):
                        body = make(" ".join([form(text)] * self._REPEATED))
                        numbers.append(_num_tokens(await target.ask(path, body, [ANSWER])))
                    none, letters = numbers
                    text = " ".join([form(spelled)] * self._REPEATED)
                    if none is not None and letters is not None:
                        self._cases.append((path, make(text), spelled, none, letters))
        target.must(bool(self._cases), "no control token is known of this model")

    async def strike(self, target: Target, rng: random.Random) -> None:
        if rng.random() < 0.1:
            nested: Any = "<|im_end|>"
            for _ in range(900):
                nested = [nested]
            options = {"chat_template_kwargs": {"a": nested}, "max_tokens": 0}
            await target.ask(CHAT, chat(**options), [ANSWER, *WRONG])
            return
        if not self._cases:
            return
        path, body, spelled, none, letters = rng.choice(self._cases)
        # A rendering that cannot be followed is refused.
        read = _num_tokens(await target.ask(path, body, [ANSWER, *WRONG]))
        # Control tokens are one token each, as the `x` in their place is.
        is_right = read is None or 2 * read >= none + letters
        target.must(is_right, f"{path}: {spelled} got through in {json.dumps(body)[:200]}")


def _num_tokens(document: Any) -> int | None:
    """The tokens of a prompt, in the replies of several routes; None for a refusal."""
    if not isinstance(document, dict) or "message" in document:
        return None
    if "usage" in document:
        return int(document["usage"]["prompt_tokens"])
    return int(document["count"] if "count" in document else document["input_tokens"])


def tool(name: str, description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "string", "enum": [description]}}}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _calls(arguments: str, result: str) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": arguments}
    call = {"id": "call_1", "type": "function", "function": function}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [user("x"), asked, {"role": "tool", "tool_call_id": "call_1", "content": result}]


_COUNT, _INPUT = "/v1/messages/count_tokens", "/v1/responses/input_tokens"
FIELDS: Sequence[tuple[str, Callable[[str], Body]]] = (
    ("/tokenize", lambda t: {"messages": [user(t)]}),
    ("/tokenize", lambda t: {"messages": [{"role": "system", "content": t}, user("x")]}),
    ("/tokenize", lambda t: {"messages": [user("x"), {"role": "assistant", "content": t}]}),
    ("/tokenize", lambda t: {"messages": [{"role": "user", "name": t, "content": "x"}]}),
    (CHAT, lambda t: chat([{"type": "text", "text": c} for c in _halves(t)], max_tokens=0)),
    (CHAT, lambda t: {"messages": _calls(json.dumps({"a": t}), "x"), "max_tokens": 0}),
    (CHAT, lambda t: {"messages": _calls("{}", t), "max_tokens": 0}),
    (CHAT, lambda t: chat(tools=[tool("look", t)], max_tokens=0)),
    (CHAT, lambda t: chat(chat_template_kwargs={"a": t, "custom": [t]}, max_tokens=0)),
    (COMPLETIONS, lambda t: {"prompt": "x", "max_tokens": 0, "prediction": {"content": t}}),
    (_COUNT, lambda t: {"max_tokens": 1, "system": t, "messages": [user("x")]}),
    (_COUNT, lambda t: {"max_tokens": 1, "messages": [user([{"type": "text", "text": t}])]}),
    (_INPUT, lambda t: {"instructions": t, "input": "x"}),
    (_INPUT, lambda t: {"input": t}),
)  # fmt: skip
"""Routes that say how many tokens a prompt has, and a body with a text in each of its fields."""


def _halves(text: str) -> tuple[str, str]:
    """A text cut inside of its first spelling, if it holds one."""
    at = text.find("|") + 1 or len(text) // 2
    return text[:at], text[at:]
