"""A chat in a real terminal with a real model, typed as a person types."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[3]
PROMPT = r"\x1b\[\?2004h[^\x07]*?>"
"""Text that is pasted is bracketed from here on, and the prompt is drawn."""
SENT = r"\x1b\[\?2004l"
COPIED = "\x1b[32m"
LIST = "Repeat this text: Twelve grey herons stood in the shallow water and watched the boats."
Start = Callable[..., Any]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("COPYAHEAD_")}
    return {
        **kept,
        "COPYAHEAD_CACHE_DIR": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "TERM": "xterm-256color",
    }


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Starts a chat in a terminal and waits for its prompt."""
    running: list[Any] = []

    def call(*arguments: str) -> Any:
        command = ["-m", "tests.cli.chat.real_chat", "chat", *arguments]
        child = pexpect.spawn(
            sys.executable, command, env=environment, encoding="utf-8", timeout=60,
            dimensions=(40, 120),
        )  # fmt: skip
        running.append(child)
        child.expect("/help lists commands")
        child.expect(PROMPT)
        return child

    yield call
    for child in running:
        child.close(force=True)


def ask(child: Any, message: str) -> tuple[str, str]:
    """Type a message; its answer as it was shown, and the status after it."""
    child.send(f"{message}\r")
    child.expect(r"\[([^\[\]]* prompt tokens read)\]")
    shown, status = child.before, child.match[1]
    child.expect(PROMPT)
    return shown, status


def num_read(status: str) -> tuple[int, int]:
    found = re.search(r"(\d+) of (\d+) prompt tokens read", status)
    assert found is not None
    return int(found[1]), int(found[2])


def test_the_second_turn_copies_the_first_and_reads_only_what_is_new(start: Start) -> None:
    child = start("--max-tokens", "40", "--policy", "fixed")
    _, first = ask(child, LIST)
    read, prompt = num_read(first)
    assert read == prompt
    shown, second = ask(child, "Repeat it once more.")
    read, prompt_now = num_read(second)
    assert read < 25 < prompt < prompt_now
    copied = re.search(r"(\d+)% copied", second)
    assert copied is not None
    assert int(copied[1]) > 20
    assert COPIED in shown
    child.send("/stats\r")
    child.expect("last answer: ")
    child.expect("2 answers of this conversation:")
    child.expect(r"accepted: (\d+)")
    assert int(child.match[1]) > 0
    child.expect(PROMPT)
    child.sendeof()
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_ctrl_c_stops_the_answer_and_not_the_chat(start: Start) -> None:
    # Token 2 ends an answer: without it there is always something to stop.
    child = start("--logit-bias.2", "-100")
    statuses = []
    for message in ("Name some birds.", "Name some more."):
        child.send(f"{message}\r")
        child.expect(SENT)
        child.expect(r"\w+ \w+")
        child.sendintr()
        child.expect(r"\(stopped\)")
        child.expect(r"\[([^\[\]]* prompt tokens read)\]")
        statuses.append(num_read(child.match[1]))
        child.expect(PROMPT)
    # What was written before it was stopped is part of the conversation.
    (first, all_of_it), (second, more) = statuses
    assert first == all_of_it
    assert second < 25 < more
    child.sendintr()
    child.expect("Ctrl-D or /quit ends the chat")
    child.expect(PROMPT)
    child.send("/quit\r")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_lines_history_and_what_goes_wrong(start: Start, tmp_path: Path) -> None:
    child = start("--max-tokens", "4", "--no-show-copied")
    child.send("one\\\rtwo\x1b\rthree\r")
    child.expect("prompt tokens read")
    child.expect(PROMPT)
    child.send("/load /no/such\r")
    child.expect("/no/such cannot be read")
    child.expect(PROMPT)
    saved = tmp_path / "saved.json"
    child.send(f"/save {saved}\r")
    child.expect("2 messages are in")
    assert "one\\ntwo\\nthree" in saved.read_text()
    child.expect(PROMPT)
    child.send("/help\r")
    child.expect("Alt-Enter, or a backslash at the end of a line")
    child.expect(PROMPT)
    # The last message but two, brought back with the arrow.
    child.send("\x1b[A" * 3 + "\x01\x0b/quit\r")
    child.expect(pexpect.EOF)
    history = tmp_path / "cache" / "chat-history"
    assert "+/help" in history.read_text()
    assert "+one\n+two\n+three" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_a_pipe_is_plain_text(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.chat.real_chat", "chat", "--max-tokens", "30"],
        input=f"{LIST}\nRepeat it.\n/stats\n",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "herons" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert "tok/s" not in done.stdout
    read, prompt = num_read(done.stderr)
    assert read < 25 < prompt
