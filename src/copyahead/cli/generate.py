"""`copyahead generate`: continue a text, as it is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from copyahead.cli.options import (
    DEFAULT_LOOKUP,
    DEFAULT_MODEL,
    DEFAULT_SAMPLING,
    NO_DRAFT_MODEL,
    OUTPUT,
    DraftModel,
    Flat,
    Json,
    Lookup,
    Model,
    ModelPath,
    PromptOptions,
    Quiet,
    Sampling,
    make_request,
)
from copyahead.cli.terminal import output
from copyahead.cli.terminal.sentences import check_model_path
from copyahead.errors import BackendError
from copyahead.types import FinishReason

if TYPE_CHECKING:
    from copyahead.engine import Choice, Engine, Request
    from copyahead.stats import CopyStats

_DEFAULT_PROMPT = PromptOptions()


def generate(
    model: ModelPath = None,
    /,
    *,
    prompt_options: Annotated[PromptOptions, Flat] = _DEFAULT_PROMPT,
    sampling: Sampling = DEFAULT_SAMPLING,
    lookup_options: Lookup = DEFAULT_LOOKUP,
    draft_options: DraftModel = NO_DRAFT_MODEL,
    model_options: Model = DEFAULT_MODEL,
    stats: Annotated[bool, Parameter(negative="", group=OUTPUT)] = False,
    show_copied: Annotated[bool, Parameter(group=OUTPUT)] = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Continue a text with the model, and print the continuation as it is written.

    The text is the one that plain decoding gives: what is copied is only ever a proposal.

    Example: `copyahead generate model.gguf --prompt "List the files again:" --stats`

    Parameters
    ----------
    stats
        After the text, print what copying did, to standard error.
    show_copied
        Show the tokens that were copied in colour.
    """
    from copyahead.loading import load

    output.be_quiet(quiet)
    check_model_path("generate", model, has_text=prompt_options.has_text)
    text = prompt_options.text()
    with load(model, model=model_options, lookup=lookup_options, draft=draft_options) as engine:
        if engine.draft_model is not None:
            output.remark(f"draft model: {engine.draft_model}")
        request = make_request(engine, text, prompt_options, sampling)
        if not json and not prompt_options.chat and _is_question(engine, text):
            output.remark(
                "this model was trained to answer messages, and the text is only continued: "
                "--chat asks it"
            )
        choice, counts = _run(engine, request, quiet=json, colour=show_copied)
        if json:
            output.print_json(_document(engine, choice, counts))
            return 0
        output.remark(output.level(engine.backend.exactness))
        if stats:
            output.remark(output.stats_text(counts))
    return 0


def _is_question(engine: Engine, text: str) -> bool:
    """Whether a model that can chat gets a single bare line."""
    template = engine.backend.chat_template
    return bool(template) and "\n" not in text and "<|" not in text


def _run(
    engine: Engine, request: Request, *, quiet: bool, colour: bool
) -> tuple[Choice, CopyStats]:
    """Run `request`, writing its text unless `quiet`; raises BackendError when it fails."""
    from copyahead.engine import Choice

    choice = Choice(index=0)
    handle = engine.submit(request, choice.add)
    shown = 0
    try:
        while not handle.done:
            engine.step()
            if not quiet and len(choice.pieces) > shown:
                _write(choice.pieces[shown:], colour)
                shown = len(choice.pieces)
    finally:
        engine.cancel(handle)
    if not quiet:
        _write([*choice.pieces[shown:], ("\n", False)], colour)
    if choice.finish_reason is FinishReason.ERROR:
        raise BackendError(choice.error or "the request failed")
    return choice, handle.stats


def _write(pieces: list[tuple[str, bool]], colour: bool) -> None:
    text = output.coloured(pieces) if colour else "".join(piece for piece, _ in pieces)
    sys.stdout.write(text)
    sys.stdout.flush()


def _document(engine: Engine, choice: Choice, counts: CopyStats) -> dict[str, Any]:
    return {
        "model": engine.backend.name,
        "settings": output.settings(engine),
        "exactness": output.exactness_json(engine.backend.exactness),
        "text": choice.text,
        "tokens": choice.tokens,
        "copied": choice.copied,
        "finish_reason": choice.finish_reason,
        "stats": {
            "prompt_tokens": counts.num_prompt_tokens,
            "output_tokens": counts.num_output_tokens,
            "rounds": counts.rounds,
            "kept_drafts": counts.kept_drafts,
            "num_draft_tokens": counts.num_draft_tokens,
            "num_accepted_tokens": counts.num_accepted_tokens,
            "longest_match": counts.longest_match,
            "tokens_per_round": round(counts.tokens_per_round, 4),
            "tokens_per_second": round(counts.tokens_per_second, 2),
            "prefill_seconds": round(counts.prefill_seconds, 4),
            "by_source": output.by_source_json(counts),
            "draft_model": output.draft_model_json(counts),
        },
    }
