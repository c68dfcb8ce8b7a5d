"""The application: its routes, its layers, and how it starts and stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.responses import Response

from copyahead._version import __version__
from copyahead.server import tokens
from copyahead.server.answers import json_response
from copyahead.server.anthropic.messages import MessagesRoute
from copyahead.server.anthropic.messages_input import CountTokensRequest, MessagesRequest
from copyahead.server.errors import MESSAGES_PATH, ApiError, ClientGone, api_error
from copyahead.server.http.auth import METRICS_PATH, OPEN_PATHS, ApiKeys, HostCheck, KeyCheck
from copyahead.server.http.limits import BodyLimit
from copyahead.server.http.receiving import BodyRoute
from copyahead.server.infill.route import infill
from copyahead.server.infill.wire import InfillRequest
from copyahead.server.metrics import CONTENT_TYPE
from copyahead.server.openai.chat import ChatCompletionsRoute
from copyahead.server.openai.completions import completions
from copyahead.server.openai.responses import INPUT_TOKENS, ResponsesRoute
from copyahead.server.openai.responses_input import ResponsesRequest
from copyahead.server.openai.wire import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from copyahead.server.page.files import PageFile, add_page, page_files
from copyahead.server.route import count_tokens, respond
from copyahead.server.service import Service
from copyahead.server.wire import RENAMES, now

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is wrong; `param` names the field."},
    401: {"description": "No valid API key."},
    413: {"description": "The body is too large."},
    429: {"description": "Too many requests; see `Retry-After`."},
}


_KEY_ERRORS: dict[int | str, dict[str, Any]] = {401: _ERRORS[401]}


def make_app(service: Service, *, is_local: bool = False) -> FastAPI:
    """The application over `service`, which it closes when it ends. `is_local`: it can be reached
    from this machine only."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="copyahead",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.router.route_class = BodyRoute
    app.state.work = service.work
    app.state.text_limit = service.text_limit
    _add_generation(app, service)
    _add_other_shapes(app, service)
    _add_tokens(app, service)
    _add_status(app, service)
    files = page_files() if service.options.ui else {}
    _add_front(app, files)
    _add_handlers(app, service)
    _add_layers(app, service, is_local, files)
    return app


def tenant_of(http: HttpRequest) -> str:
    """Whose request it is, as the key check left it."""
    return str(http.scope.get("state", {}).get("tenant", ""))


