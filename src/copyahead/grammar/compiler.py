"""A grammar or a JSON schema in, the state of an answer out, by way of llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from copyahead.contracts import Tokenizer
from copyahead.errors import MissingExtraError, RequestError
from copyahead.grammar.emptiness import pruned
from copyahead.grammar.state import STUCK, GrammarState, reason_of
from copyahead.types import Token

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
        # Some grammars reach a limit only with the model's own tokens, at the first of them. One
        # that these tokens cannot follow to its end is none of them: it fails where it is stuck.
        first = matcher.deep_copy()
        if not first.is_error():
            first.compute_bitmask()
        if first.is_error() and not first.get_error().startswith(STUCK):
            raise does_not_compile(grammar.field, first.get_error())
        return GrammarState(matcher, self._vocab_size)


def does_not_compile(field: str, error: str) -> RequestError:
    """The refusal of a grammar for which llguidance has an `error`."""
    return RequestError(f"{field} does not compile: {reason_of(error)}", field=field)


def allows_nothing(what: str, field: str) -> RequestError:
    """The refusal of a schema, named `what`, that no value follows."""
    return RequestError(
        f"{what} allows no value: it is false, or it needs itself without end; give a schema that "
        "some value follows",
        field=field,
    )


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError("llguidance", "grammar") from error
    return llguidance


def _schema_grammar(llguidance: Any, json_schema: str) -> str:
    try:
        given = json.loads(json_schema)
        possible = {} if given is True else pruned(given)
        if possible is not given:
            json_schema = json.dumps(possible)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"json_schema is not JSON: {error}", field="json_schema") from None
    if possible is False:
        raise allows_nothing("json_schema", "json_schema")
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
