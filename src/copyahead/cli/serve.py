"""`copyahead serve`: the model behind HTTP, for any OpenAI client."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from copyahead.cli.options import (
    DEFAULT_LOOKUP,
    MODEL,
    NO_DRAFT_MODEL,
    NONE_YET,
    DraftModel,
    Flat,
    Lookup,
    ModelPath,
    Shared,
)
from copyahead.cli.terminal import output
from copyahead.cli.terminal.sentences import check_model_path
from copyahead.config import (
    DraftModelOptions,
    Limits,
    LookupOptions,
    ModelOptions,
    NumParallel,
    SharedOptions,
)
from copyahead.errors import ConfigError, MissingExtraError
from copyahead.ranges import Range, check_ranges

if TYPE_CHECKING:
    from copyahead.engine.async_engine import AsyncEngine
    from copyahead.server.service import ServerOptions, Service
    from copyahead.traces.record import TraceWriter

_NOT_SHARED = SharedOptions()
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\sA-Z/?#@*]+")
"""As browsers send it, or `*`; pages without an origin of their own send `null`."""

_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelOptions(ModelOptions):
    """How the model is loaded: several requests run together unless one is asked for."""

    parallel: NumParallel = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Where the server listens, and to whom."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Range(0, 65535)] = 8080
    """Port to listen on; 0 takes a free one."""
    alias: str | None = None
    """Name under which the model is listed; the file's own when not given."""
    api_key: Annotated[tuple[str, ...], NONE_YET] = ()
    """A key that clients must send; may be repeated. Each key is a tenant: nothing is copied
    between the requests of two."""
    metrics_key: str | None = None
    """The key that reads `/metrics`, and nothing else. Without it `/metrics` is open where there
    are no API keys, and closed where there are: it sums over all of them."""
    open_to_network: bool = False
    """Listen on an address that other machines reach, without any key."""
    cors_origin: Annotated[tuple[str, ...], NONE_YET] = ()
    """An origin whose pages may use the server from a browser; may be repeated; `*` for all."""
    allowed_host: Annotated[tuple[str, ...], NONE_YET] = ()
    """A name that requests may come by, such as a proxy's; may be repeated. With any, and on this
    machine without a key, other names in `Host` than these and this machine's are refused."""
    ui: bool = True
    """A page at `/`, to chat in a browser and see what was copied."""

    def __post_init__(self) -> None:
        check_ranges(self)
        for origin in self.cors_origin:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origin {origin!r} is no origin: give scheme://host or "
                    "scheme://host:port in lower case, without a path, or * for all"
                )
        for name in self.allowed_host:
            if not _HOST.fullmatch(name):
                raise ConfigError(
                    f"allowed_host {name!r} is no name of a host: give it in lower case, without "
                    "scheme and port"
                )


_DEFAULT_HTTP = HttpOptions()
_DEFAULT_LIMITS = Limits()
_DEFAULT_MODEL = ServedModelOptions()


def serve(
    model: ModelPath = None,
    /,
    *,
    http: Annotated[HttpOptions, Flat] = _DEFAULT_HTTP,
    limits: Annotated[Limits, Flat] = _DEFAULT_LIMITS,
    lookup_options: Lookup = DEFAULT_LOOKUP,
    draft_options: DraftModel = NO_DRAFT_MODEL,
    shared_options: Shared = _NOT_SHARED,
    model_options: Annotated[ServedModelOptions, Flat, Parameter(group=MODEL)] = _DEFAULT_MODEL,
    request_log: bool = True,
    record: Path | None = None,
) -> int:
    """Serve the model to OpenAI and Anthropic clients until told to stop.

    OpenAI's chat completions, text completions and responses, and Anthropic's messages: streamed or
    whole, with tools and JSON schemas; completions also with log-probabilities. Answers are those
    of plain decoding: what is copied is only ever a proposal.

    Example: `copyahead serve model.gguf --parallel 4 --port 8080`

    Parameters
    ----------
    request_log
        Write a line about each request to standard error; never its text.
    record
        Append each request to this trace file, as token ids, for `replay`. They are what was
        read and written: keep the file as you would keep the text.
    """
    try:
        from copyahead.server.run import address, bind, serve
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "fastapi", "server") from error

    check_model_path("serve", model)
    options = _server_options(http, limits)
    _check_early(lookup_options, draft_options, record)
    bound = bind(http.host, http.port)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("copyahead").setLevel(logging.INFO if request_log else logging.WARNING)
    try:
        drafting = _Drafting(lookup_options, shared_options, draft_options)
        service = _service(model, http, options, drafting, model_options)
        if record is not None:
            service.recorder = _recorder(record, service)
    except BaseException:
        bound.close()
        raise
    try:
        serve(
            service,
            bound,
            lambda: output.remark(_banner(service, lookup_options, shared_options, address(bound))),
        )
    finally:
        if service.recorder is not None:
            service.recorder.close()
    return 0


