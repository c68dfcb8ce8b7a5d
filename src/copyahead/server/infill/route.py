"""`POST /infill`: one completion of the text between two others."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.contracts import FimTokens
from copyahead.engine.request import Request
from copyahead.errors import CopyaheadError
from copyahead.server.constraints import constraint_of
from copyahead.server.engine_request import make_request
from copyahead.server.errors import ApiError, api_error
from copyahead.server.http.streaming import while_connected
from copyahead.server.http.work import check_wanted
from copyahead.server.infill.answer import InfillAnswer
from copyahead.server.infill.gap import Gap, GapPrompt, GapWriter
from copyahead.server.infill.wire import InfillRequest
from copyahead.server.service import Service
from copyahead.server.wire import RENAMES, new_id

_RESERVED = 256
"""Tokens that are left for an answer without a limit, where the context has room for as many."""


async def infill(service: Service, http: HttpRequest, body: InfillRequest, tenant: str) -> Response:
    """Answer one request for a completion."""
    field = constraint_of(body, "response_format", None).field
    names = {**RENAMES, "prompt": "input_prefix", "grammar": field, "json_schema": field}
    if body.repeat_penalty is not None:
        names["repetition_penalty"] = "repeat_penalty"
    try:
        body.check()
        writer = gap_writer(service)
        prompt = await while_connected(http, service.work.run(_prompt, service, writer, body))
        request = await while_connected(http, _request(service, body, prompt, tenant))
        generation = service.start([request], answer_id=new_id("infill-"), route="infill")
        answer = InfillAnswer(service, generation, body, truncated=prompt.truncated, names=names)
        return await answer.respond(http)
    except CopyaheadError as error:
        raise api_error(error, names) from error


def gap_writer(service: Service, *, param: str | None = None) -> GapWriter:
    """What makes prompts of gaps; ApiError, naming `param`, where the model cannot fill any."""
    fim = service.tokenizer.fim
    if fim is None:
        otherwise = "" if param is None else f", or leave {param} out"
        raise ApiError(
            f"{service.options.model_name} was not taught to fill gaps (it has no tokens for the "
            f"text before, behind and inside one): serve a model that was{otherwise}",
            status=501 if param is None else 400,
            code="unsupported_model",
            param=param,
        )
    limit = service.text_limit
    return GapWriter(service.tokenizer, fim, token_bytes=limit.token_bytes, check=check_wanted)


def with_ends(service: Service, request: Request) -> Request:
    """`request`, which also ends where the model begins another file."""
    fim: FimTokens | None = service.tokenizer.fim
    if fim is None or request.ignore_eos:
        return request
    ends = (*request.stop_token_ids, *sorted(fim.ends))
    return msgspec.structs.replace(request, stop_token_ids=ends)


def _prompt(service: Service, writer: GapWriter, body: InfillRequest) -> GapPrompt:
    files = [(each.filename or "tmp", each.text) for each in body.input_extra or ()]
    gap = Gap(before=body.input_prefix + (body.prompt or ""), behind=body.input_suffix, files=files)
    return writer.prompt(gap, _room(service, body.max_answer))


def _room(service: Service, num_answer: int | None) -> int:
    """Tokens that the prompt may have beside an answer, which gets half of the context at most."""
    size = service.capabilities.context_size
    wanted = _RESERVED if num_answer is None else num_answer
    room = size - 1 - min(wanted, size // 2)
    most = service.limits.max_prompt_tokens
    return room if most is None else min(room, most)


async def _request(
    service: Service, body: InfillRequest, prompt: GapPrompt, tenant: str
) -> Request:
    constraint = constraint_of(body, "response_format", None)
    most = body.max_answer
    request = await make_request(
        service,
        body,
        prompt.tokens,
        tenant,
        prompt_field="input_prefix",
        sampling=body.chosen(),
        # A pass over the prompt gives a token; where only that pass was wanted, it is not shown.
        max_tokens=1 if most == 0 else most,
        stop=body.stops,
        **constraint.for_engine(),
    )
    return with_ends(service, request)
