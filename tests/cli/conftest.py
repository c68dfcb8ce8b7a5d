"""What the tests of the commands share."""

from __future__ import annotations

import os

import pytest

from copyahead.cli import run
from copyahead.engine import Engine
from tests.cli.toys import Done, Run, backend, use_backend


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Commands get a fake engine; the list holds those that were made."""
    return use_backend(monkeypatch, backend)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process: its status, standard output and standard error."""
    for name in [name for name in os.environ if name.startswith("COPYAHEAD_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = run(arguments)
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def done(cli: Run) -> Done:
    """Runs a command that has to succeed: its standard output and standard error."""

    def call(*arguments: str) -> tuple[str, str]:
        status, out, err = cli(*arguments)
        assert status == 0, err
        return out, err

    return call
