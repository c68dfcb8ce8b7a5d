"""Options that several commands take, and how they become a request.

The options of the model, of copying and of sampling are the dataclasses of `copyahead.config`
and `copyahead.sampling`; only what the command line adds is described here.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from copyahead.config import (
    MAX_DRAFT_TOKENS,
    DraftLength,
    DraftModelOptions,
    LookupOptions,
    ModelOptions,
    SharedOptions,
)
from copyahead.errors import ConfigError, RequestError
from copyahead.ranges import Range, check_ranges
from copyahead.sampling import SamplingOptions
from copyahead.types import Token

if TYPE_CHECKING:
    from copyahead.engine import Engine, Request

AnyText = Annotated[str, Parameter(allow_leading_hyphen=True)]
"""Text that may begin with a hyphen."""

MODEL = Group("Model", sort_key=1)
SAMPLING = Group("Sampling", sort_key=2)
DRAFTING = Group("Drafting", sort_key=3)
OUTPUT = Group("Output", sort_key=4)
"""How the help sorts options; those of a command alone come first, without a group of their own."""

Flat = Parameter(name="*")
"""The fields of a dataclass as options of their own."""

NONE_YET = Parameter(show_default=False)
"""An option that is empty unless it is given."""

Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True)]
"""One or more names after the option, which may also be repeated."""

FORMER_FLAGS = {"--max-drafts": "--max-draft-tokens"}
"""Flags that were renamed, and their names now. Both work, and so do the variables of both."""

MaxDraftTokens = Annotated[DraftLength, Parameter(alias="--max-drafts")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupFlags(LookupOptions):
    """Whether and how drafts are copied; flags may be given by their former names."""

    max_draft_tokens: MaxDraftTokens = MAX_DRAFT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingFlags(SamplingOptions):
    """How tokens are chosen, as flags say it: there the token ids of a bias are text."""

    logit_bias: Annotated[dict[str, float], Parameter(show_default=False)] = field(  # type: ignore[assignment]
        default_factory=dict
    )
    """Added to the logits of the named tokens, as `--logit-bias.ID BIAS`, repeated, or as JSON,
    `--logit-bias '{"ID": BIAS}'`. -100 to 100; -100 bars a token."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", _by_token_id(self.logit_bias))
        # Without its arguments, super() does not find a class with slots.
        super(SamplingFlags, self).__post_init__()


def _model_names(_context: object) -> list[tuple[str, str]]:
    """Names of models for a shell to complete, and whose folders they are in."""
    from copyahead.loading.catalog import scan

    return [(entry.name, entry.source) for entry in scan() if not entry.problem]


ModelPath = Annotated[
    Path | None,
    Parameter(
        help="Path of a GGUF file or of the folder of a transformers model, or a name that "
        "`copyahead models` lists; the bundled model when not given.",
        completer=_model_names,
    ),
]
Model = Annotated[ModelOptions, Flat, Parameter(group=MODEL)]
Lookup = Annotated[LookupFlags, Flat, Parameter(group=DRAFTING)]
DraftModel = Annotated[DraftModelOptions, Flat, Parameter(group=DRAFTING)]
Shared = Annotated[SharedOptions, Flat, Parameter(group=DRAFTING)]
Sampling = Annotated[SamplingFlags, Flat, Parameter(group=SAMPLING)]

Json = Annotated[
    bool,
    Parameter(
        name="--json",
        group=OUTPUT,
        negative="",
        help="Print one JSON document to standard output, and nothing else there.",
    ),
]


Quiet = Annotated[
    bool,
    Parameter(
        name=("--quiet", "-q"),
        group=OUTPUT,
        negative="",
        help="Print no remarks to standard error, only errors.",
    ),
]


