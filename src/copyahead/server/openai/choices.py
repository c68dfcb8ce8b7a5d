"""Answers as OpenAI's completions have them: a document with `choices`, or chunks with one each.

What a choice looks like is the route's; how choices are collected, streamed and counted is here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead._version import __version__
from copyahead.engine.origin import Stretch
from copyahead.engine.request import Chunk
from copyahead.engine.text import Run
from copyahead.server.answers import answer_stream, answer_whole
from copyahead.server.errors import api_error
from copyahead.server.generation import Generation
from copyahead.server.http.streaming import DONE, frame
from copyahead.server.service import Service
from copyahead.server.usage import timings, usage
from copyahead.server.wire import CommonFields, now

FINGERPRINT = f"copyahead-{__version__}"


class ChoiceWriter(Protocol):
    """Takes the chunks of one choice, and writes them as its route shows a choice."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of its thinking."""
        ...

    def push(self, chunk: Chunk) -> list[dict[str, Any]]:
        """What `chunk` adds, as the `choices` entries of a stream, one a frame."""
        ...

    def whole(self) -> dict[str, Any]:
        """The entry of `choices` in a document, once every chunk has been pushed."""
        ...


class ChoicesAnswer:
    """All choices of one request."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        choices: Sequence[ChoiceWriter],
        *,
        kinds: tuple[str, str],
        renames: Mapping[str, str],
    ) -> None:
        """`kinds`: what `object` is in a document, and in a chunk. `renames`: names of the
        engine's fields to those of the route."""
        self._service, self._generation, self._choices = service, generation, choices
        self._kinds, self._renames = kinds, renames

    async def respond(self, http: HttpRequest, body: CommonFields) -> Response:
        """The answer in the way that `body` asks for."""
        if not body.stream:
            return await answer_whole(http, self._generation, self._document())
        with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        return await answer_stream(
            http, self._service, self._generation, self._guarded(self._frames(with_usage))
        )

    async def _document(self) -> dict[str, Any]:
        async for index, chunk in self._generation:
            self._choices[index].push(chunk)
        choices = [choice.whole() for choice in self._choices]
        return {**self._head(self._kinds[0]), "choices": choices, **self._counts()}

    async def _frames(self, with_usage: bool) -> AsyncGenerator[bytes]:
        head = self._head(self._kinds[1])
        num_open = len(self._choices)
        async for index, chunk in self._generation:
            num_open -= chunk.finish_reason is not None
            entries = self._choices[index].push(chunk)
            last: dict[str, Any] = {}
            if num_open == 0 and not with_usage:
                last = {"timings": timings(self._generation.stats)}
            every = {"usage": None} if with_usage else {}
            for place, entry in enumerate(entries, start=1):
                more = last if place == len(entries) else {}
                yield frame({**head, "choices": [entry], **every, **more})
        if with_usage:
            yield frame({**head, "choices": [], **self._counts()})
        yield DONE

    async def _guarded(self, frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """`frames`; a fault becomes a last frame with an error object, and nothing follows it."""
        try:
            async for data in frames:
                yield data
        except Exception as error:
            fault = api_error(error, self._renames)
            self._service.report(error, fault)
            yield frame(fault.body())

    def _counts(self) -> dict[str, Any]:
        stats = self._generation.stats
        thought = sum(choice.num_reasoning_tokens for choice in self._choices)
        return {"usage": usage(stats, thought), "timings": timings(stats)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._generation.id,
            "object": kind,
            "created": now(),
            "model": self._service.options.model_name,
            "system_fingerprint": FINGERPRINT,
        }


def copied_runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The field `copied`: the text in runs, each with whether its tokens were copied."""
    merged: list[dict[str, Any]] = []
    for text, copied in runs:
        if merged and merged[-1]["copied"] == copied:
            merged[-1]["text"] += text
        else:
            merged.append({"text": text, "copied": copied})
    return merged


def sources(stretches: Sequence[Stretch]) -> dict[str, Any]:
    """The field `copyahead`: the text in runs, each with its source and what is known of its
    round."""
    return {
        "runs": [
            {
                "text": part.text,
                "source": None if part.source is None else str(part.source),
                "match": part.match_length,
                "drafted": part.num_draft_tokens,
                "accepted": part.num_accepted_tokens,
            }
            for part in stretches
        ]
    }
