"""A program that says of each grammar whether llguidance can compile it.

llguidance recurses without a limit, and some patterns take it exponential time and memory. Here
that ends one small process; what passes here is safe to compile in the engine. The program
imports nothing of copyahead, so that it starts fast.

    check.py VOCAB_SIZE

A line in: a grammar in llguidance's own form, as a JSON text. A line out: a JSON text that says
why it does not compile, empty where it does. The first line out is empty: it is ready. It ends
with its input; `children.process` ends it when one grammar takes too long or too much memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from typing import Any

STACK_BYTES = 8 << 20
"""Far less than the engine compiles with, so that what fits here fits there."""
_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None


class _Vocabulary:
    """Every byte, after as many special tokens as the model has tokens.

    A grammar may name a special token of the model by its id. The cost of compiling is that of
    the grammar, whatever the vocabulary.
    """

    def __init__(self, vocab_size: int) -> None:
        names = [b"<|%d|>" % token for token in range(vocab_size)]
        self.tokens = [*names, *(bytes([byte]) for byte in range(256))]
        self.special_token_ids = list(range(vocab_size))
        self.bos_token_id = None
        self.eos_token_id = 0

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return [len(self.special_token_ids) + byte for byte in data]


def _check(llguidance: Any, tokenizer: Any, grammar: str) -> str:
    try:
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if not matcher.is_error():
            # What the first token asks of it runs on the engine's own stack.
            matcher.compute_bitmask()
            matcher.compute_ff_tokens()
        return str(matcher.get_error()) if matcher.is_error() else ""
    except BaseException as error:
        # A panic of the library is no Exception.
        return f"the compiler failed: {error!r}"


def _serve(vocab_size: int) -> None:
    import llguidance

    wrapper = llguidance.TokenizerWrapper(_Vocabulary(vocab_size))
    tokenizer = llguidance.LLTokenizer(wrapper, eos_token=[0])
    _answer("")
    for line in sys.stdin:
        _answer(_check(llguidance, tokenizer, json.loads(line)))
        # Of what a large grammar took glibc would keep 60 MB and more; others keep nothing.
        if _trim is not None:
            _trim(0)


def _answer(reason: str) -> None:
    print(json.dumps(reason), flush=True)


def main() -> None:
    """Serve until the input ends."""
    vocab_size = int(sys.argv[1])
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(vocab_size,))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
