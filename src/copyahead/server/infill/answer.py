"""The reply to `POST /infill` in the words of llama.cpp's `/completion`, whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.engine.request import Chunk, Request
from copyahead.engine.text import Run
from copyahead.server.answers import answer_stream, answer_whole
from copyahead.server.errors import api_error
from copyahead.server.generation import Generation
from copyahead.server.http.streaming import frame
from copyahead.server.infill.ending import Ending
from copyahead.server.infill.wire import InfillRequest
from copyahead.server.openai.choices import copied_runs
from copyahead.server.service import Service
from copyahead.server.usage import timings
from copyahead.types import FinishReason, Token

_NO_SLOT = -1
"""As clients say that any slot will do: which one it was is no business of theirs."""


class InfillAnswer:
    """Takes the chunks of one completion, and writes them as plugins of editors read them."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        body: InfillRequest,
        *,
        truncated: bool,
        names: dict[str, str],
    ) -> None:
        """`truncated`: the prompt lacks some of the file. `names`: of the engine's fields to those
        of the route."""
        self._service, self._generation, self._body = service, generation, body
        self._request: Request = generation.requests[0]
        self._only_reads = body.max_answer == 0
        self._truncated, self._names = truncated, names
        limit = body.t_max_predict_ms
        self._ending = Ending(
            min_indent=body.n_indent or 0,
            max_seconds=limit / 1000 if limit is not None and limit > 0 else None,
        )
        self._text = ""
        self._num_written = 0
        """Characters of the model's, shown or not."""
        self._tokens: list[Token] = []
        self._unsent: list[Token] = []
        """Of a character that has not been shown yet."""
        self._runs: list[Run] = []
        self._reason: FinishReason | None = None

    async def respond(self, http: HttpRequest) -> Response:
        """The answer in the way that the body asks for."""
        if self._body.stream:
            return await answer_stream(http, self._service, self._generation, self._guarded())
        return await answer_whole(http, self._generation, self._document())

    async def _document(self) -> dict[str, Any]:
        async for _, chunk in self._generation:
            self._push(chunk)
            if self._ending.ended:
                self._generation.end(FinishReason.LENGTH)
                break
        self._text += self._ending.rest()
        return self._only_asked(self._end(self._text, self._tokens))

    async def _frames(self) -> AsyncGenerator[bytes]:
        async for _, chunk in self._generation:
            text = self._push(chunk)
            if self._ending.ended or chunk.finish_reason is not None:
                text += self._ending.rest()
                self._text = ""
            if text and not self._only_reads:
                yield frame(self._part(text, chunk))
            if self._ending.ended:
                self._generation.end(FinishReason.LENGTH)
                break
        yield frame(self._only_asked(self._end("", [])))

    async def _guarded(self) -> AsyncGenerator[bytes]:
        """The frames; a fault becomes a last one, and nothing follows it."""
        try:
            async for data in self._frames():
                yield data
        except Exception as error:
            fault = api_error(error, self._names)
            self._service.report(error, fault)
            yield frame(fault.body())

    def _push(self, chunk: Chunk) -> str:
        """What `chunk` adds to the text that is shown."""
        if chunk.finish_reason is not None:
            self._reason = chunk.finish_reason
        if self._only_reads:
            return ""
        self._tokens += chunk.tokens
        self._unsent += chunk.tokens
        self._runs += chunk.pieces
        self._num_written += len(chunk.text)
        text = self._ending.push(chunk.text)
        self._text += text
        return text

    def _part(self, text: str, chunk: Chunk) -> dict[str, Any]:
        tokens, self._unsent = self._unsent, []
        part = {
            "index": 0,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": _NO_SLOT,
            "tokens_predicted": len(self._tokens),
            "tokens_evaluated": len(self._request.prompt),
        }
        if self._body.include_copied:
            part["copied"] = copied_runs(chunk.pieces)
        return part

    def _end(self, text: str, tokens: Sequence[Token]) -> dict[str, Any]:
        """The whole reply, or the last frame of a stream."""
        kind, word = self._stop()
        stats = self._generation.stats
        num_prompt = len(self._request.prompt)
        is_full = num_prompt + len(self._tokens) >= self._service.capabilities.context_size
        reply = {
            "index": 0,
            "content": text,
            "tokens": list(tokens),
            "id_slot": _NO_SLOT,
            "stop": True,
            "model": self._service.options.model_name,
            "tokens_predicted": len(self._tokens),
            "tokens_evaluated": num_prompt,
            "generation_settings": self._settings(),
            "has_new_line": self._ending.has_new_line,
            "truncated": self._truncated or is_full,
            "stop_type": kind,
            "stopping_word": word,
            "tokens_cached": num_prompt + len(self._tokens),
            "timings": self._timings(timings(stats)),
        }
        if self._body.include_copied:
            reply["copied"] = copied_runs(self._runs)
        return reply

    def _stop(self) -> tuple[str, str]:
        """Why it ended, and the stop string that ended it: the one that its tokens go on with."""
        if self._ending.ended or self._only_reads or self._reason is not FinishReason.STOP:
            return "limit", ""
        rest = self._service.text(self._tokens)[self._num_written :]
        word = next((each for each in self._body.stops if rest.startswith(each)), "")
        return ("word", word) if word else ("eos", "")

    def _timings(self, found: dict[str, Any]) -> dict[str, Any]:
        """With what plugins read besides; a prompt that was only read has written nothing."""
        if self._only_reads:
            found |= {"predicted_n": 0, "predicted_ms": 0.0, "predicted_per_second": 0.0}
        for kind in ("prompt", "predicted"):
            count = found[f"{kind}_n"]
            each = found[f"{kind}_ms"] / count if count else 0.0
            found[f"{kind}_per_token_ms"] = round(each, 3)
        return found

    def _settings(self) -> dict[str, Any]:
        sampling, most = self._request.sampling, self._body.max_answer
        return {
            "n_predict": -1 if most is None else most,
            "n_ctx": self._service.capabilities.context_size,
            "seed": sampling.seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "typical_p": sampling.typical_p,
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "stop": list(self._request.stop),
            "stream": bool(self._body.stream),
        }

    def _only_asked(self, reply: dict[str, Any]) -> dict[str, Any]:
        """The fields that the body names, by the names that it gives them; all where it names
        none."""
        asked = self._body.response_fields
        return reply if not asked else dict(_found(reply, asked))


def _found(reply: dict[str, Any], paths: Sequence[str]) -> list[tuple[str, Any]]:
    found = []
    for path in paths:
        value: Any = reply
        for name in path.split("/"):
            value = value.get(name, _MISSING) if isinstance(value, dict) else _MISSING
        if value is not _MISSING:
            found.append((path, value))
    return found


_MISSING = object()
