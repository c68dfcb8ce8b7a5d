"""The slash commands of a chat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from copyahead.cli.chat.saved import (
    SavedChat,
    SavedMessage,
    SavedOptions,
    read,
    read_regular,
    save,
)
from copyahead.cli.chat.session import Session
from copyahead.cli.terminal import output
from copyahead.config import DraftModelOptions, LookupOptions
from copyahead.errors import ConfigError
from copyahead.loading import check_policy

_KEYS = (
    "Enter sends the message. Alt-Enter, or a backslash at the end of a line, begins a new line.\n"
    "Ctrl-C stops an answer. Ctrl-D at an empty prompt ends the chat.\n"
    "A message that is to begin with a slash begins with a space."
)


class _Command(NamedTuple):
    usage: str
    about: str
    run: Callable[[str], None]


class Commands:
    """Carries out what begins with a slash, and keeps what goes with the next message."""

    def __init__(
        self,
        session: Session,
        *,
        model: str,
        draft: DraftModelOptions,
        say: Callable[[str], None],
    ) -> None:
        """`model`: what to call it in saved files. `say`: shows a line to the user."""
        self.ended = False
        """Whether `/quit` was given."""
        self._session = session
        self._model = model
        self._draft = draft
        self._say = say
        self._files: list[tuple[str, str]] = []
        self._longest = 0
        """Bytes of the longest token; 0 until it is asked for."""
        self._commands = {
            "/stats": _Command("", "what copying did", self._stats),
            "/lookup": _Command("on|off", "copy, or decode plainly", self._lookup),
            "/policy": _Command("NAME", "how much of a copy to try", self._policy),
            "/system": _Command(
                "TEXT", "set the system message; without a text, none", self._system
            ),
            "/file": _Command("PATH", "add a file's text to the next message", self._file),
            "/save": _Command("PATH", "write the conversation to a file", self._save),
            "/load": _Command("PATH", "go on with a conversation from a file", self._load),
            "/reset": _Command("", "begin a new conversation", self._reset),
            "/help": _Command("", "this list", self._help),
            "/quit": _Command("", "end the chat", self._quit),
        }

    @property
    def names(self) -> list[str]:
        """All of them, slashes included."""
        return list(self._commands)

    def run(self, line: str) -> None:
        """Carry out `line`, which begins with a slash. Raises CopyaheadError where it is wrong."""
        name, _, rest = line.strip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise ConfigError(
                f"there is no command {name}: /help lists them, and a message that is to begin "
                "with a slash begins with a space"
            )
        command.run(rest.strip())

    def with_files(self, message: str) -> str:
        """`message` after the files that go with it."""
        texts = [f"{name}:\n{fenced(text)}" for name, text in self._files]
        return "\n\n".join([*texts, message])

    def sent(self) -> None:
        """The message was answered: its files are part of the conversation now."""
        self._files = []

    def _stats(self, rest: str) -> None:
        _nothing_after("/stats", rest)
        last = self._session.last
        if last is None:
            self._say("nothing was answered yet")
            return
        self._say(f"last answer: {last.status()}")
        count = self._session.num_answers
        self._say(f"{count} {'answer' if count == 1 else 'answers'} of this conversation:")
        self._say(output.stats_text(self._session.totals))

    def _lookup(self, rest: str) -> None:
        if rest not in ("on", "off"):
            raise ConfigError(f"/lookup must be followed by on or off, not {rest!r}")
        self._session.set_lookup(rest == "on")
        self._say(f"lookup is {rest}")

    def _policy(self, rest: str) -> None:
        if not rest:
            raise ConfigError("/policy must be followed by a name: copyahead policies lists them")
        check_policy(LookupOptions(policy=rest), self._draft)
        self._session.settings.policy = rest
        self._say(f"policy is {rest}")

    def _system(self, rest: str) -> None:
        conversation = self._session.conversation
        conversation.replace(rest, conversation.messages)
        self._say("the system message is set" if rest else "there is no system message")

    def _file(self, rest: str) -> None:
        path = _path("/file", rest)
        size = self._session.context_size
        text = self._text(path, size)
        if not text.strip():
            raise ConfigError(f"{path} is empty: there is nothing to add")
        self._files.append((path.name, text))
        self._say(f"{path.name}, {len(text)} characters, goes with the next message")

    def _text(self, path: Path, context_size: int) -> str:
        """A file's text. ConfigError where it has more bytes than the context can hold."""
        tokenizer = self._session.engine.backend.tokenizer
        if not self._longest:
            lengths = (len(tokenizer.token_bytes(id_)) for id_ in range(tokenizer.vocab_size))
            self._longest = max(lengths, default=1)
        try:
            text = read_regular(path, context_size * self._longest).decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not UTF-8 text: convert it") from None
        return text

    def _save(self, rest: str) -> None:
        path = _path("/save", rest)
        session, settings = self._session, self._session.settings
        conversation = session.conversation
        save(
            path,
            SavedChat(
                messages=[
                    SavedMessage(
                        role=message["role"],
                        content=message["content"],
                        reasoning_content=message.get("reasoning_content", ""),
                    )
                    for message in conversation.messages
                ],
                system=conversation.system,
                model=self._model,
                options=SavedOptions(
                    lookup=settings.lookup,
                    policy=settings.policy,
                    max_tokens=settings.max_tokens,
                    stop=settings.stop,
                    sampling=settings.sampling,
                ),
            ),
        )
        self._say(f"{len(conversation.messages)} messages are in {path}")

    def _load(self, rest: str) -> None:
        path = _path("/load", rest)
        chat = read(path)
        options, session = chat.options, self._session
        try:
            if options.policy:
                check_policy(LookupOptions(policy=options.policy), self._draft)
        except ConfigError as error:
            raise ConfigError(f"{path}: options.{error}") from None
        messages = [
            {key: value for key, value in _fields(message).items() if value or key == "content"}
            for message in chat.messages
        ]
        session.conversation.replace(chat.system, messages)
        session.forget_counts()
        settings = session.settings
        settings.policy = options.policy or settings.policy
        settings.sampling = options.sampling or settings.sampling
        settings.stop = settings.stop if options.stop is None else options.stop
        settings.max_tokens = options.max_tokens
        settings.lookup = settings.lookup if options.lookup is None else options.lookup
        self._say(f"{len(messages)} messages were read from {path}")

    def _reset(self, rest: str) -> None:
        _nothing_after("/reset", rest)
        self._session.reset()
        self._files = []
        self._say("a new conversation begins")

    def _help(self, rest: str) -> None:
        _nothing_after("/help", rest)
        usages = [f"{name} {command.usage}".strip() for name, command in self._commands.items()]
        width = max(map(len, usages))
        abouts = (command.about for command in self._commands.values())
        lines = [f"{usage:{width}}  {about}" for usage, about in zip(usages, abouts, strict=True)]
        self._say("\n".join([*lines, _KEYS]))

    def _quit(self, rest: str) -> None:
        _nothing_after("/quit", rest)
        self.ended = True


def fenced(text: str) -> str:
    """`text` between lines of backticks, more of them than it has in a row."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.removesuffix(chr(10))}\n{fence}"


def _fields(message: SavedMessage) -> dict[str, str]:
    return {
        "role": message.role,
        "content": message.content,
        "reasoning_content": message.reasoning_content,
    }


def _path(command: str, rest: str) -> Path:
    """The path after a command: the rest of the line, in quotes or not."""
    if len(rest) > 1 and rest[0] == rest[-1] and rest[0] in "'\"":
        rest = rest[1:-1]
    if not rest:
        raise ConfigError(f"{command} must be followed by the path of a file")
    return Path(rest).expanduser()


def _nothing_after(command: str, rest: str) -> None:
    if rest:
        raise ConfigError(f"{command} stands alone: leave out {rest!r}")
