"""The tokenizer inside a GGUF model, with the model or without its weights."""

from __future__ import annotations

import ctypes
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from copyahead.backends.llama_cpp.library import library, take_errors
from copyahead.contracts import FimTokens
from copyahead.errors import ModelError
from copyahead.types import Token

_UNKNOWN, _UNUSED, _CONTROL = 1 << 0, 1 << 1, 1 << 3
"""`LLAMA_TOKEN_ATTR_...`. Unused: no text maps to it; it may still be a token."""
_PIECE = 2**16
"""Tokens."""
_PADDING = re.compile(r"\[PAD\d+\]")
"""How the converters of llama.cpp spell rows that make a vocabulary as long as its embedding.

Ids that the model's own tokenizer has and keeps for later are marked as unused too, but have
other spellings (Gemma: `<unused0>`): the model gives them probabilities as it does any token.
"""


class LlamaTokenizer:
    """Text to token ids and back, by llama.cpp. Valid while its model is loaded."""

    def __init__(self, library: Any, vocab: Any) -> None:
        self._library = library
        self._vocab = vocab
        width = int(library.llama_vocab_n_tokens(vocab))
        self._vocab_size = self._num_real_tokens(width)
        self._end_tokens = frozenset(
            token for token in range(width) if library.llama_vocab_is_eog(vocab, token)
        )
        self._pieces: list[bytes | None] = [None] * width

    @property
    def vocab_size(self) -> int:
        """Number of token ids; rows at the end that only pad the file do not count."""
        return self._vocab_size

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Every id that ends a turn or the text."""
        return self._end_tokens

    @property
    def bos_text(self) -> str:
        """Spelling of the token that begins a text; empty when there is none."""
        return self._spelling(self._library.llama_vocab_bos(self._vocab))

    @property
    def eos_text(self) -> str:
        """Spelling of the token that ends a text; empty when there is none."""
        return self._spelling(self._library.llama_vocab_eos(self._vocab))

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` puts that first token before every prompt."""
        return bool(self._library.llama_vocab_get_add_bos(self._vocab))

    @cached_property
    def control_texts(self) -> frozenset[str]:
        """Spellings that `encode` reads as one token where `special` is true, and only there."""
        attributes = self._library.llama_vocab_get_attr
        return frozenset(
            text
            for token in range(self._vocab_size)
            if attributes(self._vocab, token) & (_CONTROL | _UNKNOWN)
            and (text := self._spelling(token))
        )

    @cached_property
    def fim(self) -> FimTokens | None:
        """The tokens for filling a gap, as the file names them, or llama.cpp by their spelling."""
        names = {
            "prefix": "pre", "suffix": "suf", "middle": "mid",
            "repository": "rep", "separator": "sep", "padding": "pad",
        }  # fmt: skip
        read = {
            name: int(getattr(self._library, f"llama_vocab_fim_{short}")(self._vocab))
            for name, short in names.items()
        }
        found = {name: token for name, token in read.items() if 0 <= token < self._vocab_size}
        return FimTokens(**found) if {"prefix", "suffix", "middle"} <= found.keys() else None

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """Token ids of `text`; see `contracts.Tokenizer`. Lone surrogates become `?`."""
        data = text.encode("utf-8", "replace")
        tokens, count = self._encoded(data, len(data) + 8, special)
        if count < 0:
            tokens, count = self._encoded(data, -count, special)
        ids: list[Token] = []
        for start in range(0, count, _PIECE):
            # Piece by piece: nothing else runs in the process while a list is made.
            ids += tokens[start : min(count, start + _PIECE)].tolist()
        if special and ids and self._library.llama_vocab_get_add_eos(self._vocab):
            # A prompt is to be continued, so the end token that some models add is taken off.
            ids.pop()
        return ids

    def _encoded(
        self, data: bytes, capacity: int, special: bool
    ) -> tuple[npt.NDArray[np.int32], int]:
        """Room for tokens, and how many are in it; the negative of those that need room."""
        tokens = np.empty(capacity, np.int32)
        place = tokens.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        count = self._library.llama_tokenize(
            self._vocab, data, len(data), place, capacity, special, special
        )
        return tokens, count

    def token_bytes(self, token: Token) -> bytes:
        """The bytes that `token` stands for; empty for control tokens and ids out of range."""
        if not 0 <= token < len(self._pieces):
            return b""
        piece = self._pieces[token]
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def _spelling(self, token: Token) -> str:
        if token < 0:
            return ""
        text = self._library.llama_vocab_get_text(self._vocab, token)
        return str(text.decode("utf-8", "replace")) if text else ""

    def _num_real_tokens(self, width: int) -> int:
        attributes = self._library.llama_vocab_get_attr
        size = width
        while (
            size > 1
            and attributes(self._vocab, size - 1) & _UNUSED
            and _PADDING.fullmatch(self._spelling(size - 1))
        ):
            size -= 1
        return size

    def _read_piece(self, token: Token) -> bytes:
        read = self._library.llama_token_to_piece
        # Its own at each call: several threads read.
        buffer = ctypes.create_string_buffer(256)
        length = read(self._vocab, token, buffer, len(buffer), 0, False)
        if length < 0:
            buffer = ctypes.create_string_buffer(-length)
            length = read(self._vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:length]


class Vocabulary(LlamaTokenizer):
    """A tokenizer that keeps its own model loaded: the vocabulary only."""

    def __init__(self, module: Any, model: Any) -> None:
        super().__init__(module, module.llama_model_get_vocab(model))
        self._module = module
        self._model = model

    def close(self) -> None:
        """Free the vocabulary; the tokenizer is then of no more use. Idempotent."""
        model, self._model = self._model, None
        if model:
            self._module.llama_model_free(model)


def load_vocabulary(path: Path) -> Vocabulary:
    """Read the vocabulary of the model at `path`. Raises ModelError where it has none."""
    module = library()
    take_errors()
    params = module.llama_model_default_params()
    params.vocab_only = True
    model = module.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        errors = take_errors()
        reason = errors[-1] if errors else "no reason given"
        raise ModelError(f"llama.cpp cannot read the vocabulary of {path}: {reason}")
    return Vocabulary(module, model)
