"""What every route that speaks of messages does: one request, from its body to the answer.

A route says how its own API names things (`ChatRoute`); `respond` does the rest, for all of them
alike. What the answer looks like is the business of `events` and `openai.choices`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from copyahead.chat.prompt import ChatPrompt
from copyahead.errors import CopyaheadError
from copyahead.server.answers import json_response
from copyahead.server.engine_request import make_request
from copyahead.server.errors import api_error
from copyahead.server.generation import Generation
from copyahead.server.http.streaming import while_connected
from copyahead.server.service import Service
from copyahead.server.wire import CommonFields, budget, new_id

Body = TypeVar("Body", bound=CommonFields)
BodyRead = TypeVar("BodyRead", bound=CommonFields, covariant=True)
"""The body of an exchange, which is only read."""


@dataclass(frozen=True, slots=True)
class Exchange(Generic[BodyRead]):
    """One request that runs: all that its answer is made of."""

    service: Service
    prompt: ChatPrompt
    body: BodyRead
    generation: Generation
    names: Mapping[str, str]
    """Names of the engine's fields to those of the route, for this request."""


class Responder(Protocol):
    """Turns the chunks of a generation into what clients of a route read."""

    async def respond(self, http: HttpRequest, body: CommonFields) -> Response:
        """The answer, whole or as a stream, as `body` asks for."""
        ...


class ChatRoute(ABC, Generic[Body]):
    """One API's way of speaking about messages."""

    name: ClassVar[str]
    """In the log."""
    id_prefix: ClassVar[str]
    """What the ids of its answers begin with."""
    prompt_field: ClassVar[str]
    """The field that holds the messages."""
    field_names: ClassVar[Mapping[str, str]]
    """Names of the engine's fields and of the chat route's, to those of this route."""

    @abstractmethod
    def conversation(self, body: Body) -> dict[str, Any]:
        """The arguments of `chat.prompt.chat_prompt`; ApiError or RequestError names the field."""

    @abstractmethod
    def budget(self, body: Body) -> tuple[str, int | None]:
        """The field that limits the answer, and its value."""

    def options(self, body: Body) -> dict[str, Any]:
        """Further fields of `engine.request.Request`."""
        return {}

    @abstractmethod
    def answer(self, exchange: Exchange[Body]) -> Responder:
        """What makes the answer of an exchange."""


async def respond(
    route: ChatRoute[Body], service: Service, http: HttpRequest, body: Body, tenant: str
) -> Response:
    """Answer one request of `route`."""
    names = route.field_names
    try:
        prompt = await while_connected(http, service.chat_prompt(lambda: _read(route, body)))
        names = prompt.field_names(names)
        request = await make_request(
            service,
            body,
            prompt.tokens,
            tenant,
            prompt_field=route.prompt_field,
            stop=(*body.stops, *service.template.end_texts),
            sampling=body.sampling(default_temperature=1.0),
            max_tokens=budget(*route.budget(body)),
            **route.options(body),
            **prompt.constraint,
        )
        answer_id = new_id(route.id_prefix)
        generation = service.start([request], answer_id=answer_id, route=route.name)
        exchange = Exchange(service, prompt, body, generation, names)
        return await route.answer(exchange).respond(http, body)
    except CopyaheadError as error:
        raise api_error(error, names) from error


def _read(route: ChatRoute[Any], body: CommonFields) -> dict[str, Any]:
    body.check()
    return route.conversation(body)


async def count_tokens(
    route: ChatRoute[Any],
    service: Service,
    http: HttpRequest,
    body: CommonFields,
    head: Mapping[str, Any] | None = None,
) -> Response:
    """How many tokens the prompt of a request has, after what `head` says of the answer."""
    try:
        prompt = await while_connected(http, service.chat_prompt(lambda: _read(route, body)))
    except CopyaheadError as error:
        raise api_error(error, route.field_names) from error
    return json_response({**(head or {}), "input_tokens": len(prompt.tokens)})
