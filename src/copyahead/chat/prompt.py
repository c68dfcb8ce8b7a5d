"""From a conversation to the prompt of a request, and to how its answer is to be read.

Whoever speaks of messages goes through here, and brings its own into the shape of OpenAI's chat
completions first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from copyahead.chat.reasoning import ReasoningMarkers, ReasoningSplitter, opens_reasoning
from copyahead.chat.reply import Reply
from copyahead.chat.template.literal_text import RenderedPrompt
from copyahead.chat.template.template import ChatTemplate
from copyahead.chat.tools.definitions import ToolSelection, check_tools, grammar_for, select_tools
from copyahead.chat.tools.formats import Json, ToolFormat
from copyahead.contracts import Tokenizer
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
    """The field that `constraint` comes from: `tools`, or the caller's `answer_field`."""

    def field_names(self, names: Mapping[str, str]) -> Mapping[str, str]:
        """`names` of a route, from those of the chat route and the engine, for this request."""
        return {**names, **dict.fromkeys(self.constraint, self.constrained_by)}

    def reply(self) -> Reply:
        """A reader for one answer."""
        parser = self.form.parser(self.tools) if self.form is not None else None
        splitter = ReasoningSplitter(self.thinking, self.markers)
        return Reply(splitter, parser, max_calls=self.max_calls)


def chat_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Any] | None = None,
    tool_choice: Any = None,
    parallel_tool_calls: bool | None = None,
    schema: Json | bool | None = None,
    rule: str | None = None,
    answer_field: str = "response_format",
    template_options: Mapping[str, Any] | None = None,
    prefill: str = "",
    check: Callable[[], None] = lambda: None,
) -> ChatPrompt:
    """Render and tokenise a conversation. Raises RequestError.

    `messages`, `tools` and `tool_choice` are in the shape of OpenAI's chat completions, and checked
    here. `schema`: the JSON schema that the answer has to follow; None where it is free. `rule`:
    an expression of llguidance's Lark, instead of it. `answer_field`: where either comes from.
    What holds the answer holds text: where a call has to come, it is the call that does.
    `prefill`: the beginning of the answer, which the model goes on with; it has then thought.
    `check`: called between the longer parts of the work, which it may end by raising.
    """
    check()
    checked = check_tools(tools)
    selection = select_tools(checked, tool_choice)
    # A grammar holds the model to one of them, so all are shown: the next turn's prompt, with
    # another choice, then begins in the same way and need not be read again.
    shown = checked if selection.must_call else selection.tools
    options = {k: v for k, v in (template_options or {}).items() if k not in _TAKEN}
    rendered = template.prompt(messages, shown or None, **options)
    check()
    if prefill and opens_reasoning(rendered.text, template.markers):
        rendered += RenderedPrompt(f"{template.markers.end}\n\n")
    rendered += template.controls.literal(prefill)
    thinking = opens_reasoning(rendered.text, template.markers)
    opened = template.markers if thinking else None
    parallel = parallel_tool_calls is not False
    constraint, constrained_by = _constraint(
        schema if rule is None else rule,
        selection,
        template.tool_format,
        parallel=parallel,
        opened=opened,
        answer_field=answer_field,
    )
    check()
    return ChatPrompt(
        tokens=template.controls.encode(tokenizer, rendered),
        markers=template.markers,
        thinking=thinking,
        form=template.tool_format if selection.tools else None,
        tools=selection.tools,
        max_calls=None if parallel else 1,
        constraint=constraint,
        constrained_by=constrained_by,
    )


def _constraint(
    answer: Json | bool | str | None,
    selection: ToolSelection,
    form: ToolFormat,
    *,
    parallel: bool,
    opened: ReasoningMarkers | None,
    answer_field: str,
) -> tuple[Mapping[str, str], str]:
    """What holds an answer to a schema, a rule, or the choice among tools, and the field that it
    comes from. `opened`: thinking, under way, comes first."""
    is_schema = answer is not None and not isinstance(answer, str)
    if is_schema and not selection.tools and opened is None:
        return {"json_schema": json.dumps(answer)}, answer_field
    grammar = grammar_for(
        selection,
        form,
        parallel=parallel,
        thinking=opened,
        opened=opened is not None,
        answer=answer,
        answer_field=answer_field,
    )
    field = "tools" if answer is None or selection.must_call else answer_field
    return {} if grammar is None else {"grammar": grammar}, field
