"""The tokenizer of a model's folder: `tokenizer.json`, and what stands beside it.

Nothing of torch or transformers is loaded: it reads recorded text without the model too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from copyahead.backends.transformers.folder import read_json, read_text
from copyahead.contracts import FimTokens
from copyahead.errors import MissingExtraError, ModelError
from copyahead.types import Token

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>")
"""Control tokens that end a turn or a text wherever a model has them."""
_UNREACHABLE = 1 << 31
_FIM = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""How families of models spell the tokens before the text in front of a gap, before the text behind
it, and before what is to be written."""
_FIM_BESIDE = {
    "repository": ("<|repo_name|>", "<|fim_repo|>", "<repo_name>", "<reponame>", "<fim_repo>"),
    "separator": ("<|file_sep|>", "<file_sep>", "<|file_separator|>"),
    "padding": ("<|fim_pad|>", "<fim_pad>", "<fim-pad>"),
}


class FolderTokenizer:
    """Text to token ids and back, as the folder says. Implements `contracts.Tokenizer`."""

    def __init__(self, folder: Path, *, width: int = _UNREACHABLE) -> None:
        """`width`: length of the model's rows of logits; ids from there on do not count.

        Raises ModelError where a file is missing or cannot be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"model {folder} has no tokenizer.json: write one with AutoTokenizer."
                "from_pretrained(...).save_pretrained(...) of transformers"
            )
        self.folder = folder
        # Whether marks are read as their token is a setting of the whole reader, and several
        # threads encode at once: so there are two.
        self._reader, self._plain_reader = _read(path), _read(path)
        self._plain_reader.encode_special_tokens = True
        self._settings = {
            **read_json(folder / "special_tokens_map.json"),
            **read_json(folder / "tokenizer_config.json"),
        }
        names: dict[str, int] = self._reader.get_vocab(with_added_tokens=True)
        self._ids = names
        self._names = {token: name for name, token in names.items()}
        self._vocab_size = min(width, max(names.values()) + 1)
        self._added = self._reader.get_added_tokens_decoder()
        self._decoder = _Pieces(read_json(path).get("decoder"))
        self._pieces: dict[Token, bytes] = {}
        self._leading = self._find_leading()

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the model can choose."""
        return self._vocab_size

    @cached_property
    def end_tokens(self) -> frozenset[Token]:
        """Every id that ends a turn or the text: those that the folder names, and common marks."""
        ends: set[Token] = set()
        for name in ("generation_config.json", "config.json"):
            found = read_json(self.folder / name).get("eos_token_id")
            ends.update(found if isinstance(found, list) else [] if found is None else [found])
        control = {self._ids[text] for text in _TURN_ENDS if text in self.control_texts}
        named = self._ids.get(self.eos_text)
        ends |= control | (set() if named is None else {named})
        return frozenset(int(token) for token in ends if 0 <= token < self._vocab_size)

    @property
    def bos_text(self) -> str:
        """Spelling of the token that begins a text; empty when there is none."""
        return self._text("bos_token")

    @property
    def eos_text(self) -> str:
        """Spelling of the token that ends a text; empty when there is none."""
        return self._text("eos_token")

    @property
    def adds_bos(self) -> bool:
        """Whether `encode` with `special` puts the token of `bos_text` first by itself."""
        return bool(self._leading) and self._leading[0] == self._ids.get(self.bos_text)

    @cached_property
    def control_texts(self) -> frozenset[str]:
        """Spellings that `encode` reads as one token where `special` is true, and only there."""
        return frozenset(str(added.content) for added in self._added.values() if added.special)

    @cached_property
    def fim(self) -> FimTokens | None:
        """The tokens for filling a gap, by their spelling among the tokens that were added."""
        added = {str(one.content): token for token, one in self._added.items()}
        triple = next((names for names in _FIM if all(name in added for name in names)), None)
        if triple is None:
            return None
        beside = {
            name: next((added[text] for text in texts if text in added), None)
            for name, texts in _FIM_BESIDE.items()
        }
        prefix, suffix, middle = (added[name] for name in triple)
        return FimTokens(prefix=prefix, suffix=suffix, middle=middle, **beside)

    @cached_property
    def chat_template(self) -> str | None:
        """The folder's own chat template (Jinja); None where it brings none."""
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return read_text(file)
        beside = read_json(self.folder / "chat_template.json").get("chat_template")
        found = self._settings.get("chat_template") or beside
        if isinstance(found, list):
            named = {one.get("name"): one.get("template") for one in found}
            found = named.get("default")
        return found if isinstance(found, str) else None

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        """See `contracts.Tokenizer.encode`. Lone surrogates become `?`."""
        text = text.encode("utf-8", "replace").decode()
        if not special:
            return list(self._plain_reader.encode(text, add_special_tokens=False).ids)
        return [*self._leading, *self._reader.encode(text, add_special_tokens=False).ids]

    def token_bytes(self, token: Token) -> bytes:
        """The bytes that `token` stands for; empty for control tokens and ids out of range."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def _read_piece(self, token: Token) -> bytes:
        name = self._names.get(token)
        if name is None or token >= self._vocab_size:
            return b""
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else str(added.content).encode()
        return self._decoder.bytes_of(name)

    def _text(self, field: str) -> str:
        found = self._settings.get(field)
        text = found.get("content", "") if isinstance(found, dict) else found
        return text if isinstance(text, str) and text in self._ids else ""

    def _find_leading(self) -> list[Token]:
        """The tokens that are put before every text. What is put behind it is left out."""
        plain = self._reader.encode("a", add_special_tokens=False).ids
        whole = self._reader.encode("a", add_special_tokens=True).ids
        number = next(
            (n for n in range(len(whole)) if whole[n : n + len(plain)] == plain), len(whole)
        )
        leading = list(whole[:number]) if number < len(whole) else []
        first, asked = self._ids.get(self.bos_text), self._settings.get("add_bos_token")
        if asked is True and not leading and first is not None:
            leading = [first]
        return [] if asked is False else leading


class _Pieces:
    """From the spelling of a token in the vocabulary to its bytes, by the folder's `decoder`."""

    def __init__(self, decoder: Any) -> None:
        kinds = list(_flat(decoder))
        names = {kind.get("type") for kind in kinds}
        self._by_bytes = "ByteLevel" in names
        self._hexadecimal = "ByteFallback" in names
        self._words = "WordPiece" in names
        self._replaced = [
            (kind["pattern"]["String"], kind["content"])
            for kind in kinds
            if kind.get("type") == "Replace" and "String" in kind.get("pattern", {})
        ]
        self._replaced += [
            (kind.get("replacement", "\u2581"), " ")
            for kind in kinds
            if kind.get("type") == "Metaspace"
        ]

    def bytes_of(self, name: str) -> bytes:
        """The bytes of the token that is spelled `name`."""
        if self._by_bytes:
            table = _byte_level()
            return b"".join(table.get(letter, letter.encode()) for letter in name)
        if self._hexadecimal and len(name) == 6 and name.startswith("<0x") and name[-1] == ">":
            try:
                return bytes([int(name[3:5], 16)])
            except ValueError:
                pass
        if self._words:
            return name[2:].encode() if name.startswith("##") else f" {name}".encode()
        for pattern, content in self._replaced:
            name = name.replace(pattern, content)
        return name.encode()


def _flat(decoder: Any) -> Iterator[dict[str, Any]]:
    """The decoders of a sequence, one after the other."""
    if not isinstance(decoder, dict):
        return
    yield decoder
    for inner in decoder.get("decoders", ()):
        yield from _flat(inner)


@cache
def _byte_level() -> dict[str, bytes]:
    """How byte-level tokenizers spell bytes: printable ones as themselves, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): bytes([byte]) for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    table.update({chr(256 + n): bytes([byte]) for n, byte in enumerate(others)})
    return table


def _read(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtraError("tokenizers", "tokenizers") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The package raises bare Exception.
        raise ModelError(f"tokenizer {path} cannot be read ({error})") from None
