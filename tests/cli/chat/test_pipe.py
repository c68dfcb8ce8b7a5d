"""A chat in a pipe: every line is a message, standard output holds answers and nothing else."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from copyahead.contracts import Part
from copyahead.engine import Engine
from copyahead.testing import FakeBackend
from tests.cli.chat.toys import SPEECH, speaker
from tests.cli.toys import Run, use_backend

Chat = Callable[..., tuple[int, str, str]]


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[FakeBackend]:
    """Where a test puts the backend that the chat is to have; a speaker otherwise."""
    given: list[FakeBackend] = []
    use_backend(monkeypatch, lambda: given[0] if given else speaker())
    return given


@pytest.fixture
def chat(cli: Run, backends: list[FakeBackend], monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Runs `copyahead chat` over lines: its status, standard output and standard error."""

    def call(lines: str | bytes, *arguments: str) -> tuple[int, str, str]:
        data = lines if isinstance(lines, bytes) else lines.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return cli("chat", *arguments)

    return call


def test_each_line_is_answered(chat: Chat) -> None:
    assert chat("Who?\n\n  \nAnd then?") == (0, f"{SPEECH}\n{SPEECH}\n", "")


def test_the_whole_conversation_is_read(chat: Chat, backends: list[FakeBackend]) -> None:
    prompts: list[str] = []

    def says(prompt: str) -> str:
        if prompt not in prompts:
            prompts.append(prompt)
        return "Yes."

    backends.append(speaker(says))
    chat("Who?\nTwo\\\nlines\n", "--system", "Be brief.")
    first = "[system]Be brief.[user]Who?[assistant]"
    assert prompts == [first, f"{first}Yes.[user]Two\nlines[assistant]"]


def test_flags_hold_for_every_answer(chat: Chat) -> None:
    assert chat("Who?\nAnd?\n", "--max-tokens", "6", "-q") == (0, "Twelve\nTwelve\n", "")
    _, out, err = chat("Who?\n", "--stop", "herons")
    assert (out, err) == ("Twelve grey \n", "")
    _, _, err = chat("Who?\n", "--max-tokens", "6")
    assert err == "(cut at --max-tokens 6)\n"


def test_thinking_is_left_out(chat: Chat, backends: list[FakeBackend]) -> None:
    backends.append(speaker(lambda _: "<think>Hm.</think>\n\nHerons."))
    assert chat("Who?\n") == (0, "Herons.\n", "")


