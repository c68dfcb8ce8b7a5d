"""The command line: `copyahead COMMAND`. One module a command, imported when it is called.

Exit status: 0 done, or a server was told to stop (Ctrl-C, SIGTERM) and has; 1 a run failed, or a
comparison found a difference where none can be; 2 the input is wrong; 130 interrupted; 141 nobody
reads the output any more.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import cyclopts
import cyclopts.config
from cyclopts import App, Parameter
from cyclopts.exceptions import CycloptsError, RepeatArgumentError, UnknownCommandError

from copyahead._version import __version__
from copyahead.cli.terminal import allocator, output, stages, streams
from copyahead.cli.terminal.sentences import unknown_command, with_flags
from copyahead.errors import BackendError, CopyaheadError, EngineFailed

ENV_PREFIX = "COPYAHEAD_"

_COMMANDS = {
    "chat": "Talk with the model in the terminal.",
    "serve": "Serve the model to OpenAI and Anthropic clients over HTTP.",
    "generate": "Continue a text with the model.",
    "compare": "Decode plainly and with lookup, and compare texts and speeds.",
    "demo": "A first look: three comparisons, and an answer with its copied tokens in colour.",
    "models": "List the models that are on this machine, and the names to give for them.",
    "probe": "Measure how exact and how fast passes over several rows are.",
    "replay": "Score policies on recorded traffic, without a model.",
    "record-drafts": "Record what a draft model would draft, for `replay --drafts`.",
    "logs": "Say how fast a server was, by its own log.",
    "bench": "Replay recorded requests against a server, and time its answers.",
    "policies": "List the length policies and their options.",
    "vllm-check": "Run vLLM with each of its ways to draft, and compare speeds and texts.",
    "warmup": "Compile the kernels, so that no later start waits for it.",
}
_SHORT = {"verbose": "-v"}


def _short_alias(option: object, _taken: frozenset[str]) -> str | None:
    return _SHORT.get(getattr(option, "name", ""))


def make_app(*, summaries: bool = False) -> App:
    """The application. Its commands are imported when they are called or described.

    `summaries`: list them by one line each, without importing them; such a line replaces a
    command's own help.
    """
    app = App(
        name="copyahead",
        help="Prompt-lookup decoding: the same text in fewer passes of the model.",
        version=__version__,
        version_flags=["--version", "-V"],
        config=cyclopts.config.Env(ENV_PREFIX, command=False),
        default_parameter=Parameter(short_alias=_short_alias, negative_iterable=""),
        help_format="markdown",
        suppress_keyboard_interrupt=False,
        console=output.console(),
    )
    for name, about in _COMMANDS.items():
        module = name.replace("-", "_")
        app.command(
            f"copyahead.cli.{module}:{module}", name=name, help=about if summaries else None
        )
    app.register_install_completion_command(
        help="Install completion of commands and flags for your shell: bash, zsh or fish."
    )
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status. Errors become one sentence on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    output.be_quiet(False)
    app = make_app(summaries=not any(name in arguments for name in _COMMANDS))
    try:
        with stages.shown():
            status = app(
                list(arguments),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except CycloptsError as error:
        return _complain(_sentence(error), 2)
    except (BackendError, EngineFailed) as error:
        return _complain(str(error), 1)
    except CopyaheadError as error:
        return _complain(with_flags(str(error), _flags_of(app, arguments)), 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        streams.abandon()
        return 141
    except OSError as error:
        streams.abandon()
        return _complain(streams.problem(error), 1)


def main() -> NoReturn:
    """Entry point of the `copyahead` script."""
    if sys.argv[1:2] == ["serve"]:
        allocator.use_that_of_the_system()
    streams.prepare()
    sys.exit(run())


def _flags_of(app: App, arguments: Sequence[str]) -> list[str]:
    """The flags of the command that `arguments` name."""
    command = next((argument for argument in arguments if argument in _COMMANDS), None)
    if command is None:
        return []
    found = app[command].assemble_argument_collection()
    return [argument.name for argument in found if argument.name.startswith("--")]


def _sentence(error: CycloptsError) -> str:
    """What is wrong, in one line, and where to look."""
    # What a validating library adds after its own count of errors is about its own types.
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return f"{unknown_command(error.unused_tokens[0], _COMMANDS)}. See: copyahead --help"
    text = re.sub(r" \d+ validation errors? for .*", "", " ".join(str(error).split()))
    if isinstance(error, RepeatArgumentError):
        text = _given_by_both_names(error.token.keyword or "") or text
    command = " ".join(error.command_chain or ())
    return f"{text} See: {' '.join(filter(None, ('copyahead', command)))} --help"


def _given_by_both_names(given: str) -> str:
    """What to say where the flag or variable `given` was renamed; empty where it was not."""
    from copyahead.cli.options import FORMER_FLAGS

    for names in FORMER_FLAGS.items():
        variables = (ENV_PREFIX + name[2:].upper().replace("-", "_") for name in names)
        for former, now in (names, tuple(variables)):
            if given in (former, now):
                return f"{former} is the former name of {now}: give one of them, once."
    return ""


def _complain(sentence: str, status: int) -> int:
    output.complain(f"copyahead: {sentence}")
    return status


__all__ = ["ENV_PREFIX", "main", "make_app", "run"]