Traces = Annotated[
    str,
    Parameter(
        help="Files or directories of recorded traffic; `FILE@A:B` takes sessions A to B - 1."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How traces are read."""

    chat: Literal["turns", "chats", "stream"] = "turns"
    """How a chat history is read: in turns; the same with each of its chats as a session; or as one
    text that was all written."""
    after: Annotated[int, Range(0, 2**40)] = 0
    """Tokens at the start of a chat history, or of each of its chats, that are only read."""
    by_file: bool = False
    """Score each file of a directory apart. Otherwise they are one category: policies that learn,
    and `--shared`, go on from one file to the next, as a server does."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """What to continue, and how far."""

    prompt: AnyText | None = None
    """Text to continue."""
    file: AnyText | None = None
    """File with the text to continue; `-` reads standard input, as does a pipe without either."""
    chat: bool = False
    """Take the text for a message to the model, and have it answered, not continued: it is written
    in the model's own chat format."""
    max_tokens: Annotated[int | None, Range(0)] = 512
    """Most tokens to write."""
    min_tokens: Annotated[int, Range(0)] = 0
    """Nothing ends the answer before this many tokens."""
    stop: Annotated[tuple[str, ...], NONE_YET] = ()
    """The answer ends before the first of these texts. May be repeated."""
    ignore_eos: bool = False
    """Go on past the model's own end tokens."""
    prediction: AnyText | None = None
    """File with text that the answer is expected to repeat, edits apart: it is copied from, and is
    not part of the prompt."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def has_text(self) -> bool:
        """Whether a text or a file was named."""
        return self.prompt is not None or self.file is not None

    def predicted(self) -> str:
        """The predicted text; empty where there is none."""
        if self.prediction is None:
            return ""
        if self.prediction == "-" and self.file == "-":
            raise ConfigError("--file and --prediction cannot both read standard input")
        return read_text(self.prediction)

    def text(self) -> str:
        """The prompt. Raises ConfigError or RequestError when there is none that can be read."""
        if self.prompt is not None and self.file is not None:
            raise ConfigError("--prompt and --file exclude each other: give one of them")
        if self.prompt is not None:
            text = self.prompt
        elif self.file is not None:
            text = read_text(self.file)
        elif self.prediction != "-" and _is_piped():
            text = read_text("-")
        else:
            raise ConfigError(
                "there is nothing to continue: give --prompt TEXT or --file PATH, or pipe the "
                "text in"
            )
        if not text:
            raise RequestError("prompt is empty: give at least one character", field="prompt")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError("prompt is not valid UTF-8 text: convert it", "prompt") from None
        return text


def _is_piped() -> bool:
    """Whether standard input is a pipe or a file: no terminal, and not nothing."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def read_text(name: str) -> str:
    """The text of the file called `name`, or of standard input for `-`."""
    shown = "standard input" if name == "-" else f"file {name}"
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).expanduser().read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{shown} cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, ValueError):
        raise ConfigError(f"{shown} is not UTF-8 text: convert it") from None


def _by_token_id(bias: Mapping[str, float]) -> dict[Token, float]:
    """`bias` with numbers as keys."""
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        wrong = next(token for token in bias if not str(token).strip().lstrip("+-").isdecimal())
        raise RequestError(
            f"logit_bias must have token ids as keys, not {wrong!r}", field="logit_bias"
        ) from None


def make_request(
    engine: Engine, text: str, options: PromptOptions, sampling: SamplingOptions
) -> Request:
    """A request to continue `text`."""
    from copyahead.engine import Request

    tokens = engine.backend.tokenizer.encode(text)
    if options.chat:
        from copyahead.chat.prompt import chat_prompt
        from copyahead.chat.template.template import ChatTemplate

        template = ChatTemplate.from_backend(engine.backend)
        message = {"role": "user", "content": text}
        tokens = chat_prompt(template, engine.backend.tokenizer, [message]).tokens
    return Request(
        prompt=tokens,
        sampling=sampling,
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
        stop=options.stop,
        ignore_eos=options.ignore_eos,
        prediction=engine.backend.tokenizer.encode(options.predicted(), special=False),
    )


def policies_named(names: Sequence[str]) -> list[str]:
    """`names`, each checked and written in full; raises ConfigError for an unknown one."""
    from copyahead.policies import parse_policy

    return [str(parse_policy(name)) for name in names]


def modes_named(names: Sequence[str], draft: DraftModelOptions) -> list[str]:
    """What `compare` runs: `names`, and with a draft model each of them without it, and it alone.

    Raises ConfigError for an unknown one.
    """
    from copyahead.drafters.factory import COPIES_ALONE, MODEL_ALONE, parse_mode

    if draft.draft_model is None:
        return policies_named(names)
    both = [str(parse_mode(name, draft.hybrid)) for name in names]
    alone = [f"{mode.rpartition('+')[0]}+{COPIES_ALONE}" for mode in both if "+" in mode]
    return list(dict.fromkeys([*alone, MODEL_ALONE, *both]))


DEFAULT_MODEL, DEFAULT_LOOKUP, DEFAULT_SAMPLING = ModelOptions(), LookupFlags(), SamplingFlags()
NO_DRAFT_MODEL = DraftModelOptions()
"""What the options are that a command takes where none of them is given."""
