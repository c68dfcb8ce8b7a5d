"""The forms in which models write calls: how each is found, written, and held to by a grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from copyahead.chat.tools.json_call import CallReader
from copyahead.chat.tools.stream import CallSyntax, ToolParser, new_call_id
from copyahead.chat.tools.tag_call import TagReader, Tags
from copyahead.chat.tools.tag_values import as_text, is_text, kinds_of
from copyahead.chat.untrusted_json import parsed
from copyahead.grammar.compiler import WHITESPACE

Json = dict[str, Any]

_MAX_UNLISTED = 16
"""Most arguments that a grammar allows where the schema lists none."""
_DEFINITIONS = ("$defs", "definitions")
_REFERENCES = tuple(f"#/{name}/" for name in _DEFINITIONS)
"""References that can be followed from a value's schema alone."""


class ToolFormat(msgspec.Struct, frozen=True):
    """One form. `JsonFormat` or `TagFormat`."""

    name: str
    begin: str = ""
    end: str = ""
    between: str = "\n"
    """What stands between two calls."""
    in_list: bool = False
    """Whether calls stand in a JSON list."""

    def parser(
        self, tools: Sequence[Json] = (), new_id: Callable[[], str] = new_call_id
    ) -> ToolParser:
        """A parser for one answer. `tools`: those of the request, checked; a form without
        markers finds only calls of these."""
        raise NotImplementedError

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """The text of `calls`, (name, JSON text of the arguments) each, as a model writes them."""
        texts = [self.write_one(name, arguments.strip() or "{}") for name, arguments in calls]
        return f"[{', '.join(texts)}]" if self.in_list else self.between.join(texts)

    def write_one(self, name: str, arguments: str) -> str:
        """The text of one call."""
        raise NotImplementedError

    def rules(self, place: int, name: str, schema: Json) -> list[str]:
        """Lark rules, of which `call_{place}` is a call of the tool with arguments by `schema`."""
        raise NotImplementedError

    def free_rules(self, place: int, name: str) -> list[str]:
        """The same with any arguments, and so that an answer in JSON may come instead."""
        return self.rules(place, name, {"type": "object"})


class JsonFormat(ToolFormat, frozen=True):
    """A JSON object, with or without markers around it."""

    arguments_key: str = "arguments"

    def parser(
        self, tools: Sequence[Json] = (), new_id: Callable[[], str] = new_call_id
    ) -> ToolParser:
        """See `ToolFormat`."""
        names = frozenset(schemas_of(tools))
        syntax = CallSyntax(self.begin, self.end, "{", strays="}" if self.end else "},;]")
        return ToolParser(syntax, lambda strict: CallReader(names, strict), new_id)

    def write_one(self, name: str, arguments: str) -> str:
        """See `ToolFormat`."""
        return self._before(name) + arguments + self._after()

    def rules(self, place: int, name: str, schema: Json) -> list[str]:
        """The arguments follow the schema."""
        before, after = lark_text(self._before(name)), lark_text(self._after())
        return [
            f"call_{place}: {before} arguments_{place} {after}",
            f"arguments_{place}: {json_rule(schema)}",
        ]

    def free_rules(self, place: int, name: str) -> list[str]:
        """See `ToolFormat`. Without a marker, the first letters may be those of the answer."""
        if self.begin:
            return super().free_rules(place, name)
        parts = {"name": {"const": name}, self.arguments_key: {"type": "object"}}
        call = {"type": "object", "properties": parts, "required": list(parts)}
        return [f"call_{place}: {json_rule({**call, 'additionalProperties': False})}"]

    def _before(self, name: str) -> str:
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": '
        return f"{self.begin}\n{head}" if self.begin else head

    def _after(self) -> str:
        return f"}}\n{self.end}" if self.end else "}"


