"""The file of recorded drafts: read back, gone on with, and refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from copyahead.errors import ConfigError
from copyahead.testing import FakeBackend, ToyLM
from copyahead.traces.corpus import Corpus
from copyahead.traces.drafts.asking import Asker
from copyahead.traces.drafts.draft_file import (
    DraftHeader,
    DraftWriter,
    RequestDrafts,
    join,
    read_drafts,
)
from copyahead.traces.drafts.recording import choose_requests, header_for, record
from copyahead.traces.drafts.windows import Window
from tests.traces.drafts.toys import corpus_of, recorded

MODEL = ToyLM(seed=1)
CORPUS = corpus_of(
    (list(range(1, 20)) * 3, [(4, 20), (24, 50)]), ([5, 6, 7] * 9, [(3, 9), (9, 27)])
)


def header(corpus: Corpus = CORPUS, window: int = 80) -> DraftHeader:
    return header_for(
        corpus,
        model=Path("small.gguf"),
        model_fingerprint="f",
        vocab_size=20,
        depth=6,
        branch_depth=5,
        window=window,
    )


def write(path: Path, requests: list[int], corpus: Corpus = CORPUS) -> list[int]:
    """Record requests; the tokens that were reported done."""
    done: list[int] = []
    backend = FakeBackend(MODEL, context_size=80, num_slots=3)
    with DraftWriter(path, header(corpus)) as writer:
        record(corpus, Asker(backend, Window(80, 6), 5), writer, requests, done.append)
    return done


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "drafts.jsonl"
    assert write(path, [0, 1, 2, 3]) == [16, 26, 6, 18]
    found, requests = read_drafts(path)
    assert found == header()
    cut, drafts = join(CORPUS, path, found, requests)
    expected = recorded(CORPUS, MODEL)
    assert cut.requests.tolist() == CORPUS.requests.tolist()
    assert drafts.tokens.tolist() == expected.tokens.tolist()
    assert drafts.probabilities.tolist() == expected.probabilities.tolist()
    assert drafts.begins.tolist() == expected.begins.tolist()


def test_a_record_of_some_requests_is_of_these_alone(tmp_path: Path) -> None:
    path = tmp_path / "drafts.jsonl"
    write(path, [3, 1])
    cut, drafts = join(CORPUS, path, *read_drafts(path))
    assert cut.requests.tolist() == CORPUS.requests[[1, 3]].tolist()
    whole = recorded(CORPUS, MODEL)
    for place, number in enumerate([1, 3]):
        assert drafts.of(place)[0].tolist() == whole.of(number)[0].tolist()


def test_an_interrupted_run_is_gone_on_with(tmp_path: Path) -> None:
    path, whole = tmp_path / "drafts.jsonl", tmp_path / "whole.jsonl"
    write(whole, [0, 1, 2, 3])
    write(path, [0, 1])
    with path.open("ab") as file:
        file.write(whole.read_bytes().splitlines()[3][:40])
    with pytest.raises(ConfigError, match="is cut short"):
        read_drafts(path)
    assert write(path, [0, 1, 2, 3]) == [16, 26, 6, 18]
    assert path.read_bytes() == whole.read_bytes()


def test_an_empty_file_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "drafts.jsonl"
    path.touch()
    write(path, [2])
    assert read_drafts(path)[0] == header()


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (b"{}\n", "holds no drafts"),
        (b"text\n", "holds no drafts"),
        (b"text without an end", "holds no drafts"),
        (msgspec.json.encode(header(window=64)) + b"\n", "drafts of another trace or model"),
    ],
)
def test_no_other_file_is_written_over(tmp_path: Path, held: bytes, reason: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(held)
    with pytest.raises(ConfigError, match=reason):
        DraftWriter(path, header())
    assert path.read_bytes() == held


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "drafts.jsonl"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_drafts(path)
    for data in (b"", b"{}\n", b"\xff\n", b"[1]\n"):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match="make it with copyahead record-drafts"):
            read_drafts(path)
    path.write_bytes(msgspec.json.encode(header()).replace(b'drafts":1', b'drafts":9') + b"\n")
    with pytest.raises(ConfigError, match="version 9"):
        read_drafts(path)


def test_drafts_of_another_text_or_tokenizer_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "drafts.jsonl"
    write(path, [0])
    found = read_drafts(path)
    other = msgspec.structs.replace(found[0], vocabulary="another")
    with pytest.raises(ConfigError, match=r"small\.gguf, whose tokenizer is another"):
        join(CORPUS, path, other, found[1])
    changed = corpus_of(([1, 2, 3], [(1, 3)]))
    with pytest.raises(ConfigError, match="recorded for another trace"):
        join(changed, path, *found)
    # The same tokens, of which others were written.
    requests = CORPUS.requests.copy()
    requests[0, 1] += 1
    moved = Corpus(CORPUS.tokens, requests, CORPUS.categories, 20, (0,), "toy")
    with pytest.raises(ConfigError, match="recorded for another trace"):
        join(moved, path, *found)
    with pytest.raises(ConfigError, match="hold no request"):
        join(CORPUS, path, found[0], [])


@pytest.mark.parametrize("request_number", [0, 99])
def test_arrays_of_another_size_are_damage(tmp_path: Path, request_number: int) -> None:
    short = RequestDrafts.of(request_number, np.zeros((2, 6), np.int32), np.zeros((2, 6), "f4"))
    with pytest.raises(ConfigError, match="damaged"):
        join(CORPUS, tmp_path / "x", header(), [short])


def test_a_trace_with_larger_ids_than_the_model_is_refused() -> None:
    large = Corpus(CORPUS.tokens, CORPUS.requests, ("a",), 21, (0,), "toy")
    with pytest.raises(ConfigError, match="the same tokenizer"):
        header(large)


def test_limits_take_the_first_requests() -> None:
    assert choose_requests(CORPUS) == [0, 1, 2, 3]
    assert choose_requests(CORPUS, 16) == [0]
    assert choose_requests(CORPUS, 17) == [0, 1]
    assert choose_requests(CORPUS, session_limit=1) == [0, 2]
    assert choose_requests(CORPUS, 23, 16) == [0, 2, 3]
