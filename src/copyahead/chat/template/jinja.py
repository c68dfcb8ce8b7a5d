"""A chat template as a program of Jinja, in the sandbox and with the functions that models expect.

Imports next to nothing, so that the process that renders starts fast.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from copyahead.errors import MissingExtraError, TemplateError

if TYPE_CHECKING:
    import jinja2
    from jinja2.ext import Extension


def compile_template(source: str) -> jinja2.Template:
    """The template. Raises TemplateError for one with a fault.

    Compiling already computes what is constant in it.
    """
    import jinja2

    try:
        return _environment().from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateError(f"the model's chat template has a fault: {error}") from error


def words_of(source: str) -> set[str]:
    """The names and texts in the code of a template without a fault; it is only read for that."""
    return {
        text.strip("'\"")
        for _, kind, text in _environment().lex(source)
        if kind in ("name", "string")
    }


def _environment() -> jinja2.Environment:
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingExtraError("jinja2", "server") from error
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.add_extension(_generation_tag())
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _generation_tag() -> type[Extension]:
    """The one tag of chat templates that Jinja does not know, `{% generation %}`.

    It marks, for training, what the model wrote. For a prompt it changes nothing.
    """
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

        def parse(self, parser: Parser) -> list[nodes.Node]:
            """The body of the block."""
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _refuse(message: object) -> None:
    raise TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As models saw it in training: no HTML escapes, and letters as they are."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
