"""Traces that are larger than memory: compressed lines, Parquet, and what is put away."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyahead.errors import ConfigError, MissingExtraError
from copyahead.traces.corpus import Corpus, build_corpus
from copyahead.traces.formats.conversations import Conversation, Message, TokenRequest
from copyahead.traces.formats.importers import Trace, read_traces
from copyahead.traces.large import opening, spool
from copyahead.traces.large.kept import KeptConversations, KeptRequests
from copyahead.traces.large.spool import Spool, TokenStore
from copyahead.traces.record import TraceWriter
from tests.traces.test_traces import ByteTokenizer

TEXTS = st.text("ab\n", max_size=20)


@given(pieces=st.lists(st.binary(max_size=30)), in_memory=st.sampled_from([1, 50, 10**6]))
def test_what_is_put_away_comes_back(pieces: list[bytes], in_memory: int) -> None:
    kept = Spool(in_memory)
    assert [kept.put(piece) for piece in pieces] == list(range(len(pieces)))
    order = list(range(len(pieces)))
    random.Random(1).shuffle(order)
    assert [kept.get(number) for number in order] == [pieces[number] for number in order]


@given(parts=st.lists(st.lists(st.integers(0, 99), max_size=9)), in_memory=st.integers(0, 80))
def test_tokens_are_the_same_in_memory_and_in_a_file(
    parts: list[list[int]], in_memory: int
) -> None:
    store = TokenStore(in_memory)
    for part in parts:
        store.add(np.array(part, dtype=np.int32))
    whole = [token for part in parts for token in part]
    tokens = store.tokens()
    assert (tokens.tolist(), len(store), store.largest) == (
        whole,
        len(whole),
        max(whole, default=-1),
    )
    tokens[:] = 0  # Kernels ask for arrays that may be written.


@given(
    steps=st.lists(st.tuples(st.integers(0, 5), TEXTS, st.booleans()), max_size=40),
    in_memory=st.sampled_from([0, 500, 10**6]),
)
def test_kept_conversations_grow_as_those_in_memory_do(
    steps: list[tuple[int, str, bool]], in_memory: int
) -> None:
    kept = KeptConversations(in_memory)
    plain: list[Conversation] = []
    for number, text, is_new in steps:
        message = Message("user", text, written=len(text) % 2 == 0)
        if number < len(plain) and is_new:
            kept.extend(number, [message])
            plain[number].messages.append(message)
        elif number < len(plain):
            kept.replace_last(number, message)
            plain[number].messages[-1] = message
        else:
            kept.append(Conversation(text, [message]))
            plain.append(Conversation(text, [message]))
    assert list(kept) == plain
    assert list(kept[1:4]) == plain[1:4]
    assert [kept[-1]] == plain[-1:] if plain else len(kept) == 0


class Counted(str):
    """Text that counts how often its length is asked for."""

    __slots__ = ()
    asked = 0

    def __len__(self) -> int:
        Counted.asked += 1
        return super().__len__()


def test_a_conversation_that_grows_is_not_measured_anew() -> None:
    kept, count = KeptConversations(), 200
    kept.append(Conversation("s", []))
    Counted.asked = 0
    for _ in range(count):
        kept.extend(0, [Message("user", Counted("text"))])
        assert kept[0].messages
    assert len(kept[0].messages) == count
    assert count <= Counted.asked <= 3 * count


def test_kept_requests_come_back_and_are_chosen_by_session() -> None:
    kept = KeptRequests(in_memory=0)
    requests = [TokenRequest(f"s{n % 3}", [n, n + 1], [n + 2], 50) for n in range(9)]
    for request in requests:
        kept.append(request)
    assert list(kept) == requests
    assert list(kept.of_sessions(slice(1, 2))) == requests[1::3]
    assert kept.of_sessions(slice(None)) is kept


def dialogue(number: int) -> dict[str, Any]:
    said = [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": "x\n" * 9}]
    return {"messages": said}


def pair(number: int) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": f"q{number % 7}"}], "completion": f"a{number}"}


def ids(number: int) -> dict[str, Any]:
    return {"prompt_ids": list(range(number % 5, 20)), "output_ids": [number, 1]}


def event(number: int) -> dict[str, Any]:
    """Of Claude Code, whose sessions come in pieces."""
    role = ("user", "assistant")[number % 2]
    message = {"role": role, "content": f"t{number}", "id": str(number)}
    return {
        "type": role,
        "sessionId": f"s{number // 4 % 3}",
        "uuid": str(number),
        "message": message,
    }


def write_lines(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def corpus_of(*paths: Path) -> Corpus:
    return build_corpus(read_traces([str(path) for path in paths]), ByteTokenizer())


def only(path: Path) -> Trace:
    (trace,) = read_traces([str(path)])
    return trace


def assert_same(one: Corpus, other: Corpus) -> None:
    assert one.requests.tolist() == other.requests.tolist()
    assert one.tokens.tolist() == other.tokens.tolist()
    assert (one.categories, one.vocab_size) == (other.categories, other.vocab_size)


@pytest.mark.parametrize("make", [dialogue, pair, ids, event])
def test_what_does_not_fit_into_memory_makes_the_same_corpus(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [make(n) for n in range(60)])
    plain, problems = corpus_of(path), only(path).problems
    assert len(plain.requests) >= 10
    for in_memory in (0, 2000):
        monkeypatch.setattr(spool, "IN_MEMORY", in_memory)
        assert_same(corpus_of(path), plain)
        assert only(path).problems == problems


def test_own_records_are_put_together_from_what_was_put_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.jsonl"
    with TraceWriter(path) as writer:
        for turn in range(1, 12):
            for session in (100, 200):
                writer.write([session + n for n in range(turn * 3)], [session + turn * 3])
    plain = corpus_of(path)
    assert len(plain.requests) == 22
    monkeypatch.setattr(spool, "IN_MEMORY", 0)
    assert_same(corpus_of(path), plain)


def zstd(data: bytes) -> bytes:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    packed: bytes = pytest.importorskip(name, reason=f"needs {name}").compress(data)
    return packed


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_compressed_lines_are_told_by_content_in_one_part_or_several(
    tmp_path: Path, pack: Any
) -> None:
    plain = write_lines(tmp_path / "a.jsonl", [dialogue(n) for n in range(200)])
    data = plain.read_bytes()
    packed = tmp_path / "a.packed"
    for parts in ([data], [data[:1000], data[1000:]], [b"\xef\xbb\xbf" + data]):
        packed.write_bytes(b"".join(pack(part) for part in parts))
        assert corpus_of(packed).tokens.tolist() == corpus_of(plain).tokens.tolist()
        assert only(packed).problems == []


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_compressed_file_that_was_cut_short_is_an_error(tmp_path: Path, pack: Any) -> None:
    rest = random.Random(3).randbytes(50_000).hex()
    lines = json.dumps(dialogue(1)) + "\n" + json.dumps({"messages": [], "rest": rest}) + "\n"
    packed = tmp_path / "a.jsonl.packed"
    packed.write_bytes(pack(lines.encode())[:-100])
    with pytest.raises(ConfigError, match=r"a\.jsonl\.packed cannot be read \(.+\)"):
        read_traces([str(packed)])
    packed.write_bytes(pack(lines.encode())[:300] + b"\x00" * 200)
    with pytest.raises(ConfigError, match=r"a\.jsonl\.packed cannot be read \(.+\)"):
        read_traces([str(packed)])


def test_without_the_package_for_zstd_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "a.zst"
    packed.write_bytes(zstd(json.dumps(dialogue(1)).encode()))
    for name in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'copyahead\[zstd\]'"):
        read_traces([str(packed)])
    write_lines(tmp_path / "b.jsonl", [dialogue(2)])
    traces = read_traces([str(tmp_path)])
    assert [trace.num_sessions for trace in traces] == [0, 1][:: 1 if traces[0].problems else -1]
    assert sum(len(trace.problems) for trace in traces) == 1


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    """The first session is there before the second has been looked at."""
    path = write_lines(tmp_path / "a.jsonl", [dialogue(n) for n in range(100_000)])
    with opening.opened(path) as file:
        first = file.readline()
        assert json.loads(first) == dialogue(0)
        assert file.tell() < 1000


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.mark.parametrize("make", [dialogue, ids])
@pytest.mark.parametrize("compression", ["zstd", "none", "snappy"])
def test_rows_of_parquet_are_the_lines_of_json(tmp_path: Path, make: Any, compression: str) -> None:
    items = [make(n) for n in range(150)]
    columns = {name: [item[name] for item in items] for name in items[0]}
    plain = write_lines(tmp_path / "a.jsonl", items)
    path = parquet(tmp_path / "a.parquet", columns, compression=compression, row_group_size=70)
    assert_same(corpus_of(path), corpus_of(plain))


def test_parquet_may_hold_text_json_and_nulls(tmp_path: Path) -> None:
    texts = parquet(
        tmp_path / "a.parquet",
        {"prompt": ["q", "r", None], "completion": ["x", "y", "z"], "id": [1, 2, 3]},
    )
    trace = only(texts)
    assert [c.messages[-1].text for c in trace.conversations] == ["x", "y"]
    assert [problem.place for problem in trace.problems] == ["row 3"]
    messages = [json.dumps(dialogue(n)["messages"]) for n in range(3)]
    as_json = parquet(tmp_path / "b.parquet", {"messages": messages})
    assert len(only(as_json).conversations) == 3


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"prompt": ["q"]}, "column prompt and none for what was written: add completion"),
        ({"output_ids": [[1]]}, "column output_ids and none for what was read: add prompt"),
        ({"a": [1], "b": ["x"]}, "columns a, b, of which no format is made: name them prompt"),
        ({"prompt": [], "completion": []}, "is empty"),
    ],
)
def test_a_missing_column_is_named(tmp_path: Path, columns: dict[str, Any], sentence: str) -> None:
    path = parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(ConfigError, match=sentence):
        read_traces([str(path)])


def test_parquet_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {"prompt": ["q"] * 500, "completion": ["x"] * 500})
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match=r"a\.parquet cannot be read"):
        read_traces([str(path)])


def test_without_the_package_for_parquet_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "a.parquet", {"prompt": ["q"], "completion": ["x"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'copyahead\[parquet\]'"):
        read_traces([str(path)])


_PEAK = r"""
import re, sys
from pathlib import Path
from copyahead.traces.large import spool
from copyahead.traces.corpus import build_corpus
from copyahead.traces.formats.importers import read_traces

