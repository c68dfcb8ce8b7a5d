"""Tools as a request gives them, the choice among them, and the grammar of a call that must come.

How models write calls is the business of `formats`, and how calls are found that of `stream`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from copyahead.chat.reasoning import ReasoningMarkers
from copyahead.chat.tools.formats import HERMES, Json, ToolFormat, json_rule, lark_text
from copyahead.chat.untrusted_json import MAX_DEPTH, is_shallow
from copyahead.errors import RequestError
from copyahead.grammar.compiler import allows_nothing
from copyahead.grammar.emptiness import pruned

MAX_CALLS = 16
"""Most calls in one answer that a grammar asks for."""


def check_tools(tools: Sequence[Any] | None, field: str = "tools") -> list[Json]:
    """The function tools of a Chat Completions request, checked and complete.

    Raises RequestError naming the entry and what is wrong with it.
    """
    checked: list[Json] = []
    for place, tool in enumerate(tools or ()):
        where = f"{field}[{place}]"
        kind = tool.get("type", "function") if isinstance(tool, Mapping) else None
        if kind != "function":
            raise RequestError(f"{where}.type must be 'function', not {kind!r}", field=where)
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise RequestError(f"{where}.function must be an object with a name", field=where)
        checked.append(checked_function(function, f"{where}.function"))
    counts = Counter(tool_names(checked))
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise RequestError(f"{field} names {twice!r} twice: give each tool its own name", field)
    return checked


def checked_function(
    function: Mapping[str, Any], where: str, parameters_field: str = "parameters"
) -> Json:
    """A function as a tool of a Chat Completions request.

    `where` is its name in errors, and its schema is in `parameters_field`. Raises RequestError.
    """
    name, parameters = function.get("name"), function.get(parameters_field)
    if not isinstance(name, str) or not 0 < len(name) <= 128 or not name.isprintable():
        raise RequestError(f"{where}.name must be 1 to 128 printable characters", field=where)
    if parameters is not None and not isinstance(parameters, Mapping):
        raise RequestError(f"{where}.{parameters_field} must be a JSON schema object", where)
    if not is_shallow(parameters):
        raise RequestError(
            f"{where}.{parameters_field} is nested more than {MAX_DEPTH} deep: make it flatter",
            field=where,
        )
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{where}.description must be a text", field=where)
    schema = dict(parameters or {}) or {"type": "object", "properties": {}}
    return {
        "type": "function",
        "function": {"name": name, "description": description or "", "parameters": schema},
    }


def tool_names(tools: Sequence[Json] | None) -> list[str]:
    """The names of checked tools."""
    return [tool["function"]["name"] for tool in tools or ()]


def describe(tools: Sequence[Json], form: ToolFormat = HERMES) -> str:
    """System text that tells a model of its tools, for templates that cannot."""
    lines = [
        "You can call the functions listed below. Each line is one function: its name, what it "
        "does, and the JSON schema of its arguments.",
        *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools),
        "To call a function, write exactly this, and nothing after it:",
        form.write([("function name", '{"argument name": "value"}')]),
        "Write one such block for each call. Call a function only when it is needed to answer.",
    ]
    return "\n".join(lines)


class ToolSelection(NamedTuple):
    """What a request's `tool_choice` makes of its tools."""

    tools: Sequence[Json] = ()
    """Those that the model may call."""
    must_call: bool = False
    """Whether it has to call one."""
    call_once: bool = False
    """Whether exactly one call is asked for: the choice names a single tool."""


def select_tools(tools: Sequence[Json], choice: Any) -> ToolSelection:
    """The selection from checked tools by `tool_choice`.

    `choice` is none, auto, required, `{"type": "function", "function": {"name": ...}}`, the same
    without the inner object, or `{"type": "allowed_tools", ...}`. Raises RequestError when it is
    something else, or names a tool that there is not.
    """
    if choice is None or choice == "auto":
        return ToolSelection(tools)
    if choice == "none":
        return ToolSelection()
    if choice == "required":
        names, must_call = tool_names(tools), True
    else:
        names, must_call = _named(choice)
    chosen = [tool for tool in tools if tool["function"]["name"] in names]
    missing = set(names) - set(tool_names(chosen))
    if missing or not chosen:
        what = f"names {sorted(missing)[0]!r}" if missing else "asks for a call"
        known = ", ".join(tool_names(tools)) or "no tool"
        raise RequestError(f"tool_choice {what}, and tools has {known}", field="tool_choice")
    call_once = must_call and choice != "required" and len(chosen) == 1
    return ToolSelection(chosen, must_call, call_once)