def _add_generation(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions", responses=_ERRORS, response_class=Response)
    async def chat_completions(body: ChatRequest, http: HttpRequest) -> Response:
        return await respond(ChatCompletionsRoute(), service, http, body, tenant_of(http))

    @app.post("/v1/completions", responses=_ERRORS, response_class=Response)
    async def text_completions(body: CompletionRequest, http: HttpRequest) -> Response:
        return await completions(service, http, body, tenant_of(http))

    @app.post("/infill", responses=_ERRORS, response_class=Response)
    async def fill_gap(body: InfillRequest, http: HttpRequest) -> Response:
        return await infill(service, http, body, tenant_of(http))


def _add_other_shapes(app: FastAPI, service: Service) -> None:
    @app.post("/v1/responses", responses=_ERRORS, response_class=Response)
    async def create_response(body: ResponsesRequest, http: HttpRequest) -> Response:
        return await respond(ResponsesRoute(), service, http, body, tenant_of(http))

    @app.post("/v1/responses/input_tokens", responses=_ERRORS, response_class=Response)
    async def count_input_tokens(body: ResponsesRequest, http: HttpRequest) -> Response:
        return await count_tokens(ResponsesRoute(), service, http, body, INPUT_TOKENS)

    @app.post("/v1/messages", responses=_ERRORS, response_class=Response)
    async def create_message(body: MessagesRequest, http: HttpRequest) -> Response:
        return await respond(MessagesRoute(), service, http, body, tenant_of(http))

    @app.post("/v1/messages/count_tokens", responses=_ERRORS, response_class=Response)
    async def count_message_tokens(body: CountTokensRequest, http: HttpRequest) -> Response:
        return await count_tokens(MessagesRoute(), service, http, body)


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize", responses=_ERRORS, response_class=Response)
    async def tokenize(body: TokenizeRequest, http: HttpRequest) -> Response:
        return await tokens.tokenize(service, http, body)

    @app.post("/detokenize", responses=_ERRORS, response_class=Response)
    async def detokenize(body: DetokenizeRequest, http: HttpRequest) -> Response:
        return await tokens.detokenize(service, http, body)


def _add_status(app: FastAPI, service: Service) -> None:
    started = now()

    name = service.options.model_name
    since = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    anthropic = {"type": "model", "id": name, "display_name": name, "created_at": since}

    def model() -> dict[str, Any]:
        return {**service.describe(), "created": started}

    @app.get("/v1/models", response_class=Response)
    async def models() -> Response:
        # Clients of both APIs ask for this; each reads its own names.
        pages = {"has_more": False, "first_id": name, "last_id": name}
        return json_response({"object": "list", "data": [{**anthropic, **model()}], **pages})

    @app.get("/v1/models/{name:path}", response_class=Response)
    async def one_model(name: str, http: HttpRequest) -> Response:
        if name != service.options.model_name:
            raise ApiError(
                f"there is no model of this name, only {service.options.model_name}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return json_response(anthropic if _is_anthropics(http) else model())

    @app.get("/tokenizer_info", response_class=Response)
    async def tokenizer_info() -> Response:
        return tokens.tokenizer_info(service)

    @app.get("/props", response_class=Response)
    async def props() -> Response:
        return json_response(service.properties())

    @app.get("/copyahead/status", responses=_KEY_ERRORS, response_class=Response)
    async def status(http: HttpRequest) -> Response:
        return json_response(service.status(tenant_of(http)), headers={"cache-control": "no-store"})

    @app.head("/health", include_in_schema=False)
    @app.get("/health", response_class=Response)
    async def health() -> Response:
        if service.engine.failure is not None:
            return json_response({"status": "failed"}, status=503)
        if not service.engine.running:
            return json_response({"status": "stopped"}, status=503)
        return json_response({"status": "ok"})

    @app.get(METRICS_PATH, response_class=Response)
    async def metrics() -> Response:
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)


def _add_front(app: FastAPI, files: dict[str, PageFile]) -> None:
    """The page, or in its place the server's name."""
    if files:
        add_page(app, files)
        return

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return json_response({"name": "copyahead"})


def _add_handlers(app: FastAPI, service: Service) -> None:
    async def failed(http: HttpRequest, error: Exception) -> Response:
        if isinstance(error, ClientGone):
            return Response(status_code=499)
        fault = _fault(error)
        service.report(error, fault)
        path = MESSAGES_PATH if _is_anthropics(http) else http.url.path
        return json_response(fault.body(path), status=fault.status, headers=fault.headers)

    for kind in (Exception, HTTPException):
        app.add_exception_handler(kind, failed)
    # Starlette sends what falls to the handler of `Exception` twice: as an answer, and as an
    # exception to the server's log. What is raised on purpose must not take that way.
    for kind in _expected():
        app.add_exception_handler(kind, failed)


def _is_anthropics(http: HttpRequest) -> bool:
    """Whether a client of Anthropic's asks for what both APIs have."""
    return http.url.path.startswith("/v1/models") and "anthropic-version" in http.headers


def _expected() -> list[type[Exception]]:
    from copyahead.errors import CopyaheadError

    return [ClientGone, CopyaheadError, UnicodeEncodeError]


def _fault(error: Exception) -> ApiError:
    if isinstance(error, HTTPException):
        message = str(error.detail).lower() or "the request cannot be served"
        return ApiError(message, status=error.status_code, headers=error.headers)
    return api_error(error, RENAMES)


def _add_layers(app: FastAPI, service: Service, is_local: bool, files: dict[str, PageFile]) -> None:
    """From the inside out: the body's limit, the key, the host, CORS."""
    options = service.options
    app.add_middleware(BodyLimit, limits=service.limits, text_limit=service.text_limit)
    app.add_middleware(
        KeyCheck,
        keys=ApiKeys(options.api_keys),
        metrics_key=options.metrics_key,
        open_paths=OPEN_PATHS | files.keys(),
    )
    is_open = bool(options.api_keys) or options.open_to_network or not is_local
    if options.allowed_hosts or not is_open:
        app.add_middleware(HostCheck, names=options.allowed_hosts)
    if options.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )


__all__ = ["make_app", "tenant_of"]
