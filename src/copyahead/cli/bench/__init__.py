"""`copyahead bench`: recorded requests against a server, and how fast it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from copyahead.cli.options import NONE_YET, Flat, Json, Names, Quiet
from copyahead.cli.terminal import output
from copyahead.errors import ConfigError, MissingExtraError
from copyahead.ranges import Range, check_ranges

if TYPE_CHECKING:
    from copyahead.evaluate.bench.asking import Ask
    from copyahead.evaluate.bench.running import Plan, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What is sent, when, and to whom."""

    trace: Annotated[Names, NONE_YET] = ()
    """Files or directories of recorded traffic, as `replay` reads them; `FILE@A:B` takes sessions A
    to B - 1."""
    vs: str | None = None
    """A second server, to be compared with the first: each request goes to both, in turns."""
    concurrency: Annotated[int, Range(1, 4096)] = 1
    """Sessions at once; the requests of one follow one another."""
    recorded_times: bool = False
    """Send each request when it came in the recording, whatever is still running. The trace needs
    times: those of `copyahead serve --record` have them."""
    speed: Annotated[float, Range(0, 10000, above=True)] = 1.0
    """How much faster than in the recording, with `--recorded-times`."""
    block: Annotated[int | None, Range(1, 100000)] = None
    """Requests to one server before it is the other's turn, with `--vs`; one, or four times the
    concurrency where that is not one, when not given."""
    warm_up: Annotated[int, Range(0, 100000)] = 0
    """Requests at the start that are sent and not counted."""
    limit: Annotated[int | None, Range(1)] = None
    """Most requests to send, warm-up included."""
    max_tokens: Annotated[int | None, Range(1, 2**24)] = None
    """Most tokens of an answer; as many as were recorded where the trace tells, and 256 elsewhere,
    when not given."""
    temperature: Annotated[float, Range(0.0, 100.0)] = 0.0
    """Sampling temperature."""
    send: Literal["auto", "chat", "text", "ids"] = "auto"
    """How prompts are sent: as a conversation (`chat`), as one text (`text`), or as token ids
    (`ids`). `auto`: in the form in which they were recorded, and ids as text where `--tokenizer` is
    given."""
    tokenizer: str | None = None
    """GGUF model, `tokenizer.json`, or folder of a transformers model, to send recorded token ids
    of it as text."""
    model: str | None = None
    """Name of the model to ask for; the first that the server lists when not given."""
    vs_model: str | None = None
    """The same for the second server."""
    api_key: str | None = None
    """Key to send."""
    vs_api_key: str | None = None
    """Key for the second server; the first one's when not given."""
    timeout: Annotated[float, Range(0, 86400, above=True)] = 120.0
    """Most seconds to wait for the next piece of an answer."""
    retries: Annotated[int, Range(0, 1000)] = 3
    """How often a request is sent again after 429 or 503 with a `Retry-After`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.recorded_times and self.vs is not None:
            raise ConfigError(
                "recorded_times and --vs exclude each other: two servers take turns, and at "
                "recorded times nobody waits for a turn"
            )
        if self.speed != 1.0 and not self.recorded_times:
            raise ConfigError("speed needs recorded_times: give both, or concurrency instead")
        for name in ("vs_model", "vs_api_key", "block"):
            if getattr(self, name) is not None and self.vs is None:
                raise ConfigError(f"{name} needs --vs: name a second server")


_DEFAULTS = BenchOptions()


def bench(
    url: Annotated[str, Parameter(help="Address of the server: http://host:port.")],
    /,
    *,
    options: Annotated[BenchOptions, Flat] = _DEFAULTS,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Replay recorded requests against any OpenAI-compatible server, and time its answers.

    Tokens are counted by the server's `usage`. A request that fails is counted and the run goes on;
    Ctrl-C ends it and shows what there is. The exit status is 1 if no request was answered.

    Example: `copyahead bench http://localhost:8080 --trace trace.jsonl --vs http://localhost:8081`
    """
    try:
        from copyahead.cli.bench.tables import document, show
        from copyahead.evaluate.bench.running import Result
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "httpx", "bench") from error
    from copyahead.cli.bench.asks import find_target, make_asks

    output.be_quiet(quiet)
    if not options.trace:
        raise ConfigError("trace must name at least one file of recorded traffic")
    asks = make_asks(options)
    results = [Result(find_target(url, options.model, options.api_key, options.timeout))]
    if options.vs is not None:
        key = options.api_key if options.vs_api_key is None else options.vs_api_key
        results.append(Result(find_target(options.vs, options.vs_model, key, options.timeout)))
    interrupted = _run(results, asks, _plan(options))
    if interrupted:
        output.remark("interrupted: this is what there is so far")
    if json:
        output.print_json(document(results, interrupted=interrupted))
    else:
        show(results)
    if interrupted:
        return 130
    return 0 if all(any(a.error is None for a in each.answers) for each in results) else 1


def _plan(options: BenchOptions) -> Plan:
    from copyahead.evaluate.bench.asking import Options
    from copyahead.evaluate.bench.running import Plan

    block = 1 if options.concurrency == 1 else 4 * options.concurrency
    if options.vs is None:
        # Alone, a server need never wait for its turn.
        block = 1 << 40
    return Plan(
        options=Options(options.temperature, options.timeout, options.retries),
        concurrency=options.concurrency,
        recorded_times=options.recorded_times,
        block=options.block or block,
        warm_up=options.warm_up,
    )


def _run(results: Sequence[Result], asks: Sequence[Ask], plan: Plan) -> bool:
    """Send everything; whether Ctrl-C came before the end."""
    from copyahead.evaluate.bench.running import run

    with output.bar("asking", len(asks) * len(results), counted=True) as bar:
        try:
            asyncio.run(run(results, asks, plan, bar.advance))
        except KeyboardInterrupt:
            return True
    return False
