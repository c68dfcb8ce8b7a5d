"""The probe: what it measures, what it keeps, and which settings it takes."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from copyahead.backends.llama_cpp.cells import OrderedCells
from copyahead.backends.llama_cpp.gguf import read_header
from copyahead.backends.llama_cpp.load import LlamaSettings
from copyahead.backends.llama_cpp.states import PinnedStates
from copyahead.backends.probe import cache as probe_cache
from copyahead.backends.probe import measure
from copyahead.backends.probe import search as probe
from copyahead.backends.probe.measure import Measurement, MeasurementRequest
from copyahead.backends.probe.search import ProbeResult
from copyahead.config import ModelOptions
from copyahead.contracts import Capabilities, Part
from copyahead.errors import ModelError
from copyahead.loading import load
from copyahead.step_cost import StepCost, StepCostMeter
from copyahead.types import Exactness
from tests.machine import THREADS
from tests.small_models import quantized
from tests.tiny_models import write_plain

QUICK = LlamaSettings(threads=2)


ONE = LlamaSettings(threads=1)


def pack_one_by_one(cells: OrderedCells, lengths: Sequence[int]) -> None:
    """How cells were packed once: llama.cpp copies what the windows of a sequence still see."""
    library, context = cells._library, cells._context
    states = {}
    for slot, length in enumerate(lengths):
        if length > 0:
            size = library.llama_state_seq_get_size(context, slot)
            states[slot] = (ctypes.c_uint8 * size)()
            library.llama_state_seq_get_data(context, states[slot], size, slot)
    library.llama_memory_clear(cells._memory, False)
    for slot, data in states.items():
        library.llama_state_seq_set_data(context, data, len(data), slot)
    cells._cursor, cells._must_pack = sum(lengths), False
    cells._runs = [(-1, -1)] * len(lengths)


def release_at_once(states: PinnedStates, slot: int, held: int, length: int) -> None:
    """Gives an empty slot's cell up before another pass needs it."""
    states._library.llama_memory_seq_rm(states._memory, slot, length or -1, -1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(probe_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def forbid(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, a probe that measures anything fails."""

    def run(request: MeasurementRequest) -> Measurement:
        raise AssertionError(f"measured again: {request}")

    return lambda: monkeypatch.setattr(probe, "_run", run)


class TestMeasuring:
    @pytest.mark.parametrize("name", ["plain", "sliding_window"])
    def test_quantised_weights_are_exact_however_many_rows(
        self, name: str, tiny_models: dict[str, Path]
    ) -> None:
        result = probe.probe(tiny_models[name], QUICK)
        assert str(result.exactness) == "exact up to 260 rows"
        assert result.proven
        assert result.exactness.max_abs_diff == 0.0
        assert result.prefix == probe.PREFIX
        assert set(result.step_seconds) == set(measure.TIMED_ROWS)
        assert result.step_cost(1) == 1.0

    def test_a_hybrid_is_exact_up_to_its_snapshots(self, tiny_models: dict[str, Path]) -> None:
        result = probe.probe(tiny_models["hybrid"], QUICK)
        assert (result.exactness.level, result.exactness.rows) == ("exact", 65)
        assert result.proven

    def test_what_cannot_draft_is_exact_for_its_one_row(self, tiny_models: dict[str, Path]) -> None:
        result = probe.probe(tiny_models["recurrent"], QUICK)
        assert (result.exactness.level, result.exactness.rows) == ("exact", 1)
        assert set(result.step_seconds) == {1}
        assert "drafting is off" in result.capabilities.note

    def test_a_difference_is_seen(self, tmp_path: Path) -> None:
        path = tmp_path / "f32.gguf"
        write_plain(path, quantized=False)
        result = probe.probe(path, QUICK)
        assert result.exactness.level == "near"
        assert result.exactness.rows < 65
        assert 0 < result.exactness.max_abs_diff < 1e-3
        assert not result.proven

    def test_a_past_that_packing_loses_is_seen(
        self, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(OrderedCells, "_pack", pack_one_by_one)
        found = measure.measure(
            MeasurementRequest(path=str(tiny_models["sliding_window"]), settings=ONE, prefix=200)
        )
        assert found.rows == 65
        assert not found.batched
        assert found.max_abs_diff > 0.1

    def test_a_snapshot_that_a_ragged_pass_loses_is_seen(
        self, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(PinnedStates, "_take_cells", lambda states: None)
        monkeypatch.setattr(PinnedStates, "release", release_at_once)
        found = measure.measure(
            MeasurementRequest(path=str(tiny_models["hybrid"]), settings=ONE, prefix=200)
        )
        assert found.rows == 65
        assert not found.batched
        assert found.max_abs_diff > 0.1

    def test_a_cut_context_shortens_the_prefix(self, tiny_models: dict[str, Path]) -> None:
        result = probe.probe(tiny_models["plain"], QUICK, prefix=5000)
        assert result.prefix == 2048 - 130

    def test_not_a_number_is_equal_to_itself_and_a_sign_of_zero_is_not(self) -> None:
        odd = np.array([[np.nan, 0.0]], dtype=np.float32)
        assert measure._bits_equal(odd, odd.copy())
        assert not measure._bits_equal(odd, odd * np.float32(-1))


class TestKeeping:
    def test_a_result_is_measured_once(
        self, tiny_models: dict[str, Path], forbid: Callable[[], None], cache: Path
    ) -> None:
        first = probe.probe(tiny_models["plain"], QUICK)
        assert len(list(cache.rglob("*.json"))) == 1
        forbid()
        elsewhere = msgspec.structs.replace(QUICK, ctx=999, parallel=7, verbose=True)
        assert probe.probe(tiny_models["plain"], elsewhere) == first

    @pytest.mark.parametrize("change", ["threads", "kv_type", "file", "prefix", "library"])
    def test_whatever_it_depends_on_makes_another(
        self,
        change: str,
        tmp_path: Path,
        forbid: Callable[[], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path, settings, prefix = tmp_path / "model.gguf", QUICK, 300
        write_plain(path)
        probe.probe(path, settings, prefix=prefix)
        forbid()
        if change == "threads":
            settings = msgspec.structs.replace(settings, threads=1)
        elif change == "kv_type":
            settings = msgspec.structs.replace(settings, kv_type="bf16")
        elif change == "file":
            os.utime(path, (1, 1))
        elif change == "prefix":
            prefix = 301
        else:
            monkeypatch.setattr(probe_cache, "library_build", lambda: "another")
        with pytest.raises(AssertionError, match="measured again"):
            probe.probe(path, settings, prefix=prefix)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"settings": {}}', b"\xff\xfe"])
    def test_a_damaged_file_is_no_result(
        self, content: bytes, tiny_models: dict[str, Path], cache: Path
    ) -> None:
        first = probe.probe(tiny_models["plain"], QUICK, prefix=200)
        (kept,) = cache.rglob("*.json")
        kept.write_bytes(content)
        again = probe.probe(tiny_models["plain"], QUICK, prefix=200)
        assert again.exactness == first.exactness
        assert msgspec.json.decode(kept.read_bytes(), type=ProbeResult) == again

    def test_a_cache_that_cannot_be_written_is_none(
        self, tiny_models: dict[str, Path], cache: Path
    ) -> None:
        cache.write_text("in the way")
        assert probe.probe(tiny_models["plain"], QUICK, prefix=200).proven

    def test_the_folder_is_named_by_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert probe_cache.cache_dir() == tmp_path / "cache"
        monkeypatch.delenv(probe_cache.CACHE_VARIABLE)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        assert probe_cache.cache_dir() == tmp_path / "xdg" / "copyahead"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert probe_cache.cache_dir() == tmp_path / ".cache" / "copyahead"

    def test_again_measures_again(self, tiny_models: dict[str, Path], cache: Path) -> None:
        probe.probe(tiny_models["plain"], QUICK, prefix=200)
        (kept,) = cache.rglob("*.json")
        result = msgspec.json.decode(kept.read_bytes(), type=ProbeResult)
        loaded = msgspec.structs.replace(result, step_seconds={1: 1.0, 2: 9.0}, refreshed={1: 1.0})
        kept.write_bytes(msgspec.json.encode(loaded))
        assert probe.probe(tiny_models["plain"], QUICK, prefix=200) == loaded
        again = probe.probe(tiny_models["plain"], QUICK, prefix=200, again=True)
        assert set(again.step_seconds) == set(measure.TIMED_ROWS)
        assert probe.probe(tiny_models["plain"], QUICK, prefix=200) == again

    def test_again_measures_every_candidate_again(
        self, tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(rows=lambda settings: 65)
        monkeypatch.setattr(probe, "_run", machine.run)
        options = ModelOptions(threads=2)
        counts = []
        for again in (False, False, True):
            probe.find_settings(tiny_models["plain"], options, again=again)
            counts.append(len(machine.asked))
        assert counts == [2, 2, 4]


class TestCostOfRealPasses:
    """A probe under load is not the last word: what real passes cost is kept as well."""

    def test_the_next_start_has_it(self, tiny_models: dict[str, Path]) -> None:
        path, options = tiny_models["plain"], ModelOptions(threads=2, ctx=300)
        measured = probe.find_settings(path, options).step_cost
        with load(path, model=options) as engine:
            assert engine.backend.step_cost.points() == measured.points()
            # Passes of 2 rows cost ten times as much as those of one, as they never do here.
            for rows in (1, 2) * StepCostMeter.EVERY:
                engine._passes._meter.observe(rows, measured(rows) * (1 if rows == 1 else 10))
            assert engine.step_cost(2) > 8 * measured(2)
        with load(path, model=options) as engine:
            assert engine.backend.step_cost(2) > 8 * measured(2)
        found = probe.find_settings(path, options)
        assert found.step_cost.points() == measured.points()
        assert found.latest_cost(2) > 8 * measured(2)

    def test_passes_that_corrected_nothing_keep_nothing(self, tiny_models: dict[str, Path]) -> None:
        options = ModelOptions(threads=2, ctx=300)
        with load(tiny_models["plain"], model=options):
            pass
        assert not probe.find_settings(tiny_models["plain"], options).refreshed

    def test_nothing_probed_nothing_kept(self, tiny_models: dict[str, Path], cache: Path) -> None:
        probe.keep_step_cost(tiny_models["plain"], QUICK, StepCost.linear(0.1))
        assert not list(cache.rglob("*.json"))


def repeats(*shares: float) -> Iterator[measure.Times]:
    """Repeats in which the single passes took this share longer than they should."""
    return ({1: [1 + share] * 2, 64: [5 * (1 + share)]} for share in shares)


class TestSteadiness:
    def test_three_repeats_that_agree_are_enough(self) -> None:
        asked = repeats(0.0, 0.01, 0.02, 9.0)
        timing = measure.calmest(asked, math.inf)
        assert timing.seconds == {1: pytest.approx(1.01), 64: pytest.approx(5.05)}
        assert timing.spread <= measure.STEADY
        assert len(list(asked)) == 1

    def test_load_that_ends_is_waited_out_and_not_counted(self) -> None:
        timing = measure.calmest(repeats(0.9, 0.2, 2.0, 0.5, 0.0, 0.01, 0.0), math.inf)
        assert timing.seconds == {1: pytest.approx(1.0, 0.02), 64: pytest.approx(5.0, 0.02)}
        assert timing.spread <= measure.STEADY

    def test_load_that_stays_is_said(self) -> None:
        asked = repeats(*(0.9, 0.2, 2.0) * 4)
        timing = measure.calmest(asked, math.inf)
        assert timing.spread > measure.STEADY
        assert not list(asked)

    def test_a_deadline_ends_it(self) -> None:
        asked = repeats(0.9, 0.2, 2.0, 0.0, 0.0)
        assert measure.calmest(asked, -math.inf).spread > measure.STEADY
        assert len(list(asked)) == 2


class TestFailing:
    @pytest.mark.parametrize(
        ("program", "words"),
        [
            (
                "os.kill(os.getpid(), signal.SIGILL)",
                r"crashed \(SIGILL\).*another proc.*NATIVE=OFF",
            ),
            ("os.kill(os.getpid(), signal.SIGSEGV)", r"crashed \(SIGSEGV\).*damaged.*NATIVE=OFF"),
            ("os.abort()", r"crashed \(SIGABRT\).*fetch it again"),
            ("os.kill(os.getpid(), signal.SIGKILL)", r"killed \(SIGKILL\).*smaller model"),
            ("os.kill(os.getpid(), signal.SIGTERM)", r"ended from outside \(SIGTERM\)"),
            ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", r"ended from outside \(signal 37\)"),
            ("raise MemoryError", "memory ran out when .*smaller model"),
            (
                "raise OSError('libgomp.so.1: cannot open')",
                r"library \(OSError: libgomp.so.1.*anew",
            ),
            ("raise KeyError('x')", r"failed \(KeyError: 'x'\)"),
            ("pass", "failed"),
        ],
    )
    def test_a_crash_is_told_with_what_helps(
        self, program: str, words: str, tiny_models: dict[str, Path], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        crash = tmp_path / "crash.py"
        crash.write_text(f"import os, signal\n{program}\n")
        monkeypatch.setattr(probe, "PROGRAM", (str(crash),))
        with pytest.raises(ModelError, match=words):
            probe.find_settings(tiny_models["plain"], ModelOptions())

    def test_the_reason_comes_through(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.gguf"
        write_plain(path)
        path.write_bytes(path.read_bytes()[:50_000])
        with pytest.raises(ModelError, match="corrupted or incomplete"):
            probe.find_settings(path, ModelOptions())


@dataclass
class Machine:
    """Stands in for measuring: what each setting would give."""

    rows: Callable[[LlamaSettings], int]
    seconds: Callable[[LlamaSettings], float] = lambda settings: 1.0
    batched: bool = True

    def __post_init__(self) -> None:
        self.asked: list[tuple[str, bool, bool]] = []

    def run(self, request: MeasurementRequest) -> Measurement:
        settings = request.settings
        assert settings.repack == settings.tiled
        self.asked.append((settings.kv_type, settings.repack, request.quick))
        rows = 1 if request.quick else self.rows(settings)
        return Measurement(
            prefix=request.prefix,
            rows=rows,
            max_abs_diff=0.0 if rows >= 65 else 0.5,
            batched=self.batched and not request.quick,
            step_seconds={1: self.seconds(settings), 16: 2 * self.seconds(settings)},
            spread=0.0,
            any_threads=True,
            capabilities=Capabilities(
                logits_width=9, context_size=9, num_slots=4, num_cells=9, max_rows=9
            ),
        )


class TestChoosing:
    def find(
        self, machine: Machine, monkeypatch: pytest.MonkeyPatch, path: Path, **options: object
    ) -> ProbeResult:
        monkeypatch.setattr(probe, "_run", machine.run)
        return probe.find_settings(path, ModelOptions(threads=2, **options))  # type: ignore[arg-type]

    @pytest.fixture
    def plain(self, tiny_models: dict[str, Path]) -> Path:
        return tiny_models["plain"]

    def test_the_first_exact_one_is_taken(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(rows=lambda settings: 65)
        found = self.find(machine, monkeypatch, plain)
        assert (found.settings.kv_type, found.settings.repack) == ("q8_0", True)
        # Its equal was timed and not proven, as it was no faster.
        assert machine.asked == [("q8_0", True, False), ("bf16", True, True)]

    def test_a_faster_equal_is_proven_and_taken(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        speeds = {"q8_0": 1.0, "bf16": 0.8}
        machine = Machine(rows=lambda s: 65, seconds=lambda s: speeds[s.kv_type])
        assert self.find(machine, monkeypatch, plain).settings.kv_type == "bf16"

    def test_a_faster_one_that_is_not_exact_is_left(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        speeds = {"q8_0": 1.0, "bf16": 0.8}
        machine = Machine(
            rows=lambda s: 65 if s.kv_type == "q8_0" else 3, seconds=lambda s: speeds[s.kv_type]
        )
        assert self.find(machine, monkeypatch, plain).settings.kv_type == "q8_0"

    def test_without_kernels_where_they_make_the_difference(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(rows=lambda s: 2 if s.repack else 65)
        found = self.find(machine, monkeypatch, plain)
        assert (found.settings.repack, found.settings.tiled) == (False, False)

    def test_k_quants_begin_without_them(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        header = msgspec.structs.replace(read_header(plain), tensor_types={14: 3, 2: 9})
        monkeypatch.setattr(probe, "read_header", lambda path: header)
        machine = Machine(rows=lambda settings: 65)
        assert not self.find(machine, monkeypatch, plain).settings.repack

    def test_the_users_kv_type_is_the_only_one(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(rows=lambda settings: 1)
        found = self.find(machine, monkeypatch, plain, kv_type="f16")
        assert {kind for kind, _, _ in machine.asked} == {"f16"}
        assert found.exactness == Exactness("near", 1, 0.5, True)

    def test_nothing_exact_takes_the_fastest(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(
            rows=lambda s: 3, seconds=lambda s: 1.0 if s.kv_type == "bf16" and s.repack else 2.0
        )
        found = self.find(machine, monkeypatch, plain)
        assert (found.settings.kv_type, found.settings.repack) == ("bf16", True)
        assert found.exactness.level == "near"

    def test_exact_caps_the_rows_at_what_is_proven(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(rows=lambda s: 7 if not s.repack else 3)
        found = self.find(machine, monkeypatch, plain, exact=True)
        assert found.exactness == Exactness("exact", 7, 0.0, True)
        assert not found.settings.repack

    def test_exact_fails_where_nothing_is_proven(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(rows=lambda settings: 1)
        with pytest.raises(ModelError, match=r"exact: no settings give .* leave --exact out"):
            self.find(machine, monkeypatch, plain, exact=True)

    def test_exact_with_neighbours_needs_batching_proven(
        self, plain: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(rows=lambda settings: 65, batched=False)
        with pytest.raises(ModelError, match="exact: "):
            self.find(machine, monkeypatch, plain, exact=True, parallel=2)
        assert self.find(machine, monkeypatch, plain, exact=True).exactness.rows == 65


class TestLoading:
    def test_the_backend_carries_what_was_found(self, tiny_models: dict[str, Path]) -> None:
        options = ModelOptions(threads=2, ctx=300, parallel=2)
        backend = probe.load(tiny_models["plain"], options)
        assert backend.exactness is not None
        assert backend.exactness.level == "exact"
        assert set(backend.step_cost.points()) == set(measure.TIMED_ROWS)
        assert backend.capabilities.context_size == 300
        assert len(backend.forward([Part(1, 0, [4, 5], 1)])[0]) == 1
        backend.close()

    def test_unprobed_it_claims_nothing(
        self, tiny_models: dict[str, Path], forbid: Callable[[], None]
    ) -> None:
        forbid()
        backend = probe.load(tiny_models["plain"], ModelOptions(), probe=False)
        assert backend.exactness is None
        backend.close()


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "Q8_0", "Q4_K_M", "Q6_K"])
def test_the_bundled_model_is_exact_in_every_quantisation(
    kind: str, bundled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bundled if kind == "Q4_1" else quantized(bundled, kind, tmp_path / f"{kind}.gguf")
    found = probe.find_settings(path, ModelOptions(threads=THREADS, exact=True), prefix=1000)
    with capsys.disabled():
        print(f"\n{kind}: {found.settings.numerics()}: {found.exactness}, {found.seconds:.0f} s")
        print(f"  {found.step_cost}")
    assert found.prefix == 1000
    assert found.exactness.level == "exact"
    assert found.exactness.rows >= 64
    assert found.exactness.max_abs_diff == 0.0
    assert found.exactness.batched
