"""What commands print: JSON for programs, tables for people, remarks on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from copyahead.engine import Engine
    from copyahead.stats import CopyStats
    from copyahead.step_cost import StepCost
    from copyahead.types import Exactness

COPIED = "\x1b[32m"
PLAIN = "\x1b[0m"

_quiet = False


def print_json(document: Any) -> None:
    """`document` as one line of JSON on standard output."""
    line = msgspec.json.encode(document) + b"\n"
    # JSON is UTF-8, whatever the terminal takes.
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:
        sys.stdout.write(line.decode())
        return
    sys.stdout.flush()
    binary.write(line)
    binary.flush()


def quiet() -> bool:
    """Whether remarks are silenced."""
    return _quiet


def be_quiet(silent: bool) -> None:
    """Print no remarks from now on, if `silent`; errors are no remarks."""
    global _quiet
    _quiet = silent


def remark(text: str) -> None:
    """A line for people, on standard error, unless remarks are silenced."""
    if not _quiet:
        complain(text)


def complain(text: str) -> None:
    """A line on standard error, whatever is silenced. Where nobody can read it, it is lost."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command line, which ends every command in the same way."""
        raise BrokenPipeError


def console() -> Console:
    """A console on standard output, as wide as the terminal."""
    return _Console(highlight=False)


def stdout() -> Console:
    """A console for tables; as wide as they need where the output is no terminal."""
    found = console()
    return found if found.is_terminal else _Console(highlight=False, width=160)


def stderr() -> Console:
    """A console for progress."""
    return Console(stderr=True, highlight=False)


class Bar:
    """How far a command is."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def describe(self, text: str) -> None:
        """Show `text` before the bar from now on."""
        self._progress.update(self._task, description=text)

    def advance(self, count: int = 1) -> None:
        """`count` more are done."""
        self._progress.advance(self._task, count)


@contextmanager
def bar(what: str, total: int, *, counted: bool = False) -> Iterator[Bar]:
    """A progress bar on standard error, or nothing where that is no terminal.

    Behind it stands what share of `total` is done; with `counted`, how many.
    """
    with progress_bar(counted=counted) as progress:
        yield Bar(progress, progress.add_task(what, total=total))


def progress_bar(*, counted: bool = False) -> Progress:
    """An empty progress bar on standard error; it shows nothing where that is no terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    terminal = stderr()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if counted else TaskProgressColumn(),
        TimeElapsedColumn(),
        console=terminal,
        transient=True,
        disable=quiet() or not terminal.is_terminal,
    )


def level(exactness: Exactness | None) -> str:
    """The exactness level in words."""
    return f"exactness: {exactness if exactness is not None else 'not measured'}"


def settings(engine: Engine) -> dict[str, Any]:
    """The settings that the backend runs with; empty for one that has none."""
    found = engine.backend.settings
    return dict(msgspec.to_builtins(found)) if found is not None else {}


def exactness_json(exactness: Exactness | None) -> dict[str, Any] | None:
    """`level`, `rows` and `max_abs_diff`; None where nothing was measured."""
    if exactness is None:
        return None
    return {
        "level": exactness.level,
        "rows": exactness.rows,
        "max_abs_diff": exactness.max_abs_diff,
    }


def step_cost_json(cost: StepCost) -> dict[str, float]:
    """`{"1": 1.0, ...}`."""
    return {str(rows): round(time, 4) for rows, time in cost.points().items()}


def by_source_json(counts: CopyStats) -> dict[str, dict[str, int]]:
    """Drafted and accepted tokens by where they came from."""
    return {
        str(source): {"drafted": count.num_draft_tokens, "accepted": count.num_accepted_tokens}
        for source, count in sorted(counts.by_source.items())
    }


def stats_text(counts: CopyStats) -> str:
    """What copying did for a request, a line a figure."""
    rows = {
        "prompt tokens": counts.num_prompt_tokens,
        "output tokens": counts.num_output_tokens,
        "rounds": counts.rounds,
        "kept drafts": counts.kept_drafts,
        "drafted": counts.num_draft_tokens,
        "accepted": counts.num_accepted_tokens,
        "longest match": counts.longest_match,
        "tokens per round": f"{counts.tokens_per_round:.2f}",
        "tok/s": f"{counts.tokens_per_second:.1f}",
        "prefill seconds": f"{counts.prefill_seconds:.2f}",
    }
    if counts.num_model_passes or counts.num_model_skips:
        rows |= {
            "draft model's passes": counts.num_model_passes,
            "draft model's seconds": f"{counts.model_seconds:.2f}",
            "rounds without it": counts.num_model_skips,
            "agreed with copies": f"{counts.num_agreed} of {counts.num_compared}",
        }
    return "\n".join(f"{name}: {value}" for name, value in rows.items())


def draft_model_json(counts: CopyStats) -> dict[str, float]:
    """What a draft model did; zeros where there is none."""
    return {
        "passes": counts.num_model_passes,
        "skips": counts.num_model_skips,
        "seconds": round(counts.model_seconds, 4),
        "compared": counts.num_compared,
        "agreed": counts.num_agreed,
    }


def number(value: float) -> str:
    """A number as people write it: a whole one in full, without an exponent."""
    return str(int(value)) if float(value).is_integer() else f"{value:g}"


def share_of_limit(share: float) -> str:
    """A speed-up as a share of the limit. What is above it is none."""
    return f"{share:.0%}" if share <= 1 else "above"


def coloured(pieces: list[tuple[str, bool]]) -> str:
    """The text of `pieces`, what was copied in colour."""
    return "".join(f"{COPIED}{text}{PLAIN}" if copied else text for text, copied in pieces)


def table(*columns: str, title: str | None = None) -> Table:
    """An open table: the first column to the left, figures to the right."""
    made = Table(title=title, box=None, pad_edge=False, header_style="bold", title_justify="left")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return made