def test_commands_work_and_say_nothing_on_standard_output(chat: Chat, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("Herons.\n")
    saved = tmp_path / "chat.json"
    lines = f"/file {notes}\nWho?\n/save {saved}\n/stats\n/quit\nnever read\n"
    status, out, err = chat(lines)
    assert (status, out) == (0, f"{SPEECH}\n")
    assert "notes.txt, 8 characters, goes with the next message" in err
    assert "last answer: " in err
    (asked, answered) = json.loads(saved.read_text())["messages"]
    assert asked == {"role": "user", "content": "notes.txt:\n```\nHerons.\n```\n\nWho?"}
    assert answered == {"role": "assistant", "content": SPEECH}


WRONG: dict[str, tuple[str | bytes, str]] = {
    "no command": ("/nonsense", "there is no command /nonsense: /help lists them"),
    "lookup": ("/lookup maybe", "/lookup must be followed by on or off, not 'maybe'"),
    "no policy": ("/policy", "/policy must be followed by a name"),
    "a policy": ("/policy nonsense", "policy 'nonsense' is unknown"),
    "no path": ("/file", "/file must be followed by the path of a file"),
    "no file": ("/file /no/such", "/no/such cannot be read (No such file or directory)"),
    "a device": ("/file /dev/zero", "/dev/zero is no file"),
    "a folder": ("/file /", "/ is no file"),
    "null": ("/file a\0b", "cannot be read (embedded null byte)"),
    "too much": ("/reset everything", "/reset stands alone: leave out 'everything'"),
    "load": ("/load /no/such", "/no/such cannot be read"),
    "save": ("/save /no/such/folder/x", "cannot be written (No such file or directory)"),
    "not text": (b"\xff\xfe", "line 1 is not UTF-8 text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_sentence_and_the_chat_goes_on(chat: Chat, name: str) -> None:
    given, expected = WRONG[name]
    line = given if isinstance(given, bytes) else given.encode()
    status, out, err = chat(line + b"\nWho?\n")
    assert (status, out) == (1, f"{SPEECH}\n")
    assert err.count("\n") == 1
    assert expected.lower() in err.lower()


def test_a_file_that_no_context_holds(chat: Chat, tmp_path: Path) -> None:
    large, latin = tmp_path / "large", tmp_path / "latin"
    large.write_bytes(b"x" * 3000)
    latin.write_bytes(b"\xe9t\xe9")
    empty = tmp_path / "empty"
    empty.touch()
    status, out, err = chat(f"/file {large}\n/file {latin}\n/file '{empty}'\nWho?\n")
    assert (status, out) == (1, f"{SPEECH}\n")
    assert "large has 3000 bytes, and at most 2048 are of use here" in err
    assert "latin is not UTF-8 text: convert it" in err
    assert "empty is empty" in err


def test_a_full_context_says_what_to_do(chat: Chat, backends: list[FakeBackend]) -> None:
    backends.append(speaker(context_size=100))
    long = "x" * 200
    status, out, err = chat(f"{long}\nWho?\nWho?\n/reset\nWho?\n")
    assert status == 1
    # What was too long is no part of the conversation, and after /reset there is room again.
    first, second, third = out.splitlines()
    assert (first, third) == (SPEECH, SPEECH)
    assert SPEECH.startswith(second)
    long_line, full, *_ = err.splitlines()
    assert long_line.startswith("copyahead: the conversation with this message is ")
    assert "the context holds 100: /reset begins a new one, and a larger --ctx" in long_line
    assert full.startswith("copyahead: the context of 100 tokens is full: /reset begins")


def test_a_pass_that_fails_ends_no_chat(chat: Chat, backends: list[FakeBackend]) -> None:
    def fail_on(number: int, _parts: Sequence[Part]) -> bool:
        return 5 <= number < 12

    backends.append(speaker(fail_on=fail_on))
    status, out, err = chat("Who?\n" * 10)
    assert status == 1
    assert 1 <= err.count("copyahead: ") < 9
    assert "Traceback" not in err
    assert out.endswith(f"{SPEECH}\n")


def test_lookup_and_policy(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, str | None]] = []
    submit = Engine.submit

    def noting(self: Engine, request: Any, *rest: Any) -> Any:
        seen.append((request.lookup, request.policy))
        return submit(self, request, *rest)

    monkeypatch.setattr(Engine, "submit", noting)
    lines = "a\n/lookup on\nb\n/policy window\nc\n/lookup off\nd\n"
    status, _, err = chat(lines, "--no-lookup", "--policy", "fixed")
    assert status == 0
    assert seen == [(False, "fixed"), (True, "fixed"), (True, "window"), (False, "window")]
    assert "lookup is on" in err


def test_save_and_load(chat: Chat, tmp_path: Path, backends: list[FakeBackend]) -> None:
    path = tmp_path / "a chat.json"
    lines = f"Who?\n/system Be brief.\n/policy window\n/save {path}\n"
    chat(lines, "--max-tokens", "6", "--temperature", "0.5", "--seed", "1", "--stop", "x")
    document = json.loads(path.read_text())
    assert document["system"] == "Be brief."
    assert document["options"]["policy"] == "window"
    assert document["options"]["sampling"]["temperature"] == 0.5
    assert (document["options"]["max_tokens"], document["options"]["stop"]) == (6, ["x"])
    prompts: set[str] = set()

    def says(prompt: str) -> str:
        prompts.add(prompt)
        return SPEECH

    backends.append(speaker(says))
    _, out, err = chat(f'/load "{path}"\nAnd?\n/save {path}\n')
    assert out == "Twelve\n"
    assert "2 messages were read from" in err
    assert "[system]Be brief.[user]Who?[assistant]Twelve[user]And?[assistant]" in prompts
    assert len(json.loads(path.read_text())["messages"]) == 4


def test_save_overwrites_nothing_but_saved_chats(chat: Chat, tmp_path: Path) -> None:
    path = tmp_path / "thesis.json"
    path.write_text('{"chapters": []}')
    status, _, err = chat(f"/save {path}\n")
    assert status == 1
    assert "thesis.json exists and is no saved chat: give another name" in err
    assert path.read_text() == '{"chapters": []}'
    assert list(tmp_path.iterdir()) == [path]


TURN = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
BAD_FILES: dict[str, tuple[Any, str]] = {
    "no JSON": ("{", "it is not JSON"),
    "a list": ([], "Expected `object`"),
    "no messages": ({}, "missing required field `messages`"),
    "a number": (
        {"messages": [{"role": "user", "content": 3}]},
        "messages[0].content: Expected `str`, got `int`",
    ),
    "a role": ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role: Invalid enum"),
    "another field": ({"messages": [], "mesages": []}, "unknown field `mesages`"),
    "two in a row": ({"messages": [TURN[0], TURN[0]]}, "messages[1].role must be 'assistant'"),
    "no answer": ({"messages": TURN[:1]}, "messages must end with an answer"),
    "a policy": ({"messages": [], "options": {"policy": "no"}}, "options.policy 'no' is unknown"),
    "a temperature": (
        {"messages": [], "options": {"sampling": {"temperature": 99}}},
        "temperature must be",
    ),
    "a stop": ({"messages": [], "options": {"stop": [""]}}, "options.stop[0]: Expected"),
    "a count": ({"messages": [], "options": {"max_tokens": -1}}, "options.max_tokens"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_chat_is_one_sentence(chat: Chat, tmp_path: Path, name: str) -> None:
    content, expected = BAD_FILES[name]
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    status, out, err = chat(f"Who?\n/load {path}\nWho?\n/stats\n")
    assert (status, out) == (1, f"{SPEECH}\n{SPEECH}\n")
    (line,) = [line for line in err.splitlines() if "bad.json" in line]
    assert expected in line
    # Nothing changed: the conversation went on.
    assert "2 answers of this conversation" in err
