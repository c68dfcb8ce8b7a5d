"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from copyahead.engine.request import TokenLogprob
from copyahead.types import Token

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say; OpenAI's own value."""


def chat_logprobs(pieces: Sequence[bytes], entries: Sequence[TokenLogprob]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion or of a chunk of one."""
    content = [
        {
            **_token(pieces, entry.token, entry.logprob),
            "top_logprobs": [_token(pieces, token, value) for token, value in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`choices[].logprobs` of one text completion, a chunk at a time."""

    def __init__(self, pieces: Sequence[bytes], offset: int = 0) -> None:
        """`offset`: characters before the answer in the text that the client sees."""
        self._pieces = pieces
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def first(self, token: Token) -> dict[str, Any]:
        """The entry of a prompt's first token, which has no log-probability."""
        offset = self._offset
        self._offset += len(self._decoder.decode(self._piece(token)))
        return {
            "tokens": [self._name(token)],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": [offset],
        }

    def take(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The entries of one chunk."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._piece(entry.token)))
        return {
            "tokens": [self._name(entry.token) for entry in entries],
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        return {self._name(token): _finite(value) for token, value in entry.top}

    def _piece(self, token: Token) -> bytes:
        return self._pieces[token] if token < len(self._pieces) else b""

    def _name(self, token: Token) -> str:
        """The token's text; a name for one that has none of its own, so that keys differ."""
        piece = self._piece(token)
        if not piece:
            return f"token_id:{token}"
        try:
            return piece.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def join(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Chunks of logprobs as one, in either shape."""
    whole: dict[str, Any] = {}
    for part in parts:
        for name, values in part.items():
            whole[name] = values if values is None else [*whole.get(name, []), *values]
    return whole


def _token(pieces: Sequence[bytes], token: Token, logprob: float) -> dict[str, Any]:
    piece = pieces[token] if token < len(pieces) else b""
    return {
        "token": piece.decode("utf-8", "replace"),
        "logprob": _finite(logprob),
        "bytes": list(piece),
    }


def _finite(value: float) -> float:
    return max(value, _LOWEST)