def _named(choice: Any) -> tuple[list[str], bool]:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    name = _function_name(choice)
    if name is not None:
        return [name], True
    if kind == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        if isinstance(inner, Mapping) and isinstance(inner.get("tools"), list):
            functions = [_function_name(tool) for tool in inner["tools"]]
            names = [name for name in functions if name is not None]
            if len(names) == len(functions):
                return names, inner.get("mode") == "required"
    raise RequestError(
        "tool_choice must be 'none', 'auto', 'required', or an object of type 'function' with the "
        "name of one",
        field="tool_choice",
    )


def _function_name(choice: Any) -> str | None:
    """The function that `{"type": "function", ...}` names, in either of its two forms."""
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return None
    inner = choice.get("function", choice)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


def grammar_for(
    selection: ToolSelection,
    form: ToolFormat,
    *,
    parallel: bool = True,
    thinking: ReasoningMarkers | None = None,
    opened: bool = False,
    answer: Json | bool | str | None = None,
    answer_field: str = "response_format",
) -> str | None:
    """A grammar (llguidance's Lark) for answers that call what `selection` asks for.

    Where the model need not call, it is for calls with any arguments or for `answer`, the schema
    or the Lark expression of the other answers (it comes from `answer_field`); None if these are
    free. A call may be followed by more when `parallel`,
    except where one tool is to be called once. `thinking`: the model may think first, and `opened`
    says that it already does. Raises RequestError for a schema that no value follows.
    """
    tools, must_call, call_once = selection
    if not must_call and answer is None:
        return None
    calls = _calls_rule(form, parallel and not call_once)
    start = calls if must_call else f"({calls} | answer)" if tools else "answer"
    lines = [f"start: {_thinking_rule(thinking, opened)}{start}"]
    if thinking is not None:
        lines.append(f"thoughts[suffix={lark_text(thinking.end)}]: /(?s:.*)/")
    if not must_call and answer is not None:
        is_rule = isinstance(answer, str)
        rule = answer if is_rule else json_rule(_possible(answer, answer_field))
        lines.append(f"answer: {rule}")
    if tools:
        lines.append("call: " + " | ".join(f"call_{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        name, parameters = tool["function"]["name"], tool["function"]["parameters"]
        if must_call:
            lines += form.rules(place, name, _closed(_possible(parameters, "tools", name)))
        else:
            lines += form.free_rules(place, name)
    return "\n".join(lines) + "\n"


def _calls_rule(form: ToolFormat, many: bool) -> str:
    more = f"{{0,{MAX_CALLS - 1}}}"
    if form.in_list:
        return '"[" call (", " call)' + more + ' "]"' if many else '"[" call "]"'
    return f"call ({lark_text(form.between)} call){more}" if many else "call"


def _thinking_rule(thinking: ReasoningMarkers | None, opened: bool) -> str:
    if thinking is None:
        return ""
    if opened:
        return r"thoughts /\n{0,2}/ "
    return rf"({lark_text(thinking.begin)} thoughts /\n{{0,2}}/)? "


def _possible(schema: Any, field: str, tool: str = "") -> Any:
    """The schema without the parts that no value follows; RequestError where that is all of it."""
    possible = pruned(schema)
    if possible is False:
        raise allows_nothing(f"{field}: the schema of {tool!r}" if tool else field, field)
    return possible


def _closed(parameters: Json) -> Json:
    """The schema without arguments that it does not list."""
    return (
        {"additionalProperties": False, **parameters} if "properties" in parameters else parameters
    )
