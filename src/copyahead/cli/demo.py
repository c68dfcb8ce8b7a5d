"""`copyahead demo`: a first look, on the bundled model, in under three minutes."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from copyahead.cli.compare import broken, document, run_all, show
from copyahead.cli.options import (
    DEFAULT_MODEL,
    DRAFTING,
    OUTPUT,
    Json,
    Model,
    ModelPath,
    Quiet,
    policies_named,
)
from copyahead.cli.terminal import output
from copyahead.cli.terminal.sentences import check_model_path
from copyahead.config import LookupOptions
from copyahead.errors import ConfigError
from copyahead.evaluate.workloads import workload
from copyahead.sampling import SamplingOptions

_WORKLOADS = ("list", "rename", "prose")
_SHOWN = "rename"
_MAX_TOKENS = 240
_POLICY = LookupOptions().policy


def demo(
    model: ModelPath = None,
    /,
    *,
    show_copied: Annotated[bool | None, Parameter(show_default=False, group=OUTPUT)] = None,
    policy: Annotated[str, Parameter(group=DRAFTING)] = _POLICY,
    lookup: Annotated[bool, Parameter(show=False)] = True,
    model_options: Model = DEFAULT_MODEL,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    """Compare on three workloads, and show one answer with its copied tokens in colour.

    Example: `copyahead demo --show-copied`

    Parameters
    ----------
    show_copied
        Colour what was copied; on in a terminal.
    policy
        Rule for how much of a copy to try: a name, or `name:knob=value,knob=value`.
    """
    from copyahead.evaluate.compare import Plan
    from copyahead.loading import find, load

    output.be_quiet(quiet)
    check_model_path("demo", model)
    if not lookup:
        raise ConfigError("demo needs lookup: leave out --no-lookup and COPYAHEAD_LOOKUP=0")
    policies = policies_named([policy])
    works = [workload(name) for name in _WORKLOADS]
    plan = Plan(sampling=SamplingOptions(), max_tokens=_MAX_TOKENS)
    path = find(model)
    with load(path, model=model_options, lookup=LookupOptions(policy=policies[0])) as engine:
        runs = run_all(engine, works, policies, plan)
        results = [result for result, _ in runs]
        if json:
            output.print_json(document(engine, results))
        else:
            colour = sys.stdout.isatty() if show_copied is None else show_copied
            choice = runs[_WORKLOADS.index(_SHOWN)][1].choices[0]
            _show_answer(workload(_SHOWN).shows, choice.pieces, colour)
            show(engine, results)
        return 1 if broken(engine.backend.exactness, results) else 0


def _show_answer(title: str, pieces: list[tuple[str, bool]], colour: bool) -> None:
    print(f"{title}{' (copied tokens in colour)' if colour else ''}:\n")
    print(output.coloured(pieces) if colour else "".join(text for text, _ in pieces))
    print()
    sys.stdout.flush()
