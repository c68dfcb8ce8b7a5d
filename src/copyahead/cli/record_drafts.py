"""`copyahead record-drafts`: what a draft model would draft on a trace, for `replay --drafts`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from copyahead.cli.options import Flat, Json, Quiet, TraceOptions, Traces
from copyahead.cli.terminal import output
from copyahead.config import ModelOptions
from copyahead.errors import ConfigError, ModelError
from copyahead.ranges import Range, check_ranges

if TYPE_CHECKING:
    from copyahead.backends.llama_cpp.backend import LlamaBackend
    from copyahead.traces.corpus import Corpus
    from copyahead.traces.drafts.draft_file import DraftHeader

NUM_SLOTS = 16
"""One holds the text, the others branches off it, which share passes."""
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """Which draft model is asked, and for how much."""

    draft_model: Path | None = None
    """GGUF file, or name, of the draft model, whose tokenizer the traces are read with; the bundled
    model when not given."""
    output: Path | None = None
    """File to write. One that the same command has begun is gone on with."""
    depth: Annotated[int, Range(1, 32)] = 8
    """Longest chain that can be replayed."""
    branch_depth: Annotated[int, Range(0, 32)] = 2
    """How many tokens of a chain are recorded after its first wrong one: each takes a row of its
    own, and none is ever accepted."""
    draft_ctx: Annotated[int, Range(64, 2**24)] = 2048
    """Context of the draft model. Of a longer text it is shown the end."""
    limit: Annotated[int | None, Range(1)] = None
    """Record only the first requests, which wrote about so many tokens."""
    session_limit: Annotated[int | None, Range(1)] = None
    """Record only the first requests of each session, which wrote about so many tokens."""
    threads: Annotated[int | None, Range(1, 1024)] = None
    """Threads of the draft model. When not given: one for each logical CPU that it may use, and
    fewer while other programs use these."""
    draft_gpu_layers: Annotated[int, Range(-1, 10_000)] = 0
    """Layers of the draft model to put on a GPU; -1 for all."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.draft_ctx < 4 * self.depth:
            raise ConfigError(
                f"draft_ctx must be at least 4 times depth, {4 * self.depth}, not {self.draft_ctx}"
            )


_DEFAULTS = RecordOptions()
_DEFAULT_TRACES = TraceOptions()


def record_drafts(
    *traces: Traces,
    options: Annotated[RecordOptions, Flat] = _DEFAULTS,
    trace_options: Annotated[TraceOptions, Flat] = _DEFAULT_TRACES,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Ask a draft model at every written place of a trace, and write down what it says.

    `copyahead replay --drafts FILE` then scores it beside copies, by each rule and at any price,
    without a model. Interrupted, it has written all requests that were done; the same command
    goes on from there.

    Example: `copyahead record-drafts runs.jsonl.gz --draft-model small.gguf --output drafts.jsonl`
    """
    from copyahead.backends.llama_cpp.gguf import find_model
    from copyahead.loading import find
    from copyahead.traces.drafts.asking import Asker
    from copyahead.traces.drafts.draft_file import DraftWriter
    from copyahead.traces.drafts.recording import choose_requests, record
    from copyahead.traces.drafts.windows import Window

    output.be_quiet(quiet)
    if options.output is None:
        raise ConfigError("output must name the file to write")
    if not traces:
        raise ConfigError(
            "there is nothing to record: name files or directories of traces, before the options"
        )
    path = options.output.expanduser()
    try:
        model = find_model(find(options.draft_model))
    except ModelError as error:
        raise ModelError(f"draft_{error}") from None
    options = replace(options, draft_model=model)
    corpus = _read(traces, options.draft_model, trace_options)
    requests = choose_requests(corpus, options.limit, options.session_limit)
    total = corpus.only(requests).num_written
    with _load(options) as backend:
        header = _header(corpus, backend, options)
        asker = Asker(backend, Window(options.draft_ctx, options.depth), options.branch_depth)
        with DraftWriter(path, header) as writer:
            status = 0
            try:
                with output.bar("recording", total) as bar:
                    record(corpus, asker, writer, requests, bar.advance)
            except KeyboardInterrupt:
                status = _INTERRUPTED
            done = [number for number in requests if number in writer.done]
    _say(path, header, len(done), len(requests), corpus.only(done).num_written, json)
    return status


def _read(traces: Sequence[str], model: Path | None, options: TraceOptions) -> Corpus:
    from copyahead.cli.replay import report_problems, tokenised
    from copyahead.traces.formats.importers import read_traces

    read = read_traces(traces, chat=options.chat, after=options.after, by_file=options.by_file)
    report_problems(read)
    return tokenised(read, None if model is None else str(model), always=True)[1]


@contextmanager
def _load(options: RecordOptions) -> Iterator[LlamaBackend]:
    from copyahead.backends.probe.search import load

    model = ModelOptions(
        ctx=options.draft_ctx,
        parallel=NUM_SLOTS,
        threads=options.threads,
        gpu_layers=options.draft_gpu_layers,
    )
    backend = load(options.draft_model, model)
    try:
        yield backend
    finally:
        backend.close()


def _header(corpus: Corpus, backend: LlamaBackend, options: RecordOptions) -> DraftHeader:
    from copyahead.backends.llama_cpp.gguf import fingerprint
    from copyahead.traces.drafts.recording import header_for

    return header_for(
        corpus,
        model=backend.path,
        model_fingerprint=fingerprint(backend.path),
        vocab_size=backend.tokenizer.vocab_size,
        depth=options.depth,
        branch_depth=options.branch_depth,
        window=options.draft_ctx,
    )


def _say(
    path: Path, header: DraftHeader, done: int, requests: int, written: int, json: bool
) -> None:
    if json:
        output.print_json(
            {
                "file": str(path),
                "model": header.model,
                "requests": done,
                "requests_wanted": requests,
                "written_tokens": written,
                "depth": header.depth,
                "branch_depth": header.branch_depth,
                "window": header.window,
            }
        )
        return
    of = f" of {requests}" if done < requests else ""
    rest = "; the same command goes on from there" if done < requests else ""
    output.stdout().print(
        f"{path} holds what {header.model} drafts in {done}{of} requests, {written} written "
        f"tokens{rest}",
        soft_wrap=True,
    )
