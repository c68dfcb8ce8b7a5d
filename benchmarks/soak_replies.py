"""What the soak makes of a reply: done, busy, or wrong. And faults to plant, for its tests."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, NamedTuple

import httpx

BUSY = "server_busy"
"""The code of the one refusal that a valid request may get."""


class Reply(NamedTuple):
    """A reply, classified."""

    essence: Any = None
    """What must be the same every time; None where the reply is no whole answer."""
    fault: str | None = None
    """What should not have come; None where the server was busy, or the client left."""


def read_whole(status: int, text: str) -> Reply:
    """The reply to a valid request, not streamed."""
    try:
        document = json.loads(text)
        if status == 429 and document["error"]["code"] == BUSY:
            return Reply()
        if status != 200:
            return Reply(fault=f"status {status}: {text[:200]}")
        choices = [_choice(c.get("message") or c, c) for c in document["choices"]]
        return Reply(essence=(choices, _usage(document)))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return Reply(fault=f"no answer ({error!r}): {text[:200]}")


def read_broken(status: int, text: str, expected: int) -> Reply:
    """The reply to a request that has to be refused with the status `expected`, or unread.

    A stream that had to be kept alive while the request waited to be checked has its status
    already: then the refusal is its only frame.
    """
    try:
        frames = [frame for frame in text.split("\n\n") if frame and frame[0] != ":"]
        is_late = status == 200 and text[:1] == ":" and len(frames) == 1
        error = json.loads(frames[0].removeprefix("data: ") if is_late else text)["error"]
        if error.get("code") == BUSY and (status == 429 or is_late):
            return Reply()
        if status == expected and error["message"] and error["type"]:
            return Reply()
        if is_late and error["message"] and error["type"] == "invalid_request_error":
            return Reply()
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    return Reply(fault=f"a broken request got {status} instead of {expected}: {text[:200]}")


Allowed = tuple[int, str | None]
"""A status, and the code of its error; None for an answer, or any code."""
_LONGEST_REFUSAL = 2_000
"""Characters. A refusal names the field and the fix, and does not repeat the body."""


def read_attacked(status: int, text: str, allowed: Collection[Allowed]) -> Reply:
    """The reply to an attack: one that is `allowed`, and of its right form."""
    if status == 200 and (status, None) in allowed:
        whole = read_stream_end(text) if text.startswith((":", "data: ", "event: ")) else text
        try:
            document = json.loads(whole)
            if isinstance(document, dict) and document.get("error") is None:
                return Reply(essence=document)
        except ValueError:
            pass
        return Reply(fault=f"no answer: {text[:100]}")
    try:
        error = json.loads(text)["error"]
        is_refusal = error["message"] and error["type"] and len(text) <= _LONGEST_REFUSAL
        # Errors of Anthropic's API have no codes.
        codes = {code for at, code in allowed if at == status}
        if is_refusal and codes and ({error.get("code"), None} & codes or "code" not in error):
            return Reply(essence=error)
    except (ValueError, LookupError, TypeError):
        pass
    # No answer twice has the same id, and faults are counted once where they are the same.
    shown = "an answer" if status == 200 else text[:300]
    return Reply(fault=f"an attack got {status}: {shown}")


def read_stream_end(text: str) -> str:
    """The last document of a stream."""
    frames = [line.removeprefix("data: ") for line in text.split("\n") if line[:6] == "data: "]
    return next((frame for frame in reversed(frames) if frame != "[DONE]"), "")


def read_stream(status: int, text: str, *, left: bool = False) -> Reply:
    """The reply to a valid request that was streamed with its usage. `left`: the client left
    before its end."""
    if status != 200:
        return read_whole(status, text)
    try:
        return _read_frames(text.split("\n\n")[:-1], left)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return Reply(fault=f"no stream ({error!r}): {text[-200:]}")


def _read_frames(frames: list[str], left: bool) -> Reply:
    choices: dict[int, dict[str, Any]] = {}
    usage, is_done = None, False
    for place, frame in enumerate(frames):
        if frame.startswith(":"):
            continue
        if is_done or not frame.startswith("data: "):
            return Reply(fault=f"a frame that does not belong there: {frame[:200]}")
        if frame == "data: [DONE]":
            is_done = True
            continue
        document = json.loads(frame.removeprefix("data: "))
        if "error" in document:
            if document["error"]["code"] == BUSY and place == len(frames) - 1:
                return Reply()
            return Reply(fault=f"an error in a stream: {frame[:200]}")
        for choice in document["choices"]:
            _extend(choices.setdefault(choice["index"], _nothing()), choice)
        usage = _usage(document) if document.get("usage") else usage
    if left and not is_done:
        return Reply()
    unfinished = [index for index, choice in choices.items() if choice["finish_reason"] is None]
    if not is_done or unfinished or not choices or usage is None:
        return Reply(fault=f"a stream ended early: {frames[-1][:200] if frames else 'empty'}")
    return Reply(essence=([_choice(choices[i], choices[i]) for i in sorted(choices)], usage))


def _nothing() -> dict[str, Any]:
    return {"content": "", "tool_calls": [], "finish_reason": None, "logprobs": None}


def _extend(whole: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice.get("delta") or choice
    whole["content"] += delta.get("content") or delta.get("text") or ""
    for call in delta.get("tool_calls") or ():
        if "id" in call:
            whole["tool_calls"].append({"function": dict(call["function"])})
        else:
            function = whole["tool_calls"][call["index"]]["function"]
            function["arguments"] += call["function"]["arguments"]
    if choice.get("logprobs"):
        whole["logprobs"] = whole["logprobs"] or {}
        for name, values in choice["logprobs"].items():
            whole["logprobs"][name] = [*whole["logprobs"].get(name, ()), *(values or ())]
    if choice["finish_reason"]:
        if whole["finish_reason"]:
            raise ValueError("a choice ended twice")
        whole["finish_reason"] = choice["finish_reason"]


def _choice(message: Any, choice: Any) -> tuple[Any, ...]:
    """Its text, its calls, its log-probabilities, and why it ended."""
    calls = tuple(
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    )
    text = message.get("content") or message.get("text") or ""
    logprobs = choice.get("logprobs") or {}
    likely = [(entry["token"], entry["logprob"]) for entry in logprobs.get("content") or ()]
    likely += zip(logprobs.get("tokens") or (), logprobs.get("token_logprobs") or (), strict=True)
    return (text.strip() if calls else text, calls, likely, choice["finish_reason"])


def _usage(document: Any) -> tuple[int, int]:
    return document["usage"]["prompt_tokens"], document["usage"]["completion_tokens"]


# Faults


class Planting(httpx.AsyncBaseTransport):
    """Spoils replies on their way, so that a test can see the soak notice it."""

    KINDS = (
        "error-frame", "status", "text", "logprob", "usage", "cut", "twice", "refusal", "later",
        "slots", "cells", "history_rows", "memory",
    )  # fmt: skip

    def __init__(self, kind: str) -> None:
        """`kind`: one of `KINDS`."""
        self.phase = "alone"
        """Then `storm`, and `again`. Nothing is spoilt while each is alone."""
        self._kind = kind
        self._inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))
        self._count = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The inner transport's reply, or what becomes of it."""
        response = await self._inner.handle_async_request(request)
        is_due = self.phase == ("again" if self._kind == "later" else "storm")
        is_page = request.url.path == "/metrics"
        if is_page != (self._kind in ("slots", "cells", "history_rows", "memory")):
            return response
        if not (is_due or is_page) or (self._kind != "refusal" and response.status_code != 200):
            return response
        self._count += 1
        text = (await response.aread()).decode()
        await response.aclose()
        status, text = self._spoilt(response.status_code, text)
        return httpx.Response(status, content=text.encode(), request=request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    def _spoilt(self, status: int, text: str) -> tuple[int, str]:
        kind, frame = self._kind, 'data: {"error": {"message": "x", "code": "generation_failed"}}'
        if kind == "status":
            return 500, '{"error": {"message": "x", "code": "internal_error"}}'
        if kind == "refusal":
            return (200, "{}") if status in (400, 404) else (status, text)
        if kind == "memory":
            return status, f"process_resident_memory_bytes{{}} {self._count * 10**9}\n"
        if kind in ("slots", "cells", "history_rows"):
            return status, text.replace(
                f"copyahead:{kind}_held{{", f'copyahead:{kind}_held{{x="1",'
            ).replace('x="1",model_name="copyahead"} 0.0', 'model_name="copyahead"} 1.0')
        if kind in ("text", "later"):
            return status, text.replace('"finish_reason":"length"', '"finish_reason":"stop"')
        if kind == "logprob":
            return status, text.replace('"logprob":-', '"logprob":-1')
        if kind == "usage":
            return status, text.replace('"completion_tokens":', '"completion_tokens":1')
        if kind == "cut":
            return status, text.replace("data: [DONE]\n\n", "")
        if kind == "twice":
            return status, text.replace("data: [DONE]\n\n", "data: [DONE]\n\ndata: [DONE]\n\n")
        return status, text.replace("data: [DONE]", frame)
