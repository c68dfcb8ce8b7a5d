"""One request to an OpenAI-compatible server, and what came of it.

Tokens are counted by the server's own `usage`, never by chunks: a chunk may hold several tokens, or
none. Every fault becomes a kind of error and not an exception.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

MAX_BODY = 1 << 24
"""Bytes of the longest event, or of an answer in one piece."""
_MAX_DETAIL = 200
"""Characters of a server's error that are kept."""
_AFTER_DONE_SECONDS = 1.0
"""How long a connection may stay open after the last event."""
_BUSY = frozenset({429, 503})
_CONTENT = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call")


class Target(msgspec.Struct, frozen=True):
    """A server."""

    url: str
    """Up to and with `/v1`."""
    model: str
    api_key: str = ""


class Ask(msgspec.Struct, frozen=True):
    """A request. Exactly one of `messages` and `prompt` is there."""

    number: int
    """Its place in the trace, by which answers of two servers are compared."""
    session: str
    max_tokens: int
    messages: tuple[Mapping[str, str], ...] = ()
    prompt: str | list[int] = ""
    at: float = 0.0
    """Seconds after the first request at which it is sent, where recorded times are kept."""


class Answer(msgspec.Struct):
    """What came of it. Seconds count from when it was last sent."""

    number: int
    error: str | None = None
    """What kind of error it ended with; None where it is whole."""
    detail: str = ""
    """What the server, or the network, said of the error."""
    first: float | None = None
    """Seconds to the first text; None where none came."""
    last: float | None = None
    """Seconds to the last text."""
    total: float = 0.0
    """Seconds to the end."""
    prompt_tokens: int | None = None
    """None where the server sends no usage."""
    output_tokens: int | None = None
    refusals: int = 0
    """How often the server said to come back later before it took the request."""


class Options(msgspec.Struct, frozen=True):
    """How requests are made."""

    temperature: float = 0.0
    timeout: float = 120.0
    """Most seconds without a new piece of the answer."""
    retries: int = 3
    """How often a request is sent again when the server says when to come back."""


class _FaultError(Exception):
    """Ends an answer."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(kind)
        self.kind, self.detail = kind, detail


async def ask(client: httpx.AsyncClient, target: Target, request: Ask, options: Options) -> Answer:
    """Send `request` and read its answer. What goes wrong is in the answer's `error`."""
    answer = Answer(request.number)
    while True:
        began = time.perf_counter()
        try:
            wait = await _attempt(client, target, request, options, answer, began)
        except _FaultError as fault:
            answer.error, answer.detail = fault.kind, fault.detail[:_MAX_DETAIL]
            wait = None
        except TimeoutError:
            answer.error = "timeout"
            answer.detail = f"nothing came for {options.timeout:g} seconds"
            wait = None
        except httpx.ConnectError as error:
            answer.error, answer.detail, wait = "cannot connect", str(error), None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            answer.error, wait = "cut off", None
            answer.detail = str(error) or type(error).__name__
        answer.total = answer.total or time.perf_counter() - began
        if wait is None:
            return answer
        answer.refusals += 1
        answer.total = 0.0
        await asyncio.sleep(wait)


async def _attempt(
    client: httpx.AsyncClient,
    target: Target,
    request: Ask,
    options: Options,
    answer: Answer,
    began: float,
) -> float | None:
    """Fill `answer`; or the seconds after which to send the request again."""
    loop = asyncio.get_running_loop()
    route = "/chat/completions" if request.messages else "/completions"
    reading = _Reading(answer, began)
    try:
        async with asyncio.timeout(options.timeout) as limit:
            sending = client.stream(
                "POST",
                target.url + route,
                headers={"authorization": f"Bearer {target.api_key}"} if target.api_key else {},
                json=_body(target, request, options),
            )
            async with sending as response:
                if response.status_code != 200:
                    return await _refused(response, answer, options)
                if "event-stream" not in response.headers.get("content-type", ""):
                    reading.whole(await _read(response))
                    return None
                async for event in _events(response):
                    if reading.event(event):
                        limit.reschedule(loop.time() + options.timeout)
                    elif reading.is_done:
                        # Read to the end, or the connection could not be used again.
                        limit.reschedule(loop.time() + _AFTER_DONE_SECONDS)
    except TimeoutError:
        if not reading.is_done:
            raise
    reading.finish()
    return None


