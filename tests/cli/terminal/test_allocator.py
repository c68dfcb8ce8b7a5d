"""Which allocator a server has its small objects from."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from copyahead.cli.terminal.allocator import use_that_of_the_system

PROGRAM = """
import os, sys
from copyahead.cli.terminal.allocator import use_that_of_the_system
print("begun", flush=True)
use_that_of_the_system()
chosen = os.environ.get("PYTHONMALLOC"), os.environ.get("MALLOC_ARENA_MAX")
print(*chosen, sys.argv[1:], flush=True)
"""


def said(**environment: str) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, "serve", "--port", "0"]
    names = "PYTHONMALLOC", "MALLOC_ARENA_MAX"
    environment = {k: v for k, v in os.environ.items() if k not in names} | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back")
def test_a_program_starts_over_once_with_the_same_arguments() -> None:
    assert said() == ["begun", "begun", "malloc 1 ['serve', '--port', '0']"]
    assert said(MALLOC_ARENA_MAX="3")[-1] == "malloc 3 ['serve', '--port', '0']"


def test_a_choice_that_was_made_holds() -> None:
    assert said(PYTHONMALLOC="pymalloc") == ["begun", "pymalloc None ['serve', '--port', '0']"]


def test_a_system_that_starts_no_program_anew_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    tried: list[object] = []

    def refuse(*arguments: object) -> None:
        tried.append(arguments)
        raise OSError("not here")

    monkeypatch.setattr(sys, "argv", ["copyahead"])
    monkeypatch.setattr(os, "execve", refuse)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2"))
    use_that_of_the_system()
    assert len(tried) == 1


def test_a_program_that_calls_this_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it started itself over"))
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2"))
    monkeypatch.setattr(sys, "argv", ["copyahead", "serve", "--not", "of this process"])
    use_that_of_the_system()