def peak():
    # Of this program; what the system counts for its parent is left out.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])

spool.IN_MEMORY = 1_000_000
# What is loaded for any trace does not count.
read_traces([sys.argv[1]])
before = peak()
corpus = build_corpus(read_traces([sys.argv[2]]), None)
after = peak()
print(corpus.num_written, after - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in kilobytes on Linux")
@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_a_trace_of_many_tokens_takes_a_small_part_of_their_memory(
    tmp_path: Path, suffix: str
) -> None:
    count, length = 4000, 2500

    def write(name: str, count: int) -> Path:
        path = tmp_path / f"{name}{suffix}"
        items = [{"prompt_ids": [n] * length, "output_ids": [n + 1] * 500} for n in range(count)]
        if suffix == ".parquet":
            columns = {name: [item[name] for item in items] for name in items[0]}
            return parquet(path, columns, row_group_size=200)
        data = b"".join(json.dumps(item).encode() + b"\n" for item in items)
        path.write_bytes(gzip.compress(data, 1) if suffix == ".jsonl.gz" else zstd(data))
        return path

    small, large = write("small", 200), write("large", count)
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PEAK), str(small), str(large)],
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    written, kilobytes = map(int, found.stdout.split())
    print(f"{suffix}: {written} tokens written, {kilobytes / 1000:.0f} MB more at the peak")
    assert written == count * 500
    # As ids of four bytes the trace has 48 MB; as lists of numbers it would have twice as much.
    assert kilobytes < 24_000
