"""The one tag of chat templates that Jinja does not know."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`: marks, for training, what the model wrote.

    For a prompt it changes nothing.
    """

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
