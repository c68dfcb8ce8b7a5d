"""From options to requests and servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from copyahead.cli.replay import report_problems
from copyahead.cli.terminal import output
from copyahead.errors import BackendError, ConfigError
from copyahead.evaluate.bench.asking import Ask, Target

if TYPE_CHECKING:
    from copyahead.cli.bench import BenchOptions
    from copyahead.traces.requests import RecordedRequest

_DEFAULT_TOKENS = 256
_LISTING_SECONDS = 30.0


def make_asks(options: BenchOptions) -> list[Ask]:
    """The requests of the traces, as they are to be sent. Raises ConfigError where there are none,
    or they cannot be sent as asked."""
    from copyahead.traces.formats.importers import read_traces
    from copyahead.traces.requests import requests_of

    traces = read_traces(options.trace)
    report_problems(traces)
    recorded = requests_of(traces)
    if options.recorded_times and not all(request.time for request in recorded):
        raise ConfigError(
            "recorded_times needs a trace with times, and this has none: leave it out"
        )
    recorded = recorded[: options.limit]
    if len(recorded) <= options.warm_up:
        raise ConfigError(
            f"warm_up takes {options.warm_up} requests, and there are {len(recorded)}: give a "
            "smaller number, or a longer trace"
        )
    _check_concurrency(options, recorded[options.warm_up :])
    convert = _converter(options)
    first = recorded[0].time
    return [
        Ask(
            number=number,
            session=request.session,
            max_tokens=options.max_tokens or request.num_written or _DEFAULT_TOKENS,
            at=(request.time - first) / options.speed,
            **convert(request),
        )
        for number, request in enumerate(recorded)
    ]


def _check_concurrency(options: BenchOptions, recorded: Sequence[RecordedRequest]) -> None:
    sessions = len({request.session for request in recorded})
    if sessions < options.concurrency and not options.recorded_times:
        output.remark(
            f"the trace has {sessions} sessions, so no more than {sessions} requests run at once: "
            "those of a session follow one another"
        )


def _converter(options: BenchOptions) -> Callable[[RecordedRequest], dict[str, Any]]:
    """Makes of a recorded request the fields of an `Ask` that say what is read."""
    from copyahead.traces.requests import as_text

    text_of_ids = _decoder(options.tokenizer)

    def convert(request: RecordedRequest) -> dict[str, Any]:
        if request.tokens:
            if options.send == "ids" or (options.send == "auto" and text_of_ids is None):
                return {"prompt": list(request.tokens)}
            if text_of_ids is None:
                raise ConfigError(
                    f"send {options.send} needs tokenizer for recorded token ids: name the model "
                    "that they belong to"
                )
            return _as(options.send, text_of_ids(request.tokens))
        if options.send == "ids":
            raise ConfigError(
                "send ids needs recorded token ids, and the trace has text: leave it out"
            )
        if request.messages and options.send in ("auto", "chat"):
            return {"messages": _wire(request.messages)}
        return _as(options.send, request.text or as_text(request.messages))

    return convert


def _as(send: str, text: str) -> dict[str, Any]:
    return (
        {"messages": ({"role": "user", "content": text},)} if send == "chat" else {"prompt": text}
    )


def _wire(messages: Sequence[Any]) -> tuple[dict[str, str], ...]:
    return tuple({"role": message.role, "content": message.text} for message in messages)


def _decoder(name: str | None) -> Callable[[Sequence[int]], str] | None:
    if name is None:
        return None
    from copyahead.traces.tokenizers import decode, find_tokenizer

    _, tokenizer = find_tokenizer(name)
    return lambda tokens: decode(tokenizer, tokens)


def find_target(url: str, model: str | None, api_key: str | None, timeout: float) -> Target:
    """The server at `url`. Raises ConfigError for what is no address, and BackendError where its
    models must be listed and cannot be."""
    base = _base(url)
    if model is not None:
        return Target(base, model, api_key or "")
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        reply = httpx.get(f"{base}/models", headers=headers, timeout=min(timeout, _LISTING_SECONDS))
        reply.raise_for_status()
        return Target(base, str(reply.json()["data"][0]["id"]), api_key or "")
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = "give --api-key" if status in (401, 403) else "name one with --model"
        raise BackendError(
            f"{base}/models answers {status}, so no model is known: {hint}"
        ) from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise BackendError(f"{base} cannot be reached ({reason}): is the server up?") from None
    except (ValueError, LookupError, TypeError):
        raise BackendError(f"{base}/models lists no model: name one with --model") from None


def _base(url: str) -> str:
    """The address up to and with `/v1`."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"url {url!r} is no address ({error}): give http://host:port") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError(f"url {url!r} is no address: give http://host:port")
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"
