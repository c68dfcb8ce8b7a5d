"""Finding the tokenizer that `--tokenizer` names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from copyahead.contracts import TextTokenizer, Tokenizer
from copyahead.errors import ConfigError, MissingExtraError
from copyahead.types import Token


def find_tokenizer(name: str | os.PathLike[str] | None) -> tuple[str, TextTokenizer]:
    """What to call it, and the tokenizer: of a GGUF model, a `tokenizer.json`, or a folder.

    None takes the bundled model's. Raises ConfigError, ModelError or MissingExtraError.
    """
    if name is not None and Path(name).suffix == ".json":
        path = Path(name).expanduser()
        return path.name, JsonTokenizer(path)
    if name is not None and (folder := Path(name).expanduser()).is_dir():
        return _of_folder(folder)
    from copyahead.backends.llama_cpp.tokenizer import load_vocabulary
    from copyahead.loading import find

    path = find(name)
    return _of_folder(path) if path.is_dir() else (path.name, load_vocabulary(path))


def _of_folder(folder: Path) -> tuple[str, TextTokenizer]:
    from copyahead.backends.transformers.tokenizer import FolderTokenizer

    return folder.resolve().name, FolderTokenizer(folder)


def decode(tokenizer: TextTokenizer, tokens: Sequence[Token]) -> str:
    """The text that `tokenizer` read as `tokens`, control tokens spelled out.

    What it puts before every text itself, a token or a space, is left out: it would come twice.
    """
    if isinstance(tokenizer, JsonTokenizer):
        return tokenizer.decode(tokens)
    known = cast(Tokenizer, tokenizer)
    spelled = {known.encode(text)[-1]: text for text in known.control_texts}
    has_bos = known.adds_bos and tokens and spelled.get(tokens[0]) == known.bos_text
    shown = tokens[1:] if has_bos else tokens
    parts = (known.token_bytes(t) or spelled.get(t, "").encode() for t in shown)
    text = b"".join(parts).decode("utf-8", "replace")
    has_space = text.startswith(" ") and known.encode(text[1:]) == list(tokens)
    return text[1:] if has_space else text


class JsonTokenizer:
    """A `tokenizer.json` of the `tokenizers` package."""

    _END_MARKS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")

    def __init__(self, path: Path) -> None:
        try:
            from tokenizers import Tokenizer as Reader
        except ImportError:
            raise MissingExtraError("tokenizers", "tokenizers") from None
        try:
            # Whether marks are read as their token is a setting of the whole reader, and several
            # threads encode at once: so there are two.
            self._reader: Any = Reader.from_file(str(path))
            self._plain_reader: Any = Reader.from_file(str(path))
        except Exception as error:  # The package raises bare Exception.
            raise ConfigError(f"tokenizer {path} cannot be read ({error})") from None
        self._plain_reader.encode_special_tokens = True
        vocabulary: dict[str, int] = self._reader.get_vocab(with_added_tokens=True)
        self._vocab_size = max(vocabulary.values()) + 1
        self._end_tokens = frozenset(vocabulary[m] for m in self._END_MARKS if m in vocabulary)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._vocab_size

    @property
    def end_tokens(self) -> frozenset[Token]:
        """Ids of the marks that models commonly end with."""
        return self._end_tokens

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """See `contracts.TextTokenizer.encode`."""
        reader = self._reader if special else self._plain_reader
        ids: list[Token] = reader.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Sequence[Token]) -> str:
        """The text of token ids, marks spelled out."""
        return str(self._reader.decode(list(tokens), skip_special_tokens=False))
