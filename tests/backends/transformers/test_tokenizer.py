"""The tokenizer of a folder: bytes of byte-level and of sentencepiece pieces, marks, templates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="needs tokenizers")

from tokenizers import Tokenizer, decoders, models, normalizers, processors

from copyahead.backends.transformers.tokenizer import FolderTokenizer
from copyahead.contracts import FimTokens
from copyahead.errors import ModelError
from copyahead.grammar.compiler import Grammar, GrammarCompiler
from copyahead.server.infill.gap import Gap, GapWriter
from copyahead.traces.tokenizers import find_tokenizer
from copyahead.types import Draft
from tests.backends.transformers.models import CHAT_TEMPLATE, train_tokenizer

TEXTS = ["The list of files", "naïve 漢字 🙂\n\ttabs", "x" * 40, "  two  spaces "]


def byte_level(folder: Path, **settings: Any) -> Path:
    train_tokenizer().save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def sentencepiece(folder: Path) -> Path:
    """As llama's own: bytes spelled in hexadecimal, a bar for a space, and a first token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "t", "h", "e", "th", "the", "▁the", "f", "o", "x", "fo", "fox", "▁fox"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("f", "o"), ("fo", "x"), ("▁", "fox")]
    model = models.BPE(
        vocab={piece: n for n, piece in enumerate(pieces)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    made = Tokenizer(model)
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.add_tokens(["<tool>"])
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [2]}))
    settings = {"bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_the_bytes_of_a_text_s_tokens_are_its_own(make: Any, text: str, tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(make(tmp_path))
    tokens = tokenizer.encode(text, special=False)
    assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
    assert max(tokens) < tokenizer.vocab_size


def test_control_tokens_are_read_only_where_they_are_asked_for(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level(tmp_path))
    end = tokenizer.encode("<|im_end|>")
    assert end == [1]
    assert tokenizer.token_bytes(1) == b""
    letters = tokenizer.encode("<|im_end|>", special=False)
    assert len(letters) > 1
    assert b"".join(map(tokenizer.token_bytes, letters)) == b"<|im_end|>"
    assert tokenizer.control_texts == {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}
    assert (tokenizer.bos_text, tokenizer.eos_text) == ("<|im_start|>", "<|im_end|>")
    assert not tokenizer.adds_bos
    assert tokenizer.end_tokens == {1, 2}
    assert tokenizer.encode("\ud800") == tokenizer.encode("?")


def test_a_first_token_is_put_and_a_last_one_is_not(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(sentencepiece(tmp_path))
    assert tokenizer.adds_bos
    tokens = tokenizer.encode(" the fox")
    assert tokens[0] == 1
    assert 2 not in tokens
    assert tokens[1:] == tokenizer.encode(" the fox", special=False)
    assert [tokenizer.token_bytes(token) for token in tokens] == [b"", b" the", b" fox"]
    assert tokenizer.end_tokens == {2}
    assert tokenizer.control_texts == {"<unk>", "<s>", "</s>"}
    (tool,) = tokenizer.encode("<tool>", special=False)
    assert tokenizer.token_bytes(tool) == b"<tool>"
    assert tokenizer.token_bytes(10_000) == b""


@pytest.mark.parametrize("asked", [True, False])
def test_a_folder_says_whether_there_is_a_first_token(asked: bool, tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level(tmp_path, add_bos_token=asked))
    assert tokenizer.adds_bos is asked
    assert (tokenizer.encode("a")[0] == 0) is asked


def test_ids_that_the_model_has_no_logits_for_do_not_count(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(byte_level(tmp_path), width=100)
    assert tokenizer.vocab_size == 100
    assert tokenizer.token_bytes(100) == b""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", CHAT_TEMPLATE),
        ("chat_template.json", json.dumps({"chat_template": CHAT_TEMPLATE})),
        ("tokenizer_config.json", json.dumps({"chat_template": CHAT_TEMPLATE})),
        (
            "tokenizer_config.json",
            json.dumps({"chat_template": [{"name": "default", "template": CHAT_TEMPLATE}]}),
        ),
    ],
)
def test_the_chat_template_is_found(name: str, content: str, tmp_path: Path) -> None:
    byte_level(tmp_path)
    assert FolderTokenizer(tmp_path).chat_template is None
    (tmp_path / name).write_text(content)
    assert FolderTokenizer(tmp_path).chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_a_grammar_allows_what_the_tokenizer_writes(make: Any, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    tokenizer = FolderTokenizer(make(tmp_path))
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
    state = compiler.compile(Grammar("grammar", 'start: " the fox" | "the list"'))
    tokens = tokenizer.encode(" the fox", special=False)
    assert state.cut(Draft(tokens=tuple(tokens))).tokens == tuple(tokens)
    assert not state.cut(Draft(tokens=tuple(tokenizer.encode("fox", special=False))))


def test_replay_takes_a_folder(tmp_path: Path) -> None:
    name, tokenizer = find_tokenizer(byte_level(tmp_path))
    assert name == tmp_path.name
    assert tokenizer.encode("The list") == FolderTokenizer(tmp_path).encode("The list")


def test_what_is_missing_or_damaged_is_said_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json: write one"):
        FolderTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        FolderTokenizer(tmp_path)
    byte_level(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json cannot be read"):
        FolderTokenizer(tmp_path)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    "names",
    [
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"),
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<reponame>", "<file_sep>"),
        ("▁<PRE>", "▁<SUF>", "▁<MID>", None, None),
    ],
)
def test_tokens_for_gaps_are_found_by_their_spelling(
    tmp_path: Path, names: tuple[str | None, ...], special: bool
) -> None:
    """Some folders list them as ordinary tokens."""
    made = train_tokenizer()
    (made.add_special_tokens if special else made.add_tokens)([name for name in names if name])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    tokenizer = FolderTokenizer(tmp_path)
    ids: list[Any] = [made.token_to_id(name) if name else None for name in names]
    assert tokenizer.fim == FimTokens(
        prefix=ids[0], suffix=ids[1], middle=ids[2], repository=ids[3], separator=ids[4]
    )
    text = f"a {names[0]} b {names[1]}{names[2]}"
    tokens = GapWriter(tokenizer, tokenizer.fim, token_bytes=32).prompt(Gap(before=text)).tokens
    assert [t for t in tokens if t in tokenizer.fim.all] == ids[:3]
    letters = tokens[1 : tokens.index(tokenizer.fim.suffix)]
    assert b"".join(map(tokenizer.token_bytes, letters)).decode() == text


def test_a_folder_without_tokens_for_gaps_says_so(tmp_path: Path) -> None:
    assert FolderTokenizer(byte_level(tmp_path)).fim is None
