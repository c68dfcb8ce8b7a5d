"""`copyahead probe`: what passes over several rows cost, and how exact they are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from copyahead.cli.compare import limit_text
from copyahead.cli.options import DEFAULT_MODEL, Json, Model, ModelPath, Quiet
from copyahead.cli.terminal import output
from copyahead.cli.terminal.sentences import check_model_path
from copyahead.config import ModelOptions

if TYPE_CHECKING:
    from copyahead.backends.probe.search import ProbeResult


def probe(
    model: ModelPath = None,
    /,
    *,
    again: Annotated[bool, Parameter(negative="")] = False,
    model_options: Model = DEFAULT_MODEL,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Measure the model's step cost, and up to how many rows its logits are bit-identical.

    The result is kept on disk, by model, settings, threads and library version: it is measured
    once. Later runs correct the step cost by their own passes, and the next start begins with that.

    Example: `copyahead probe model.gguf --again`

    Parameters
    ----------
    again
        Measure anew, and forget what was measured before.
    """
    from copyahead.backends.probe.search import unsteady_text
    from copyahead.loading import find

    output.be_quiet(quiet)
    check_model_path("probe", model)
    path = find(model)
    found = _find_settings(path, model_options, again)
    if json:
        output.print_json(_document(str(path), found))
        return 0
    console = output.stdout()
    console.print(_table(found))
    note = found.capabilities.note
    lines = [
        f"settings: {found.settings.numerics()}",
        output.level(found.exactness),
        f"several sequences and chunked prompts: {_batched(found)}",
        limit_text(found.step_cost),
        *([] if found.steady else [unsteady_text(found.spread)]),
        *([f"note: {note}"] if note else []),
    ]
    console.print("\n".join(lines), soft_wrap=True)
    return 0


def _find_settings(path: Path, options: ModelOptions, again: bool) -> ProbeResult:
    from copyahead.backends.probe import folders, search

    if path.is_dir():
        return folders.find_settings(path, options, again=again)
    options.check_file()
    return search.find_settings(path, options, again=again)


def _batched(found: ProbeResult) -> str:
    return "bit-identical too" if found.exactness.batched else "may differ"


def _table(found: ProbeResult) -> Any:
    table = output.table("rows", "ms", "T(n)", "n / T(n)", "exact")
    for rows, cost in found.step_cost.points().items():
        table.add_row(
            str(rows),
            f"{found.step_seconds[rows] * 1000:.2f}",
            f"{cost:.2f}",
            f"{rows / cost:.2f}",
            "yes" if rows <= found.exactness.rows else "no",
        )
    return table


def _document(path: str, found: ProbeResult) -> dict[str, Any]:
    return {
        "model": path,
        "settings": msgspec.to_builtins(found.settings),
        "exactness": output.exactness_json(found.exactness),
        "batched": found.exactness.batched,
        "step_cost": output.step_cost_json(found.step_cost),
        "step_ms": {str(rows): round(time * 1000, 4) for rows, time in found.step_seconds.items()},
        "spread": round(found.spread, 4),
        "steady": found.steady,
        "limit": round(found.step_cost.limit(), 3),
        "prefix": found.prefix,
        "max_rewind": found.capabilities.max_rewind,
        "note": found.capabilities.note,
    }
