"""What `bench` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from copyahead.cli.terminal import output
from copyahead.evaluate.bench.figures import Figures, Ratio, figures, ratios
from copyahead.evaluate.bench.running import Result

_TITLES = {
    "tok_s": "output tok/s of a request",
    "first_token_ms": "time to first token (ms)",
    "token_ms": "time per output token (ms)",
}
_RATIO_TITLES = {
    "tok_s": "output tok/s of a request",
    "first_token": "time to first token",
    "time_a_token": "time per output token",
}


def document(results: Sequence[Result], *, interrupted: bool) -> dict[str, Any]:
    """The JSON of `bench`."""
    return {
        "interrupted": interrupted,
        "servers": [figures(result) for result in results],
        "ratios": ratios(*results) if len(results) == 2 else [],
        "answers": [result.answers for result in results],
    }


def show(results: Sequence[Result]) -> None:
    """The same for people."""
    console = output.stdout()
    found = [figures(result) for result in results]
    for each in found:
        console.print("\n".join(summary(each)), soft_wrap=True)
    table = output.table("", "server", "p50", "p90", "p99")
    table.columns[1].justify = "left"
    for name, title in _TITLES.items():
        for each in found:
            spread = getattr(each, name)
            if spread is not None:
                places = (spread.p50, spread.p90, spread.p99)
                table.add_row(title, each.url, *(f"{place:,.1f}" for place in places))
    console.print()
    console.print(table)
    if len(results) == 2:
        console.print()
        console.print(_ratios(ratios(*results)))


def _ratios(found: Sequence[Ratio]) -> Any:
    table = output.table("first server over second, medians", "ratio", "95% interval", "requests")
    for each in found:
        table.add_row(
            _RATIO_TITLES[each.measure],
            f"{each.ratio:.2f}",
            f"{each.low:.2f} to {each.high:.2f}",
            str(each.requests),
        )
    return table


def summary(found: Figures) -> list[str]:
    """A server's run in sentences."""
    total = "" if found.total_tok_s is None else f", {found.total_tok_s:,.1f} output tok/s in total"
    # Some servers call a model by its path.
    model = found.model.rpartition("/")[2] if found.model.startswith("/") else found.model
    lines = [
        f"{found.url}, model {model}: {found.requests} requests in {found.seconds:.1f} s, "
        f"{found.prompt_tokens:,} tokens read, {found.output_tokens:,} written{total}"
    ]
    if found.warm_up:
        lines.append(f"  {found.warm_up} requests before them to warm up, not counted")
    if found.failed:
        lines.append(f"  {found.failed} failed:")
        for kind, count in found.errors.items():
            lines.append(f"    {count} x {kind}; the first: {found.first_errors[kind]}")
    if found.refusals:
        lines.append(
            f"  {found.refusals} times the server said to come back later, and took it then"
        )
    if found.without_usage:
        lines.append(
            f"  {found.without_usage} answers came without usage: the server does not say how many "
            "tokens they have, so they have no speed"
        )
    if found.in_one_piece:
        lines.append(
            f"  {found.in_one_piece} answers came in one piece, so they have no time per token"
        )
    return lines
