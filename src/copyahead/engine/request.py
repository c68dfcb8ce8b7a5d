"""What goes into the engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from copyahead.contracts import Capabilities
from copyahead.engine.origin import Stretch
from copyahead.engine.text import MAX_STOP_LENGTH, Run
from copyahead.errors import ContextOverflowError, RequestError
from copyahead.ranges import Range, check_ranges
from copyahead.sampling import SamplingOptions
from copyahead.stats import CopyStats
from copyahead.types import FinishReason, Token

MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_TOKENS = 1000


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how it is to be answered."""

    prompt: Sequence[Token]
    sampling: SamplingOptions = SamplingOptions()
    max_tokens: Annotated[int | None, Range(0)] = None
    """Most tokens to write; None: until the context is full."""
    min_tokens: Annotated[int, Range(0)] = 0
    """No end token, stop token or stop string ends the answer before this many tokens."""
    stop: tuple[str, ...] = ()
    """The answer ends before the first of these texts, each of at most 1000 characters; it is not
    part of the answer."""
    stop_token_ids: tuple[Token, ...] = ()
    """The answer ends with the first of these ids, at most 1000; it is counted, and has no text."""
    ignore_eos: bool = False
    """Go on past the model's own end tokens."""
    n: Annotated[int, Range(1, MAX_CHOICES)] = 1
    """Answers to write; choice i has the seed `seed + i`."""
    logprobs: Annotated[int | None, Range(0, MAX_TOP_LOGPROBS)] = None
    """Report each token's log-probability, with this many of the best beside it.

    They are the model's own: log-softmax of the logits before any option changes them.
    """
    prompt_logprobs: Annotated[int | None, Range(0, MAX_TOP_LOGPROBS)] = None
    """The same for each token of the prompt but the first, which nothing comes before. The prompt
    is then read whole, a few tokens a pass, whatever has been kept of it."""
    json_schema: str | None = None
    """JSON schema (as JSON text) that the answer follows; excludes `grammar`."""
    grammar: str | None = None
    """Grammar in llguidance's Lark form that the answer follows."""
    lookup: bool = True
    """Draft by copying."""
    policy: str | None = None
    """Length policy; None takes the engine's."""
    max_draft_tokens: Annotated[int | None, Range(0)] = None
    """Longest draft of this request; 0 drafts nothing."""
    tenant: str = ""
    """Whose request it is: nothing is learnt or copied across tenants."""
    group: str = ""
    """Requests of one group share slots as if they were one; empty: each is its own."""
    prediction: Sequence[Token] = ()
    """Tokens that the answer is expected to repeat; copied from, but not part of the prompt."""


class TokenLogprob(msgspec.Struct, frozen=True):
    """The model's own log-probability of an emitted token, and of the best ones there."""

    token: Token
    logprob: float
    top: tuple[tuple[Token, float], ...] = ()


class Chunk(msgspec.Struct, frozen=True):
    """What one round added to one choice."""

    index: int
    tokens: tuple[Token, ...] = ()
    copied: tuple[bool, ...] = ()
    """For each token, whether it was drafted and accepted."""
    num_draft_tokens: int = 0
    """How many were drafted and verified in the round."""
    pieces: tuple[Run, ...] = ()
    """Text that may now be shown, in runs of copied and not copied. May lag behind the tokens.

    Copied means from the request's own text: not from a grammar, nor from another request's.
    """
    stretches: tuple[Stretch, ...] = ()
    """The text of `pieces` once more: where each part of it was drafted from, other requests of the
    tenant, a draft model and a grammar included."""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Of the prompt's tokens from the second on; they come before those of the answer."""
    finish_reason: FinishReason | None = None
    error: str | None = None
    error_field: str | None = None
    """The field of the request that is at fault, where one is."""

    @property
    def text(self) -> str:
        """The text of `pieces`."""
        return "".join(piece for piece, _ in self.pieces)


class Choice(msgspec.Struct):
    """One whole answer."""

    index: int
    text: str = ""
    tokens: list[Token] = msgspec.field(default_factory=list)
    copied: list[bool] = msgspec.field(default_factory=list)
    pieces: list[Run] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None

    def add(self, chunk: Chunk) -> None:
        """Append what a round brought."""
        self.text += chunk.text
        self.tokens.extend(chunk.tokens)
        self.copied.extend(chunk.copied)
        self.pieces.extend(chunk.pieces)
        self.logprobs.extend(chunk.logprobs)
        self.prompt_logprobs.extend(chunk.prompt_logprobs)
        if chunk.finish_reason is not None:
            self.finish_reason, self.error = chunk.finish_reason, chunk.error


class Completion(msgspec.Struct):
    """All answers to a request, and what copying did for them."""

    choices: list[Choice]
    stats: CopyStats

    @property
    def text(self) -> str:
        """The first answer."""
        return self.choices[0].text


