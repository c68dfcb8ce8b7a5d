"""OpenHands' events, of both its generations, alone or as the `history` of an evaluation's run.

Written: answers of the model, as their event keeps them, or else put together from an action's
thought and arguments. Read: messages of the user, the system's prompt, observations.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from copyahead.traces.formats.content import (
    ASSISTANT,
    TOOL,
    Piece,
    call_text,
    joined,
    text_of_parts,
)
from copyahead.traces.formats.conversations import Message
from copyahead.traces.formats.messages import (
    BOOKKEEPING,
    context_of,
    messages_from,
    name_of,
    read_message,
    thinking_of,
)
from copyahead.traces.formats.reading import Item, Notes, Reading, text_of, words

_QUIET_ACTIONS = frozenset({"change_agent_state", "recall", "start", "null", "condensation"})
_QUIET_OBSERVATIONS = frozenset({"agent_state_changed", "null"})
_QUIET_KINDS = words(
    "ConversationStateUpdateEvent PauseEvent CondensationRequest Condensation TokenEvent "
    "LLMCompletionLogEvent"
)
_NOT_ARGUMENTS = words(
    "thought hidden confirmation_state security_risk is_confirmed task_completed blocking "
    "is_input is_static image_urls file_urls wait_for_response agent_class content_type"
)
_MEMORIES = ("repo_instructions", "additional_agent_instructions", "conversation_instructions")
_OBSERVED = ("observation", "error", "rejection_reason", "summary")
_RUN = BOOKKEEPING | {
    "history", "instruction", "instance", "metadata", "git_patch", "test_result", "error",
    "attempt", "report",
}  # fmt: skip


def is_event(item: Any) -> bool:
    """Whether a JSON value is one event."""
    if not isinstance(item, dict):
        return False
    if isinstance(item.get("kind"), str):
        kind = item["kind"]
        return "source" in item and (
            kind in _QUIET_KINDS or kind.endswith(("Event", "Observation"))
        )
    of_action = "action" in item and "args" in item
    return of_action or ("observation" in item and ("extras" in item or "cause" in item))


def is_run(item: Item) -> bool:
    """Whether an object is a line of an evaluation's output; older ones pair their events."""
    history = item.get("history")
    if not isinstance(history, list) or not history:
        return False
    first = history[0]
    return is_event(first) or (isinstance(first, list) and bool(first) and is_event(first[0]))


def read_event(reading: Reading, item: Item) -> None:
    """An event of the file's one session."""
    _take(reading.file, reading, item)


def read_run(reading: Reading, item: Item) -> None:
    """A run with its events. The instruction is among them."""
    reading.notes.keys(item, _RUN, "a run")
    place = reading.place
    session = f"{name_of(item, place)} at {place}"
    for number, entry in enumerate(item["history"], start=1):
        for event in entry if isinstance(entry, list) else [entry]:
            reading.attempt(f"{place}, event {number}", partial(_take, session), event)


def _take(session: str, reading: Reading, event: Any) -> None:
    if not is_event(event):
        raise ValueError("an entry of the history is not an event")
    notes = reading.notes
    if "kind" in event:
        reading.append(session, _by_kind(event, notes), part_of=_answer_id(event))
        return
    answer = _model_response(event)
    if answer is not None:
        # One answer with several calls stands at each of their events.
        if not reading.seen((session, answer.get("id")) if answer.get("id") else None):
            message = answer["choices"][0]["message"]
            reading.append(session, read_message(message, notes, written=True))
    elif "action" in event and "args" in event:
        reading.append(session, _action(event, notes))
    else:
        reading.append(session, _observation(event))


def _model_response(event: Item) -> Any:
    """The answer behind an action, as the model's server gave it; None where it is not kept."""
    metadata = event.get("tool_call_metadata")
    of_agent = "action" in event and event.get("source") == "agent"
    answer = metadata.get("model_response") if of_agent and isinstance(metadata, dict) else None
    return answer if isinstance(answer, dict) and answer.get("choices") else None


def _action(event: Item, notes: Notes) -> list[Message]:
    name, arguments = event["action"], event["args"]
    if name in _QUIET_ACTIONS:
        return []
    if name == "system":
        return context_of({"system": arguments.get("content"), **_tools(arguments)}, notes)
    if event.get("source") != "agent":
        if name != "message":
            notes.add(f"action {name} of the user", "not known, so its text is not read")
        return [Message("user", text_of(arguments.get("content"), "content"))]
    thought = text_of(arguments.get("thought"), "thought")
    rest = {k: v for k, v in arguments.items() if k not in _NOT_ARGUMENTS and v not in (None, "")}
    pieces: list[Piece] = [(ASSISTANT, thought)]
    if name == "message":
        pieces.append((ASSISTANT, text_of(rest.get("content"), "content")))
    elif rest:
        pieces.append((ASSISTANT, call_text({"name": name, "arguments": rest})))
    return messages_from(pieces, written=True)


def _observation(event: Item) -> list[Message]:
    if event["observation"] in _QUIET_OBSERVATIONS:
        return []
    texts = [text_of(event.get("content"), "content")]
    extras = event.get("extras")
    if event["observation"] == "recall" and isinstance(extras, dict):
        # What was recalled stands beside the content, which only says so.
        texts += [text_of(extras.get(key), key) for key in _MEMORIES]
        known = extras.get("microagent_knowledge") or ()
        texts += [text_of(entry.get("content"), "microagent_knowledge") for entry in known]
    return [Message(TOOL, "\n".join(text for text in texts if text))]


def _answer_id(event: Item) -> str:
    return str(event.get("llm_response_id") or "")


def _by_kind(event: Item, notes: Notes) -> list[Message]:
    """An event of the second generation."""
    kind, source = event["kind"], event["source"]
    if kind in _QUIET_KINDS:
        return []
    if kind == "SystemPromptEvent":
        prompt = event.get("system_prompt")
        parts = [part for part in (prompt, event.get("dynamic_context")) if part]
        return context_of({"system": parts, **_tools(event)}, notes)
    if kind == "MessageEvent":
        return read_message(event["llm_message"], notes, written=source == "agent", known=_LLM)
    if kind == "ActionEvent":
        return _second_action(event, notes)
    observed = next((event[key] for key in _OBSERVED if event.get(key)), None)
    if observed is None:
        notes.add(f"event {kind}", "of a kind that is not known, so its text is not read")
        return []
    if isinstance(observed, dict):
        observed = observed.get("content", observed.get("output"))
    return [Message(TOOL, text_of_parts(observed, notes))]


def _second_action(event: Item, notes: Notes) -> list[Message]:
    pieces = [
        *thinking_of(event, notes),
        (ASSISTANT, text_of_parts(event.get("thought"), notes)),
        (ASSISTANT, call_text(event["tool_call"])),
    ]
    return messages_from(joined(pieces), written=True)


def _tools(holder: Item) -> dict[str, Any]:
    return {"tools": holder.get("tools")}


_LLM = frozenset({"responses_reasoning_item", "cache_enabled", "vision_enabled"})