def _body(target: Target, request: Ask, options: Options) -> dict[str, Any]:
    asked = {"messages": request.messages} if request.messages else {"prompt": request.prompt}
    return {
        "model": target.model,
        **asked,
        "max_tokens": request.max_tokens,
        "temperature": options.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


class _Reading:
    """Takes an answer's events."""

    def __init__(self, answer: Answer, began: float) -> None:
        self._answer, self._began = answer, began
        self._finished = False
        self.is_done = False

    def event(self, data: bytes) -> bool:
        """Whether the event brought a piece of the answer."""
        if data == b"[DONE]":
            self.is_done = True
            self._answer.total = time.perf_counter() - self._began
            return False
        event = _decoded(data)
        if event.get("error") is not None:
            raise _FaultError("error in the stream", _message(event))
        self._usage(event)
        brought = False
        for choice in event.get("choices") or ():
            if not isinstance(choice, dict):
                raise _FaultError("not understood", "a choice is no object")
            delta = choice.get("delta") or {}
            brought |= bool(choice.get("text")) or any(delta.get(name) for name in _CONTENT)
            self._finished |= choice.get("finish_reason") is not None
        if brought:
            self._answer.last = time.perf_counter() - self._began
            if self._answer.first is None:
                self._answer.first = self._answer.last
        return brought

    def whole(self, data: bytes) -> None:
        """The answer in one piece, from a server that does not stream."""
        event = _decoded(data)
        if event.get("error") is not None or not event.get("choices"):
            raise _FaultError("not understood", _message(event))
        self._usage(event)
        self._answer.first = self._answer.last = time.perf_counter() - self._began

    def finish(self) -> None:
        """The stream has ended; was that its end?"""
        if not (self.is_done or self._finished):
            raise _FaultError("cut off", "the stream ended without a finish_reason or [DONE]")

    def _usage(self, event: Mapping[str, Any]) -> None:
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._answer.prompt_tokens = _count(usage.get("prompt_tokens"))
            self._answer.output_tokens = _count(usage.get("completion_tokens"))


async def _refused(response: httpx.Response, answer: Answer, options: Options) -> float | None:
    """The seconds after which the server wants to be asked again; raises where it does not."""
    status, body = response.status_code, await _read(response)
    after = _seconds(response.headers.get("retry-after", ""))
    if status in _BUSY and after is not None and answer.refusals < options.retries:
        return min(after, options.timeout)
    try:
        detail = _message(_decoded(body))
    except _FaultError:
        detail = body[:_MAX_DETAIL].decode("utf-8", "replace")
    raise _FaultError(f"HTTP {status}", detail)


async def _read(response: httpx.Response) -> bytes:
    """The whole body, or as much of it as is held."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            break
    return b"".join(parts)


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each event. Lines end with a line feed only: JSON may hold other breaks."""
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > MAX_BODY:
            raise _FaultError("not understood", f"an event is longer than {MAX_BODY} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
    if rest.startswith(b"data:"):
        yield rest[5:].strip()


def _decoded(data: bytes) -> dict[str, Any]:
    try:
        event = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        event = None
    if not isinstance(event, dict):
        shown = data[:_MAX_DETAIL].decode("utf-8", "replace")
        raise _FaultError("not understood", f"not a JSON object: {shown!r}")
    return event


def _message(event: Mapping[str, Any]) -> str:
    error = event.get("error", event)
    found = error.get("message") if isinstance(error, dict) else error
    return str(found if found is not None else error)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _seconds(after: str) -> float | None:
    """Of a `Retry-After`: seconds, or a date; None where it says neither."""
    if after.strip().isdigit():
        return float(after)
    try:
        return max(0.0, parsedate_to_datetime(after).timestamp() - time.time())
    except ValueError:
        return None
