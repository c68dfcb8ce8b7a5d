"""From messages to the prompt that a model was trained on, by its own chat template.

Templates are Jinja programs that come with a model, and they differ in what they can do: some
know no system role, no tools, or no results of tools, and some refuse two user messages in a
row. Each template is tried out once, when it is loaded; what it cannot do is said in another way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from copyahead.chat.messages import (
    Messages,
    calls_as_text,
    checked,
    folded_systems,
    relaxed,
    results_as_text,
    short_ids,
    single_calls,
    with_results,
    with_system,
)
from copyahead.chat.reasoning import markers_of
from copyahead.chat.template.capabilities import find_capabilities, in_parts
from copyahead.chat.template.child import RenderingChildren
from copyahead.chat.template.jinja import compile_template, words_of
from copyahead.chat.template.literal_text import ControlTexts, RenderedPrompt
from copyahead.chat.tools.definitions import describe
from copyahead.chat.tools.formats import HERMES, ToolFormat, format_of
from copyahead.chat.untrusted_json import parsed
from copyahead.errors import EngineStopped, RequestError, TemplateError, TemplateLimitError

if TYPE_CHECKING:
    from copyahead.contracts import Backend

logger = logging.getLogger(__name__)

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""For models that bring no template."""


class ChatTemplate:
    """One model's way of writing conversations down."""

    def __init__(
        self,
        source: str | None = None,
        *,
        bos: str = "",
        eos: str = "",
        adds_bos: bool = False,
        control_texts: Collection[str] = (),
        children: RenderingChildren | None = None,
    ) -> None:
        """`source` None takes ChatML. `children` render `source`, and the template closes them;
        without any it runs in this process, for as long as it likes. `adds_bos`: the tokenizer
        puts `bos` first by itself, so the prompt is rendered without it. `control_texts`: how its
        control tokens are spelled. Raises TemplateError for a template with a fault."""
        self.source = CHATML if source is None else source
        self.bos, self.eos = bos, eos
        self._adds_bos = adds_bos
        self._children = children
        self._render: Callable[[dict[str, Any]], str]
        if children is None:
            self._render = compile_template(self.source).render
        else:
            children.start()
            self._render = children.render
        self.capabilities = find_capabilities(self._run)
        self.tool_format: ToolFormat = HERMES
        if self.capabilities.tools:
            self.tool_format = self.capabilities.tags or format_of(self.source)
        self.markers = markers_of(self.source)
        # Templates look for these in messages, where earlier turns may rightly hold them.
        own = {*self.markers, self.tool_format.begin, self.tool_format.end}
        self.controls = ControlTexts(control_texts, kept=own, known=words_of(self.source))
        self.end_texts: tuple[str, ...] = ("<|im_end|>",) if source is None else ()
        """Texts that end a turn where the model has no token for that."""

    @classmethod
    def from_backend(cls, backend: Backend) -> ChatTemplate:
        """The template that comes with a backend's model; ChatML, and a warning in the log,
        where there is none or it has a fault.

        It is a program of strangers, so it runs in processes of its own, with limits: `close` it.
        """
        source, tokenizer = backend.chat_template, backend.tokenizer
        options: dict[str, Any] = {
            "bos": tokenizer.bos_text,
            "eos": tokenizer.eos_text,
            "adds_bos": tokenizer.adds_bos,
            "control_texts": tokenizer.control_texts,
        }
        if source is None:
            logger.warning("the model has no chat template: messages are written as ChatML")
            return cls(None, **options)
        children = RenderingChildren(source)
        try:
            return cls(source, children=children, **options)
        except TemplateError as error:
            children.close()
            logger.warning("%s: messages are written as ChatML", error)
            return cls(None, **options)

    def rest(self) -> None:
        """End what has rendered and is not needed now. To be called often."""
        if self._children is not None:
            self._children.rest()

    def close(self) -> None:
        """End what renders; nothing can be rendered after it. Idempotent."""
        if self._children is not None:
            self._children.close()

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        **variables: Any,
    ) -> RenderedPrompt:
        """As `render`, with where the messages, tools and variables spell control tokens."""
        try:
            plain = checked(messages)
        except RecursionError:
            raise RequestError(
                "messages is nested too deeply: make it flatter", "messages"
            ) from None
        return self.controls.rendered(
            lambda given: self.render(given[0], given[1], **given[2]),
            [plain, list(tools or ()), variables],
        )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        /,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt's text. `variables`: what else the template may ask for.

        Content may be text or a list of text parts. Raises TemplateError, with the field's name,
        for messages that are no messages or that the template refuses.
        """
        given = {key: value for key, value in variables.items() if key not in _OWN}
        conversation = checked(messages)
        offered = [dict(tool) for tool in tools or ()]
        if offered and not self.capabilities.tools:
            conversation = with_system(conversation, describe(offered, self.tool_format))
            offered = []
        text = self._first_taken(
            self._attempts(conversation),
            lambda taken: self._run(taken, offered or None, add_generation_prompt, given),
        )
        return text.removeprefix(self.bos) if self._adds_bos and self.bos else text

    def _first_taken(self, attempts: Iterator[Messages], render: Callable[[Messages], str]) -> str:
        """What `render` makes of the first attempt that the template does not refuse."""
        tried: list[Messages] = []
        for messages in attempts:
            parted = self._parted(messages)
            if parted in tried:
                continue
            tried.append(parted)
            try:
                return render(parted)
            except (TemplateLimitError, EngineStopped):
                raise
            except Exception as error:
                last = error
        raise TemplateError(
            f"the model's chat template refuses the conversation: {last}", field="messages"
        ) from last

    def _attempts(self, messages: Messages) -> Iterator[Messages]:
        """The conversation in the shapes that templates ask for, the nearest to the truth first."""
        adapted = self._adapted(messages)
        yield adapted
        gentler = relaxed(adapted)
        yield gentler
        yield with_results(gentler)
        # Nothing but turns of users and the model.
        plain = results_as_text(calls_as_text(messages, self.tool_format))
        yield relaxed(plain if self.capabilities.system else folded_systems(plain))

    def _adapted(self, messages: Messages) -> Messages:
        """The same conversation without what the template cannot show."""
        capabilities = self.capabilities
        if not capabilities.results or capabilities.calls is None:
            messages = results_as_text(messages)
        if capabilities.calls is None:
            messages = calls_as_text(messages, self.tool_format)
        else:
            if not capabilities.parallel_calls:
                messages = single_calls(messages)
            named = capabilities.tags is not None
            messages = [
                _as_taken(message, *capabilities.calls, named=named) for message in messages
            ]
            if capabilities.short_ids:
                messages = short_ids(messages)
        return messages if capabilities.system else folded_systems(messages)

    def _parted(self, messages: Messages) -> Messages:
        return [in_parts(message) for message in messages] if self.capabilities.parts else messages

    def _run(
        self,
        messages: Messages,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        return self._render(
            {
                **(variables or {}),
                "messages": messages,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
                "bos_token": self.bos,
                "eos_token": self.eos,
            }
        )


_OWN = frozenset({"messages", "tools", "bos_token", "eos_token", "raise_exception", "strftime_now"})


def _as_taken(
    message: dict[str, Any], content: str | None, as_object: bool, *, named: bool
) -> dict[str, Any]:
    """A message with calls as the template takes them. `named`: it asks arguments their names."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    taken = [
        {
            **call,
            "function": {
                "name": call["function"]["name"],
                "arguments": _object(call["function"]["arguments"], named)
                if as_object
                else call["function"]["arguments"],
            },
        }
        for call in calls
    ]
    return {**message, "content": message["content"] or content, "tool_calls": taken}


def _object(arguments: str, named: bool) -> Any:
    """The object that a JSON text stands for. Where it stands for none: the text, or, where all
    has to be `named`, an object with it."""
    value = parsed(arguments)
    if isinstance(value, dict):
        return value
    return {"arguments": arguments} if named else arguments
