"""Chat requests as clients wrote them before there were tools, brought into the newer shape.

`functions` and `function_call` became `tools` and `tool_choice`; a message has at most one call,
and its result is a message of the role `function` that names what was called.
"""

from __future__ import annotations

import json
from typing import Any

from copyahead.chat.tools.definitions import checked_function, tool_names
from copyahead.chat.tools.elsewhere import functions_only
from copyahead.server.errors import ApiError
from copyahead.server.openai.wire import ChatRequest, ToolCall


def messages_of(body: ChatRequest) -> list[dict[str, Any]]:
    """The messages, with every call among `tool_calls`."""
    messages = []
    call_id = ""
    for place, given in enumerate(body.messages):
        message = given.model_dump(exclude_none=True, exclude={"function_call", "tool_calls"})
        if given.function_call is not None:
            call_id = f"call_{place}"
            call = {"id": call_id, "type": "function", "function": given.function_call.model_dump()}
            message["tool_calls"] = [call]
        elif given.tool_calls is not None:
            where = f"messages.{place}.tool_calls"
            message["tool_calls"] = [_call(each, where) for each in given.tool_calls]
        elif given.role == "function" and given.tool_call_id is None and call_id:
            message["tool_call_id"] = call_id
        messages.append(message)
    return messages


def _call(call: ToolCall, where: str) -> dict[str, Any]:
    if call.function is not None:
        function = call.function.model_dump()
    elif call.custom is not None:
        arguments = json.dumps({"input": call.custom.input}, ensure_ascii=False)
        function = {"name": call.custom.name, "arguments": arguments}
    else:
        raise ApiError(
            f"{where} holds a call without a function", param=where, code="invalid_value"
        )
    return {"id": call.id, "type": "function", "function": function}


def is_legacy(body: ChatRequest) -> bool:
    """Whether the answer's call goes into `function_call`."""
    return body.functions is not None


def tools_of(body: ChatRequest) -> dict[str, Any]:
    """`tools`, `tool_choice` and `parallel_tool_calls` for `chat.prompt.chat_prompt`. Raises
    RequestError or ApiError by the name of the field."""
    if not is_legacy(body):
        taken = functions_only(body.tools, (None, "function"))
        return {
            "tools": [tool for _, tool in taken],
            "tool_choice": body.tool_choice,
            "parallel_tool_calls": body.parallel_tool_calls,
        }
    tools = [
        checked_function(function, f"functions[{place}]")
        for place, function in enumerate(body.functions or ())
    ]
    return {"tools": tools, "tool_choice": _choice(body, tools), "parallel_tool_calls": False}


def _choice(body: ChatRequest, tools: list[dict[str, Any]]) -> Any:
    choice = body.function_call
    if choice is None or choice in ("none", "auto"):
        return choice
    name = choice.get("name") if isinstance(choice, dict) else None
    if name not in tool_names(tools):
        raise ApiError(
            "function_call must be 'none', 'auto', or an object with the name of a function",
            param="function_call",
            code="invalid_value",
        )
    return {"type": "function", "function": {"name": name}}