class _Drafting(NamedTuple):
    """What drafts, and with what."""

    lookup: LookupOptions
    shared: SharedOptions
    draft: DraftModelOptions


def _server_options(http: HttpOptions, limits: Limits) -> ServerOptions:
    """The options checked: before a model is loaded."""
    from copyahead.server.http.auth import ApiKeys, check_binding, check_metrics_key
    from copyahead.server.service import ServerOptions

    check_binding(http.host, ApiKeys(http.api_key), open_to_network=http.open_to_network)
    check_metrics_key(http.api_key, http.metrics_key)
    return ServerOptions(
        api_keys=http.api_key,
        metrics_key=http.metrics_key,
        cors_origins=http.cors_origin,
        allowed_hosts=http.allowed_host,
        open_to_network=http.open_to_network,
        ui=http.ui,
        limits=limits,
    )


def _check_early(lookup: LookupOptions, draft: DraftModelOptions, record: Path | None) -> None:
    """What else can be known to be wrong before a model is loaded."""
    from copyahead.loading import check_policy
    from copyahead.traces.record import TraceWriter

    check_policy(lookup, draft)
    if record is not None:
        TraceWriter(record).close()


def _service(
    model: ModelPath,
    http: HttpOptions,
    options: ServerOptions,
    drafting: _Drafting,
    model_options: ModelOptions,
) -> Service:
    from dataclasses import replace

    from copyahead.chat.template.template import ChatTemplate
    from copyahead.engine.async_engine import AsyncEngine
    from copyahead.loading import find, load
    from copyahead.server.service import Service

    path = find(model)
    output.remark(f"loading {_name_of(path, model)}")
    lookup, shared, draft = drafting
    engine = load(path, model=model_options, lookup=lookup, shared=shared, draft=draft)
    engine.warm_up()
    try:
        template = ChatTemplate.from_backend(engine.backend)
        policy = lookup.policy if engine.max_draft_tokens else ""
        named = replace(options, model_name=http.alias or _name_of(path, model), policy=policy)
        return Service(AsyncEngine(engine), named, template)
    except BaseException:
        engine.close()
        raise


def _name_of(path: Path, given: Path | None) -> str:
    """A file's without its ending, a folder's as it is: dots in it are no ending.

    Of a model that was found by name, that name.
    """
    if given is not None and path != given.expanduser():
        return str(given)
    return path.resolve().name if path.is_dir() else path.stem


def _recorder(path: Path, service: Service) -> TraceWriter:
    from copyahead.traces.record import TraceWriter

    size = service.tokenizer.vocab_size
    return TraceWriter(path, model=service.options.model_name, vocab_size=size)


def _banner(service: Service, lookup: LookupOptions, shared: SharedOptions, url: str) -> str:
    """What a user sees when the server is up."""
    from copyahead.chat.template.template import CHATML

    capabilities = service.capabilities
    keys = len(set(service.options.api_keys))
    lines = [
        f"model: {service.options.model_name}",
        f"context: {capabilities.context_size} tokens a request",
        f"slots: {capabilities.num_slots}",
        output.level(service.backend.exactness),
        f"lookup: {_lookup_line(service.engine, lookup)}",
        f"draft model: {service.engine.draft_model or 'none (--draft-model)'}",
        f"shared store: {_shared_line(service, shared)}",
        f"chat template: {'ChatML' if service.template.source == CHATML else 'the model has one'}",
        f"keys: {keys or 'none, everybody on this address may ask'}",
        f"page: {f'{url}/' if service.options.ui else 'none, by --no-ui'}",
        f"address: {url} (OpenAI clients: {url}/v1)",
    ]
    return "\n".join(lines)


def _shared_line(service: Service, shared: SharedOptions) -> str:
    if not shared.shared or not service.engine.max_draft_tokens:
        return "off, requests copy from their own text only (--shared)"
    return f"{shared.shared_tokens} tokens a tenant"


def _lookup_line(engine: AsyncEngine, lookup: LookupOptions) -> str:
    if not lookup.lookup:
        return "off, by --no-lookup"
    note = engine.backend.capabilities.note
    if not engine.max_draft_tokens:
        return f"off: {note or 'the model cannot take tokens back'}"
    on = f"on, policy {lookup.policy}, drafts of at most {engine.max_draft_tokens} tokens"
    return f"{on} ({note})" if note else on