class TagFormat(ToolFormat, frozen=True, kw_only=True):
    """Tags around the name and around each argument, whose value is plain text."""

    tags: Tags

    def parser(
        self, tools: Sequence[Json] = (), new_id: Callable[[], str] = new_call_id
    ) -> ToolParser:
        """See `ToolFormat`. The schemas tell texts from other values."""
        schemas, opener = schemas_of(tools), self.tags.opener
        syntax = CallSyntax(self.begin, self.end, opener, bare=bool(opener))
        return ToolParser(
            syntax,
            lambda strict: TagReader(self.tags, self.end, schemas, strict=strict),
            new_id,
        )

    def write_one(self, name: str, arguments: str) -> str:
        """Arguments that are no object are one named `arguments`."""
        tags = self.tags
        values = parsed(arguments)
        if not isinstance(values, dict):
            values = {"arguments": arguments}
        texts = [
            f"{tags.before_key}{key}{tags.after_key}{as_text(value)}{tags.after_value}"
            for key, value in values.items()
        ]
        return self._before(name) + "".join(texts) + self._after()

    def rules(self, place: int, name: str, schema: Json) -> list[str]:
        """Arguments in the order of the schema, the required ones always.

        A value that may be a text is free, unless the schema lists the texts; others follow it.
        """
        tags, free = self.tags, f"text_{place}"
        after_value = lark_text(tags.after_value)
        parts, rules = [], [f"{free}[suffix={after_value}]: /(?s:.*)/"]
        for number, (key, value, is_required) in enumerate(_arguments(schema)):
            part = f"argument_{place}_{number}"
            parts.append(part if is_required else f"{part}?")
            before = lark_text(f"{tags.before_key}{key}{tags.after_key}")
            rules.append(f"{part}: {before} {_value_rule(value, schema, free, after_value)}")
        if not isinstance(schema.get("properties"), Mapping):
            parts.append(f"any_{place}{{0,{_MAX_UNLISTED}}}")
            around = f"{lark_text(tags.before_key)} /[^<>\\n]+/ {lark_text(tags.after_key)}"
            rules.append(f"any_{place}: {around} {free}")
        before, after = lark_text(self._before(name)), lark_text(self._after())
        return [f"call_{place}: {' '.join([before, *parts, after])}", *rules]

    def _before(self, name: str) -> str:
        return f"{self.begin}{self.tags.before_name}{name}{self.tags.after_name}"

    def _after(self) -> str:
        return f"{self.tags.after_call}{self.end}"


def _arguments(schema: Json) -> list[tuple[str, Any, bool]]:
    """Name and schema of each argument, and whether it is required."""
    properties, required = schema.get("properties"), schema.get("required")
    named = dict(properties) if isinstance(properties, Mapping) else {}
    needed = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    for key in needed:
        named.setdefault(key, {})
    return [(key, value, key in needed) for key, value in named.items() if value is not False]


def _value_rule(schema: Any, root: Json, free: str, after: str) -> str:
    """What holds a value to its schema, with `after` at its end; `free` is any text with that."""
    kinds = kinds_of(schema, root)
    if is_text(kinds):
        texts = schema.get("enum", [schema.get("const")]) if isinstance(schema, Mapping) else []
        listed = " | ".join(lark_text(text) for text in texts if isinstance(text, str))
        return f"({listed}) {after}" if kinds and listed else free
    alone = {key: root[key] for key in _DEFINITIONS if key in root} | dict(schema)
    if "string" in kinds or any(not ref.startswith(_REFERENCES) for ref in _references(alone)):
        return free
    return f"{json_rule(alone)} {after}"


def _references(schema: Any) -> Iterator[str]:
    """Every `$ref` in a schema."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield str(schema["$ref"])
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)


def json_rule(schema: Json | bool) -> str:
    """Lark's JSON value by a schema, with bounded white space."""
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': WHITESPACE}})}"


def lark_text(text: str) -> str:
    """A Lark string."""
    return json.dumps(text, ensure_ascii=False)


def schemas_of(tools: Sequence[Json]) -> dict[str, Json]:
    """The schemas of checked tools' arguments, by name."""
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}


_MARKERS = ("<tool_call>", "</tool_call>")
"""The texts around a call in most forms."""
HERMES = JsonFormat("hermes", *_MARKERS)
"""Hermes, Qwen and many others."""
LLAMA = JsonFormat("llama", arguments_key="parameters", between="; ")
"""Llama 3.1 and later."""
JSON = JsonFormat("json")
"""Bare objects, one a line."""
JSON_LIST = JsonFormat("json list", in_list=True)
"""A list of objects: Mistral, behind a control token that is no text."""
FUNCTION_TAGS = TagFormat(
    "function tags",
    *_MARKERS,
    tags=Tags(
        before_name="\n<function=",
        after_name=">\n",
        before_key="<parameter=",
        after_key=">\n",
        after_value="\n</parameter>\n",
        after_call="</function>\n",
    ),
)
"""Qwen's models for code, and others."""
ARGUMENT_TAGS = TagFormat(
    "argument tags",
    *_MARKERS,
    tags=Tags(
        before_name="",
        after_name="\n",
        before_key="<arg_key>",
        after_key="</arg_key>\n<arg_value>",
        after_value="</arg_value>\n",
        after_call="",
    ),
)
"""GLM."""
TAG_FORMATS = (FUNCTION_TAGS, ARGUMENT_TAGS)


def format_of(template: str) -> ToolFormat:
    """The form with JSON objects that a chat template with tools asks its model for."""
    if HERMES.begin in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return JSON_LIST
    if '"parameters":' in template or "'parameters':" in template or "python_tag" in template:
        return LLAMA
    return JSON
