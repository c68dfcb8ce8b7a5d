"""`copyahead logs`: how fast a server was, by its own log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from copyahead.cli.options import NONE_YET, Flat, Json, Names, Quiet
from copyahead.cli.terminal import output
from copyahead.errors import ConfigError

if TYPE_CHECKING:
    from copyahead.traces.logs.reading import Log
    from copyahead.traces.logs.rows import Ratio

_Files = Annotated[
    str,
    Parameter(
        help="Logs of one server, in order, gzip and zstd too; `-` reads standard input.",
        allow_leading_hyphen=True,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How logs are read, and what of them is shown."""

    by: Annotated[
        tuple[Literal["policy", "day"], ...], NONE_YET, Parameter(consume_multiple=True)
    ] = ()
    """Also take the requests apart by what drafted (`policy`), by the day of the line (`day`), or
    by both."""
    vs: Names | None = None
    """Logs of another server, or of another time, to compare with, band by band. May be repeated;
    `--vs=-` reads standard input."""
    format: Literal["copyahead", "llama-server", "vllm"] | None = None
    """What wrote the logs that are named first; told by their content when not given."""
    html: Path | None = None
    """Also write a report with plots to this file."""

    def __post_init__(self) -> None:
        if self.vs is not None and not self.vs:
            raise ConfigError("vs names no log: give one, or --vs=- for standard input")
        # Known before the work, that none of it is lost.
        if self.html is not None and not self.html.expanduser().parent.is_dir():
            raise ConfigError(f"html file {self.html} lies in no directory that there is: make it")


_DEFAULTS = LogOptions()


def logs(
    *files: _Files,
    options: Annotated[LogOptions, Flat] = _DEFAULTS,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Read a server's log: decode speed, acceptance, first tokens, prefix reuse, by context.

    Reads the request lines of `copyahead serve`, the log of llama.cpp's `llama-server`, and
    snapshots of vLLM's `/metrics`. Lines that cannot be read are counted, and the first is shown.

    Example: `copyahead logs server.log --vs last-week.log.gz --html report.html`
    """
    from copyahead.traces.logs.reading import read_log
    from copyahead.traces.logs.rows import make_ratios

    output.be_quiet(quiet)
    if not files:
        raise ConfigError("there is no log to read: name files, or - for standard input")
    # What stands for standard input begins as an option does, so others come here as well.
    option = next((name for name in files if name.startswith("-") and name != "-"), None)
    if option is not None:
        raise ConfigError(f"unknown option {option}: see copyahead logs --help")
    if [*files, *(options.vs or ())].count("-") > 1:
        raise ConfigError("standard input can be read once only: give - once")
    # Of a log that is given by --format, the other may be of another kind.
    log = read_log(files, by=options.by, kind=options.format)
    other = read_log(options.vs, by=options.by) if options.vs else None
    ratios = make_ratios(log.rows, other.rows) if other is not None else []
    report_lines(log, other)
    if options.html is not None:
        _write_report(options.html, log, other, ratios)
    if json:
        output.print_json({"log": log, "vs": other, "ratios": ratios})
    else:
        show(log, other, ratios)
    return 0


def report_lines(*logs: Log | None) -> None:
    """Say how many lines were not understood."""
    for log in filter(None, logs):
        for file in log.files:
            if file.not_understood:
                output.remark(str(file))


def show(log: Log, other: Log | None, ratios: Sequence[Ratio]) -> None:
    """What people see: a table a log, and one of ratios."""
    from copyahead.traces.logs.report import COLUMNS, RATIO_COLUMNS, headings, names_of

    console = output.stdout()
    for each in filter(None, (log, other)):
        if not each.rows:
            console.print(f"{_title(each)}: there is no request in it\n", soft_wrap=True)
            continue
        console.print(_table(_title(each), headings(each.rows), COLUMNS, each.rows, names_of))
        console.print(f"{each.note}\n", soft_wrap=True)
    if ratios:
        title = "the first over the other, by medians"
        console.print(_table(title, headings(ratios), RATIO_COLUMNS, ratios, names_of))


def _table(title: str, first: Any, columns: Any, rows: Any, names_of: Any) -> Any:
    table = output.table(*first, *(name for name, _ in columns), title=title)
    for column in table.columns[: len(first)]:
        column.justify = "left"
    for row in rows:
        table.add_row(*names_of(row), *(cell(row) for _, cell in columns))
    return table


def _title(log: Log) -> str:
    from copyahead.traces.logs.reading import KINDS

    names = ", ".join(file.path for file in log.files)
    return f"{names}: {KINDS[log.format].title}"


def _write_report(path: Path, log: Log, other: Log | None, ratios: Sequence[Ratio]) -> None:
    from copyahead.traces.logs.report import html_report

    try:
        path.expanduser().write_text(html_report(log, other, ratios), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"html file {path} cannot be written ({error.strerror})") from None
