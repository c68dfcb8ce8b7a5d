"""`copyahead policies`: the length policies and their options."""

from __future__ import annotations

from copyahead.cli.options import Json
from copyahead.cli.terminal import output


def policies(*, json: Json = False) -> int:
    """List the length policies, and the options of each with their ranges.

    An option is set with `--policy name:option=value,option=value`.

    Example: `copyahead policies --json`
    """
    from copyahead.policies import describe

    found = describe()
    if json:
        output.print_json({"policies": found})
        return 0
    console = output.stdout()
    for policy in found:
        console.print(f"[bold]{policy.name}[/bold]: {policy.about}")
        table = output.table("  option", "default", "from", "to", "what it is")
        table.columns[-1].justify = "left"
        for knob in policy.knobs:
            values = (output.number(value) for value in (knob.default, knob.low, knob.high))
            table.add_row(f"  {knob.name}", *values, knob.about)
        console.print(table)
        console.print()
    return 0
