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
    constraint = constraint_of(response_format, opened)
    constrained_by = "response_format"
    parallel = parallel_tool_calls is not False
    if offered:
        grammar = grammar_for(
            checked,
            tool_choice,
            template.tool_format,
            parallel=parallel,
            thinking=opened,
            opened=thinking,
        )
        if grammar is not None and constraint:
            raise RequestError(
                "response_format excludes a tool_choice that asks for a call", "response_format"
            )
        if grammar is not None:
            constraint, constrained_by = {"grammar": grammar}, "tools"
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


def constraint_of(
    response_format: ResponseFormat | None, opened: ReasoningMarkers | None = None
) -> Mapping[str, str]:
    """What holds an answer to `response_format`; `opened`: thinking, under way, comes first."""
    schema = schema_of(response_format)
    if schema is None:
        return {}
    if opened is None:
        return {"json_schema": schema}
    end = json.dumps(opened.end, ensure_ascii=False)
    return {
        "grammar": f"start: thoughts /\\n{{0,2}}/ answer\n"
        f"thoughts[suffix={end}]: /(?s:.*)/\n"
        f"answer: %json {schema}\n"
    }


def schema_of(response_format: ResponseFormat | None) -> str | None:
    """The JSON schema that an answer has to follow, as text; None where it is free."""
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return '{"type": "object"}'
    given = response_format.json_schema
    if given is None or given.json_schema is None:
        raise ApiError(
            "response_format of type json_schema needs json_schema.schema",
            param="response_format",
            code="invalid_value",
        )
    return json.dumps(given.json_schema)
