"""From a conversation to the prompt of a request, and to how its answer is to be read.

Every route that speaks of messages goes through here; each brings its own into the shape of the
chat route first.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from copyahead.errors import RequestError
from copyahead.server.control_texts import Spoken
from copyahead.server.errors import ApiError
from copyahead.server.reasoning import ReasoningMarkers, ReasoningSplitter, opens_reasoning
from copyahead.server.reply import Reply
from copyahead.server.service import Service
from copyahead.server.tool_formats import Json, ToolFormat
from copyahead.server.tools import check_tools, grammar_for, wanted
from copyahead.server.wire import ResponseFormat
from copyahead.types import Token

_TAKEN = frozenset({"messages", "tools", "add_generation_prompt", "self"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A rendered conversation."""

    tokens: list[Token]
    markers: ReasoningMarkers
    thinking: bool
    """Whether the prompt ends inside the thinking."""
    form: ToolFormat | None
    """How calls are written; None where none are looked for."""
    tools: Sequence[Json]
    """The tools that may be called."""
    max_calls: int | None
    constraint: Mapping[str, str]
    """`json_schema` or `grammar` of the request; empty where the answer is free."""
    constrained_by: str
    """The field of the chat route that `constraint` comes from."""

    def field_names(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """`names` of a route, from those of the chat route and the engine, for this request."""
        return {**names, "grammar": names.get(self.constrained_by, self.constrained_by)}

    def reply(self) -> Reply:
        """A reader for one answer."""
        parser = self.form.parser(self.tools) if self.form is not None else None
        splitter = ReasoningSplitter(self.thinking, self.markers)
        return Reply(splitter, parser, max_calls=self.max_calls)


async def chat_prompt(
    service: Service,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] | None = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    response_format: ResponseFormat | None = None,
    template_options: Mapping[str, Any] | None = None,
    prefill: str = "",
) -> ChatPrompt:
    """Render and tokenise a conversation, in threads. Raises RequestError or ApiError.

    `messages`, `tools` and `tool_choice` are in the shape of the chat route, and checked here.
    `prefill`: the beginning of the answer, which the model goes on with; it has then thought.
    """
    template = service.template
    checked = check_tools(tools)
    offered, must_call = wanted(checked, tool_choice)
    # A grammar holds the model to one of them, so all are shown: the next turn's prompt, with
    # another choice, then begins in the same way and need not be read again.
    shown = checked if must_call else offered
    options = {k: v for k, v in (template_options or {}).items() if k not in _TAKEN}
    spoken = await asyncio.to_thread(template.prompt, messages, shown or None, **options)
    if prefill and opens_reasoning(spoken.text, template.markers):
        spoken += Spoken(f"{template.markers.end}\n\n")
    spoken += template.controls.spoken(prefill)
    thinking = opens_reasoning(spoken.text, template.markers)
    opened = template.markers if thinking else None
    parallel = parallel_tool_calls is not False
    constraint, constrained_by = _constraint(
        schema_of(response_format),
        checked,
        tool_choice,
        template.tool_format,
        parallel=parallel,
        opened=opened,
    )
    return ChatPrompt(
        tokens=await service.encode_chat(spoken),
        markers=template.markers,
        thinking=thinking,
        form=template.tool_format if offered else None,
        tools=offered,
        max_calls=None if parallel else 1,
        constraint=constraint,
        constrained_by=constrained_by,
    )


def _constraint(
    schema: Json | bool | None,
    tools: Sequence[Json],
    choice: Any,
    form: ToolFormat,
    *,
    parallel: bool,
    opened: ReasoningMarkers | None,
) -> tuple[Mapping[str, str], str]:
    """What holds an answer to `schema` or to the choice among tools, and the field that it comes
    from. `opened`: thinking, under way, comes first."""
    offered, must_call = wanted(tools, choice)
    if schema is not None and must_call:
        raise RequestError(
            "response_format excludes a tool_choice that asks for a call", "response_format"
        )
    if schema is not None and not offered and opened is None:
        return {"json_schema": json.dumps(schema)}, "response_format"
    is_opened = opened is not None
    grammar = grammar_for(
        tools, choice, form, parallel=parallel, thinking=opened, opened=is_opened, answer=schema
    )
    field = "tools" if schema is None else "response_format"
    return {} if grammar is None else {"grammar": grammar}, field


def constraint_of(response_format: ResponseFormat | None) -> Mapping[str, str]:
    """What holds an answer without thinking or calls to `response_format`."""
    schema = schema_of(response_format)
    return {} if schema is None else {"json_schema": json.dumps(schema)}


def schema_of(response_format: ResponseFormat | None) -> Json | bool | None:
    """The JSON schema that an answer has to follow; None where it is free."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return {"type": "object"}
    given = response_format.json_schema
    if given is None or given.json_schema is None:
        raise ApiError(
            "response_format of type json_schema needs json_schema.schema",
            param="response_format",
            code="invalid_value",
        )
    return given.json_schema
