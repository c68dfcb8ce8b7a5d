"""The tokenizer over llama.cpp, without llama.cpp: what its calls must keep apart."""

from __future__ import annotations

import threading
from typing import Any

from copyahead.backends.llama_cpp.tokenizer import LlamaTokenizer

PIECES = [b"a", b"longer than the others" * 20, b"c"]


class Library:
    """Hands out pieces; as many threads as `num_readers` are in the same call at once."""

    def __init__(self, num_readers: int) -> None:
        self._all_have_written = threading.Barrier(num_readers)

    def llama_vocab_n_tokens(self, vocab: None) -> int:
        return len(PIECES)

    def llama_vocab_is_eog(self, vocab: None, token: int) -> bool:
        return False

    def llama_vocab_get_attr(self, vocab: None, token: int) -> int:
        return 0

    def llama_token_to_piece(
        self, vocab: None, token: int, buffer: Any, size: int, strip: int, special: bool
    ) -> int:
        piece = PIECES[token]
        if len(piece) > size:
            return -len(piece)
        buffer[: len(piece)] = piece
        self._all_have_written.wait(timeout=10)
        return len(piece)


def test_threads_that_read_pieces_at_once_get_each_its_own() -> None:
    tokenizer = LlamaTokenizer(Library(len(PIECES)), None)
    found: dict[int, bytes] = {}

    def read(token: int) -> None:
        found[token] = tokenizer.token_bytes(token)

    threads = [threading.Thread(target=read, args=(token,)) for token in range(len(PIECES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert [found[token] for token in range(len(PIECES))] == PIECES
