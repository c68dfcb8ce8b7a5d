"""The request lines of this project's own server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from copyahead.server.service import ServerOptions
from copyahead.traces.logs.bands import Seen
from copyahead.traces.logs.own import OwnReader, is_own
from copyahead.traces.logs.reading import read_log
from tests.server.toys import Running, running

LINE = (
    b"2026-11-30 20:08:41,123 INFO copyahead.server.service: request id=chatcmpl-1f route=chat "
    b"tenant=- finish=stop read=812 cached=640 written=120 queue_ms=0.2 first_token_ms=310.4 "
    b"total_ms=1490.0 tok_s=101.1 rounds=31 drafted=102 accepted=89 prompts=1 policy=priced:a=1,b=2"
)


def read(*lines: bytes) -> tuple[list[Seen], list[bytes]]:
    seen: list[Seen] = []
    wrong: list[bytes] = []
    reader = OwnReader(seen.append, wrong.append)
    for line in lines:
        reader.line(line)
    reader.finish()
    return seen, wrong


@pytest.fixture
def server_log(tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    """A server that writes its log as `copyahead serve` does."""
    path = tmp_path / "server.log"
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("copyahead")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with running(options=ServerOptions(policy="fixed"), policy="fixed") as server:
            yield server, path
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def test_what_the_server_writes_is_what_its_clients_were_told(
    server_log: tuple[Running, Path],
) -> None:
    server, path = server_log
    text = "the and the and ab the and the and ab the and the and ab"
    usages = []
    with openai.OpenAI(base_url=server.api, api_key="any", max_retries=0) as client:
        for _ in range(3):
            done = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"say:{text}"}]
            )
            usages.append(done.usage)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "a"}], temperature=-1
            )
        client.completions.create(model="m", prompt=["a", "the"], n=2, max_tokens=3)
    assert server.is_idle()
    log = read_log([str(path)], by=["policy"])
    (row,) = [row for row in log.rows if row.band == "all"]
    assert (log.format, log.files[0].not_understood) == ("copyahead", 0)
    assert (row.requests, row.failed, row.policy) == (4, 0, "fixed")
    assert all(usage is not None for usage in usages)
    written = sum(usage.completion_tokens for usage in usages if usage) + 4 * 3
    assert row.written_tokens == written
    assert row.prompt_tokens == sum(usage.prompt_tokens for usage in usages if usage) + 1 + 3
    assert 0 < row.accepted_tokens <= row.drafted_tokens
    assert row.prefix_reuse is not None
    assert row.prefix_reuse > 0.5
    assert row.tokens_per_round is not None
    assert row.tokens_per_round > 1
    assert row.first_token_ms.p50 is not None
    assert row.tok_s.p50 is not None


def test_every_field_of_a_line_is_read() -> None:
    (seen,), wrong = read(LINE)
    assert wrong == []
    assert seen == Seen(
        context=932, read=812, written=120, cached=640, drafted=102, accepted=89, rounds=31,
        speed=101.1, first_token=310.4 / 1000, failed=False, policy="priced:a=1,b=2",
        day="2026-11-30",
    )  # fmt: skip


def test_lines_of_earlier_and_later_versions_are_read() -> None:
    old = LINE[: LINE.index(b" prompts=")]
    new = LINE.replace(b" rounds=", b" model=m rounds=") + b" colour=blue"
    (first, second), wrong = read(old, new)
    assert (first.policy, second.policy, wrong) == ("-", "priced:a=1,b=2", [])


def test_several_answers_share_their_prompt() -> None:
    line = LINE.replace(b"finish=stop", b"finish=stop,length,stop")
    two = line.replace(b"prompts=1", b"prompts=2")
    (first, second), _ = read(line, two)
    assert (first.context, second.context) == (812 + 40, 406 + 40)


@pytest.mark.parametrize("reason", ["cancelled", "stop,cancelled", "error", "refused"])
def test_a_request_that_was_not_answered_has_failed(reason: str) -> None:
    line = LINE.replace(b"finish=stop", f"finish={reason}".encode())
    (seen,), _ = read(line.replace(b"first_token_ms=310.4", b"first_token_ms=-"))
    assert (seen.failed, seen.first_token) == (True, None)


@pytest.mark.parametrize(
    "line",
    [
        LINE[:150],
        LINE.replace(b"read=812", b"read=8x2"),
        LINE.replace(b"read=812", b"read=-812"),
        LINE.replace(b"prompts=1", b"prompts=0"),
        LINE.replace(b" tok_s=101.1", b""),
        LINE.replace(b"policy=priced", b"policy=\xff\xfe"),
        b"\x00\x01\x02",
        b'{"some": "other program"}',
        b"Traceback (most recent call last):",
    ],
)
def test_a_line_that_cannot_be_read_is_given_back(line: bytes) -> None:
    assert read(line, LINE)[1] == [line]


def test_other_lines_of_the_server_are_passed_over() -> None:
    lines = [
        b"loading model.gguf",
        b"model: smol",
        b"",
        b"2026-11-30 20:08:41,123 INFO copyahead.server.service: refused status=400 code=x param=y",
        b"2026-11-30 20:08:41,123 WARNING copyahead.engine.engine: a drafter failed",
    ]
    assert read(*lines) == ([], [])
    assert [is_own(line) for line in lines] == [False, False, False, True, False]


def test_a_container_may_write_before_each_line() -> None:
    (seen,), wrong = read(b"web-1  | " + LINE)
    assert (seen.read, seen.day, wrong) == (812, "2026-11-30", [])
