"""Answers that follow a grammar or a JSON schema, by way of llguidance.

The mask is applied at every verified row, and the matcher takes only emitted tokens, so it
never has to go back. A draft is cut at its first illegal token before it costs a row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from copyahead.backends.base import Logits, Tokenizer
from copyahead.errors import MissingExtraError, RequestError
from copyahead.types import Draft, Source, Token

WHITESPACE = r"[ \t\n]{0,32}"
"""White space allowed between the parts of a JSON text. Bounded: a model that likes spaces
would otherwise write them until its budget is gone."""
MAX_CHARACTERS = 1_000_000
"""Longest schema or grammar; llguidance has limits of its own besides."""


class Grammar(msgspec.Struct, frozen=True):
    """A grammar or a JSON schema, as a request gives it."""

    field: str
    """The request's field that holds it: `grammar` or `json_schema`."""
    text: str

    def in_llguidance_form(self) -> str:
        """The text that llguidance compiles; RequestError for one too long, or that is no JSON."""
        if len(self.text) > MAX_CHARACTERS:
            raise RequestError(
                f"{self.field} has {len(self.text)} characters, and {MAX_CHARACTERS} are allowed: "
                "make it smaller",
                field=self.field,
            )
        if self.field == "json_schema":
            return _schema_grammar(_llguidance(), self.text)
        return str(_llguidance().LLMatcher.grammar_from_lark(self.text))


class GrammarState:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> GrammarState:
        """Another answer at the same place of the same grammar."""
        return GrammarState(self._matcher.deep_copy(), self._vocab_size)

    @property
    def complete(self) -> bool:
        """Whether the grammar is satisfied and allows nothing more."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: Logits) -> None:
        """Set the logits of all tokens that are illegal here to -inf, in place."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        legal = np.unpackbits(bits, bitorder="little", count=len(bits) * 8)[: self._vocab_size]
        self._check()
        logits[: len(legal)][legal == 0] = -np.inf
        logits[len(legal) :] = -np.inf

    def accept(self, token: Token) -> None:
        """Take an emitted token."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)
            # A matcher that failed calls itself stopped: that is not the end of the grammar.
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = _reason(self._matcher.get_error())
            if reason.startswith("NoExtension"):
                reason = "no token of the model continues it here"
            raise RequestError(f"the grammar failed: {reason}", field="grammar")

    def cut(self, draft: Draft) -> Draft:
        """The draft up to its first token that is illegal here."""
        return draft.first(self._matcher.validate_tokens(list(draft.tokens)))

    def forced(self, limit: int) -> Draft:
        """The tokens of the only continuation that the grammar allows, where there is only one.

        They are drafted and verified like any others: other tokens may spell the same text.
        """
        tokens = self._matcher.compute_ff_tokens()[:limit]
        if not tokens:
            return Draft()
        return Draft(tokens=tuple(tokens), source=Source.GRAMMAR, survivals=(0.98,) * len(tokens))


class GrammarCompiler:
    """Makes grammar states for one tokenizer; llguidance is loaded at the first request."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._llg_tokenizer: Any = None

    def warm_up(self) -> bool:
        """Read the vocabulary into llguidance; False where that is not installed."""
        try:
            self.load()
        except MissingExtraError:
            return False
        return True

    def load(self) -> None:
        """Read the vocabulary into llguidance, unless that has been done. Not for two threads
        at once; MissingExtraError where it is not installed."""
        if self._llg_tokenizer is None:
            self._llg_tokenizer = _llg_tokenizer(_llguidance(), self._tokenizer)

    def compile(self, grammar: Grammar) -> GrammarState:
        """A state at the start of `grammar`; RequestError when it does not compile.

        After `load`, any thread may call it, and others go on while it works.
        """
        self.load()
        text = grammar.in_llguidance_form()
        matcher = _llguidance().LLMatcher(self._llg_tokenizer, text, log_level=0)
        if matcher.is_error():
            raise does_not_compile(grammar.field, matcher.get_error())
        return GrammarState(matcher, self._vocab_size)


def does_not_compile(field: str, error: str) -> RequestError:
    """The refusal of a grammar for which llguidance has an `error`."""
    return RequestError(f"{field} does not compile: {_reason(error)}", field=field)


def _reason(error: str) -> str:
    """What llguidance says, without its inner state and without its stack."""
    for inner in ("<state>", "<backtrace>"):
        error = error.partition(inner)[0]
    return " ".join(error.split())[:200]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError("llguidance", "grammar") from error
    return llguidance


def _schema_grammar(llguidance: Any, json_schema: str) -> str:
    try:
        json.loads(json_schema)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"json_schema is not JSON: {error}", field="json_schema") from None
    try:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            json_schema, overrides={"whitespace_pattern": WHITESPACE}
        )
    except ValueError as error:
        raise RequestError(f"json_schema does not compile: {error}", field="json_schema") from None
    return str(grammar)


class _Vocabulary:
    """The shape in which llguidance takes a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ends = sorted(tokenizer.end_tokens)
        pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        if not ends:
            # llguidance wants an end token: one that no row of logits reaches.
            pieces.append(b"")
        # Control tokens have no bytes; llguidance wants a name for each.
        self.tokens = [piece or b"<|%d|>" % token for token, piece in enumerate(pieces)]
        self.special_token_ids = [token for token, piece in enumerate(pieces) if not piece]
        self.bos_token_id = None
        self.eos_token_id = ends[0] if ends else tokenizer.vocab_size

    def __call__(self, text: bytes | str) -> Sequence[Token]:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        try:
            return self._tokenizer.encode(text, special=False)
        except ValueError:
            # A text that the tokenizer cannot write: nothing is forced, and the mask is empty.
            return []


def _llg_tokenizer(llguidance: Any, tokenizer: Tokenizer) -> Any:
    vocabulary = _Vocabulary(tokenizer)
    ends = sorted(tokenizer.end_tokens) or [vocabulary.eos_token_id]
    wrapper = llguidance.TokenizerWrapper(vocabulary)
    return llguidance.LLTokenizer(wrapper, eos_token=ends)
