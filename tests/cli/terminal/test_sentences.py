"""Messages name flags, numbers read as people write them, and the help is sorted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from copyahead.cli.terminal.output import number
from copyahead.cli.terminal.sentences import with_flags
from copyahead.ranges import Range
from tests.cli.toys import Done, Run

SENTENCES = {
    "max tokens": (["generate", "--prompt", "a", "--max-tokens", "-1"], "--max-tokens must be 0"),
    "one word": (["generate", "--prompt", "a", "--seed", "-1"], "--seed must be from 0"),
    "two": (
        ["probe", "--exact", "--kv-type", "f16", "--threads", "2"],
        "--exact and --kv-type f16 exclude each other",
    ),
    "a mapping": (["generate", "--prompt", "a", "--logit-bias.5", "101"], "--logit-bias.5 must be"),
    "a policy's option": (
        ["compare", "--policy", "window:max_draft_tokens=99"],
        "policy window has no option 'max_draft_tokens'",
    ),
    "a server's": (["serve", "--max-queue", "-1"], "--max-queue must be"),
    "the file itself": (["generate", "--file", "/no/such/file"], "file /no/such/file cannot be"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_messages_name_flags(cli: Run, name: str) -> None:
    arguments, expected = SENTENCES[name]
    status, _, err = cli(*arguments)
    assert status == 2
    assert err.startswith(f"copyahead: {expected}")


def test_what_is_part_of_another_word_stays() -> None:
    flags = ["--max-tokens", "--policy"]
    assert (
        with_flags("my_max_tokens=3 and max_tokens=3", flags) == "my_max_tokens=3 and max_tokens=3"
    )
    assert with_flags("take max_tokens", flags) == "take --max-tokens"
    assert with_flags("policy fixed: max_tokens must be 1", flags).endswith(
        ": max_tokens must be 1"
    )


def test_large_numbers_are_written_in_full(done: Done) -> None:
    assert number(2.0**32 - 1) == "4294967295"
    assert number(0.25) == "0.25"
    assert str(Range(0.0, 4294967295.0)) == "from 0 to 4294967295"
    out, _ = done("policies")
    assert not re.search(r"\de[+]", out)


COMMANDS = (
    "chat", "serve", "generate", "compare", "demo", "models", "probe", "replay", "record-drafts",
    "policies", "vllm-check", "warmup",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_an_example_and_groups(done: Done, command: str) -> None:
    out, _ = done(command, "--help")
    assert f"Example: copyahead {command}" in out
    groups = re.findall(r"╭─ (\w+)", out)
    expected = ["Model", "Sampling", "Drafting", "Output"]
    assert [group for group in groups if group in expected] == [
        group for group in expected if group in groups
    ]
    loading = ("chat", "serve", "generate", "compare", "demo", "probe")
    assert ("Model" in groups) == (command in loading)
    assert "()" not in out


def test_the_version_has_a_short_flag(done: Done) -> None:
    assert done("-V") == done("--version")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(
    done: Done, shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    out, _ = done("--install-completion", "--shell", shell)
    assert out
    scripts = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("max-draft-tokens" in path.read_text() for path in scripts)
