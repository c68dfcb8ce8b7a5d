"""`copyahead chat`: a conversation in the terminal, or in a pipe.

session    the conversation, how it is answered, and what that has cost
commands   what begins with a slash
saved      conversations in files
reader     where messages come from
screen     where answers are shown
loop       from one to the other, until it ends
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from copyahead.cli.options import (
    DEFAULT_LOOKUP,
    DEFAULT_MODEL,
    DEFAULT_SAMPLING,
    NO_DRAFT_MODEL,
    NONE_YET,
    OUTPUT,
    AnyText,
    DraftModel,
    Flat,
    Lookup,
    LookupFlags,
    Model,
    ModelPath,
    Quiet,
    Sampling,
    SamplingFlags,
)
from copyahead.cli.terminal import output
from copyahead.cli.terminal.sentences import check_model_path
from copyahead.config import DraftModelOptions, LookupOptions, ModelOptions
from copyahead.errors import MissingExtraError
from copyahead.ranges import Range, check_ranges

if TYPE_CHECKING:
    from copyahead.cli.chat.session import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How the model is spoken to, and how far it answers."""

    system: AnyText = ""
    """System message: what the model is told before the conversation."""
    max_tokens: Annotated[int | None, Range(1)] = None
    """Most tokens of an answer; until the context is full when not given."""
    stop: Annotated[tuple[str, ...], NONE_YET] = ()
    """An answer ends before the first of these texts. May be repeated."""

    def __post_init__(self) -> None:
        check_ranges(self)


_DEFAULT_CHAT = ChatOptions()


def chat(
    model: ModelPath = None,
    /,
    *,
    chat_options: Annotated[ChatOptions, Flat] = _DEFAULT_CHAT,
    sampling: Sampling = DEFAULT_SAMPLING,
    lookup_options: Lookup = DEFAULT_LOOKUP,
    draft_options: DraftModel = NO_DRAFT_MODEL,
    model_options: Model = DEFAULT_MODEL,
    show_copied: Annotated[bool, Parameter(group=OUTPUT)] = True,
    quiet: Quiet = False,
) -> int:
    """Talk with the model. Each turn reads only what is new, and copies from all that was said.

    In a terminal `/help` lists the commands, and copied tokens are shown in colour. In a pipe every
    line is a message, and the answers are written as plain text.

    Example: `copyahead chat model.gguf --system "Answer briefly."`

    Parameters
    ----------
    show_copied
        Show the tokens that were copied in colour, in a terminal.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise MissingExtraError("jinja2", "chat")
    output.be_quiet(quiet)
    check_model_path("chat", model)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive and importlib.util.find_spec("prompt_toolkit") is None:
        raise MissingExtraError("prompt_toolkit", "chat")
    return _run(
        model,
        chat_options,
        _settings(chat_options, sampling, lookup_options),
        (model_options, lookup_options, draft_options),
        interactive=interactive,
        tinted=show_copied,
    )


def _settings(options: ChatOptions, sampling: SamplingFlags, lookup: LookupFlags) -> Settings:
    from copyahead.cli.chat.session import Settings

    return Settings(
        sampling=sampling,
        max_tokens=options.max_tokens,
        stop=options.stop,
        lookup=lookup.lookup,
        policy=lookup.policy,
    )


def _run(
    model: Path | None,
    options: ChatOptions,
    settings: Settings,
    loaded: tuple[ModelOptions, LookupOptions, DraftModelOptions],
    *,
    interactive: bool,
    tinted: bool,
) -> int:
    """Load the model and talk with it; the exit status."""
    from contextlib import ExitStack, closing

    from copyahead.chat.template.template import ChatTemplate
    from copyahead.cli.chat.commands import Commands
    from copyahead.cli.chat.loop import Loop
    from copyahead.cli.chat.screen import Screen
    from copyahead.cli.chat.session import Session
    from copyahead.loading import load

    model_options, lookup, draft = loaded
    # So that /lookup can switch it on.
    lookup = replace(lookup, lookup=True)
    with ExitStack() as stack:
        engine = stack.enter_context(load(model, model=model_options, lookup=lookup, draft=draft))
        template = stack.enter_context(closing(ChatTemplate.from_backend(engine.backend)))
        session = Session(engine, template, settings, system=options.system)
        name = str(model) if model is not None else Path(engine.backend.name).stem
        loop = Loop(session, Screen(terminal=interactive, tinted=tinted))
        commands = Commands(session, model=name, draft=draft, say=loop.say)
        if engine.draft_model is not None:
            output.remark(f"draft model: {engine.draft_model}")
        if not interactive:
            return loop.read(commands, sys.stdin.buffer)
        output.remark(f"{name}, {output.level(engine.backend.exactness)}; /help lists commands")
        return loop.talk(commands)
