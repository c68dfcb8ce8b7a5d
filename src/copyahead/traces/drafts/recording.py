"""Which requests of a trace are asked about, and asking about them, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from copyahead.errors import ConfigError
from copyahead.traces.corpus import BASE, END, SESSION, START, Corpus
from copyahead.traces.drafts.asking import Asker
from copyahead.traces.drafts.draft_file import (
    VERSION,
    DraftHeader,
    DraftWriter,
    RequestDrafts,
    fingerprint_of,
)


def choose_requests(
    corpus: Corpus, limit: int | None = None, session_limit: int | None = None
) -> list[int]:
    """The first requests of the corpus, and of each of its sessions, that write so many tokens.

    Requests are taken whole, so the last one may go beyond a limit.
    """
    chosen: list[int] = []
    total = in_session = 0
    session = -1
    for number, row in enumerate(corpus.requests.tolist()):
        if row[SESSION] != session:
            session, in_session = row[SESSION], 0
        if limit is not None and total >= limit:
            break
        if session_limit is not None and in_session >= session_limit:
            continue
        written = row[END] - row[START]
        total, in_session = total + written, in_session + written
        chosen.append(number)
    return chosen


def header_for(
    corpus: Corpus,
    *,
    model: Path,
    model_fingerprint: str,
    vocab_size: int,
    depth: int,
    branch_depth: int,
    window: int,
) -> DraftHeader:
    """The header of a file. Raises ConfigError where the corpus has tokens the model has not."""
    if corpus.vocab_size > vocab_size:
        raise ConfigError(
            f"the traces hold token ids up to {corpus.vocab_size - 1}, and {model.name} has "
            f"{vocab_size}: name a draft model with the same tokenizer"
        )
    return DraftHeader(
        copyahead_drafts=VERSION,
        model=model.name,
        model_fingerprint=model_fingerprint,
        vocab_size=vocab_size,
        vocabulary=corpus.vocabulary,
        trace=fingerprint_of(corpus),
        depth=depth,
        branch_depth=branch_depth,
        window=window,
    )


def record(
    corpus: Corpus,
    asker: Asker,
    writer: DraftWriter,
    requests: Iterable[int],
    on_progress: Callable[[int], None] | None = None,
) -> None:
    """Ask about each of `requests` that `writer` does not hold yet, and write what is said.

    `on_progress` gets the written tokens of each request that is done. Raises BackendError, and
    OSError where the file cannot be written; what was written before stays.
    """
    for number in requests:
        row = corpus.requests[number]
        base, start, end = int(row[BASE]), int(row[START]), int(row[END])
        if number not in writer.done:
            text = corpus.tokens[base : base + end]
            writer.write(RequestDrafts.of(number, *asker.ask(base, text, start, end)))
        if on_progress is not None:
            on_progress(end - start)