def check_request(request: Request, capabilities: Capabilities, vocab_size: int) -> None:
    """Raise RequestError, naming the field, unless the request can be served.

    `vocab_size`: the number of real token ids. A row of logits may be wider.
    """
    _check_kinds(request)
    prompt, limit = request.prompt, capabilities.context_size
    _check_is_list("prompt", prompt)
    if len(prompt) == 0:
        raise RequestError("prompt is empty: give at least one token", field="prompt")
    if len(prompt) >= limit:
        raise ContextOverflowError(len(prompt), limit)
    _check_lengths(request, limit)
    _check_ids("prompt", prompt, vocab_size)
    _check_ids("stop_token_ids", request.stop_token_ids, vocab_size)
    _check_ids("logit_bias", tuple(request.sampling.logit_bias), vocab_size)
    _check_ids("prediction", request.prediction, vocab_size)
    check_ranges(request, RequestError)
    if request.max_tokens is not None and request.min_tokens > request.max_tokens:
        raise RequestError(
            f"min_tokens ({request.min_tokens}) is more than max_tokens ({request.max_tokens})",
            field="min_tokens",
        )
    _check_texts(request)
    if request.json_schema is not None and request.grammar is not None:
        raise RequestError("json_schema and grammar exclude each other", field="grammar")


def _check_lengths(request: Request, context_size: int) -> None:
    """Before any item is looked at, which would hold up the others that the engine serves."""
    for field in ("prediction", "stop_token_ids"):
        _check_is_list(field, getattr(request, field))
    num_predicted, num_stops = len(request.prediction), len(request.stop_token_ids)
    if num_predicted > context_size:
        raise RequestError(
            f"prediction is {num_predicted} tokens, and an answer has at most {context_size}: "
            "shorten it",
            field="prediction",
        )
    if num_stops > MAX_STOP_TOKENS:
        raise RequestError(
            f"stop_token_ids holds {num_stops} ids, and at most {MAX_STOP_TOKENS} are allowed",
            field="stop_token_ids",
        )


def _check_kinds(request: Request) -> None:
    kinds: dict[str, tuple[tuple[type, ...], str]] = {
        "sampling": ((SamplingOptions,), "SamplingOptions"),
        "ignore_eos": ((bool,), "true or false"),
        "lookup": ((bool,), "true or false"),
        "tenant": ((str,), "a text"),
        "group": ((str,), "a text"),
        "policy": ((str, type(None)), "a text"),
        "json_schema": ((str, type(None)), "a text"),
        "grammar": ((str, type(None)), "a text"),
    }
    for field, (allowed, name) in kinds.items():
        value = getattr(request, field)
        if not isinstance(value, allowed):
            kind = type(value).__name__
            raise RequestError(f"{field} must be {name}, not {kind}", field=field)


def _check_texts(request: Request) -> None:
    stop: object = request.stop
    if not isinstance(stop, list | tuple) or not all(isinstance(text, str) for text in stop):
        raise RequestError(f"stop must be a list of texts, not {stop!r}", field="stop")
    if "" in stop:
        raise RequestError("stop must not hold an empty text: leave it out", field="stop")
    longest = max(map(len, stop), default=0)
    if longest > MAX_STOP_LENGTH:
        raise RequestError(
            f"stop holds a text of {longest} characters, and at most {MAX_STOP_LENGTH} are allowed",
            field="stop",
        )
    for field in ("json_schema", "grammar"):
        try:
            (getattr(request, field) or "").encode()
        except UnicodeEncodeError:
            raise RequestError(
                f"{field} is not valid Unicode: it holds half of a surrogate pair", field=field
            ) from None


def _check_is_list(field: str, ids: object) -> None:
    if isinstance(ids, str | bytes) or not hasattr(ids, "__len__"):
        raise RequestError(f"{field} must hold token ids, which are whole numbers", field=field)


def _check_ids(field: str, ids: Sequence[Token], vocab_size: int) -> None:
    _check_is_list(field, ids)
    if len(ids) and not _whole_numbers(ids):
        raise RequestError(f"{field} must hold token ids, which are whole numbers", field=field)
    if len(ids) and (min(ids) < 0 or max(ids) >= vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise RequestError(
            f"{field} holds token id {wrong}, and the model has ids 0 to {vocab_size - 1}",
            field=field,
        )


def _whole_numbers(ids: Sequence[Token]) -> bool:
    try:
        found = np.asarray(ids)
    except (ValueError, TypeError, OverflowError):
        return False
    # Numbers that fit no machine word give an array of objects.
    whole = found.dtype.kind in "iu" or all(type(token) is int for token in found.flat)
    return found.ndim == 1 and whole


__all__ = [
    "Choice",
    "Chunk",
    "Completion",
    "Request",
    "TokenLogprob",
    "check_request",
]
