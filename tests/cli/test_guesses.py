"""Text from a pipe, `--chat`, `-q`, and a lone word that is no file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from copyahead.engine import Engine, Request
from copyahead.engine.handle import Handle, Sink
from tests.cli.toys import BYTES, LINE, Done, Run, backend, use_backend


def test_a_pipe_is_read_where_no_prompt_is_given(
    done: Done, engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "piped"
    path.write_text(LINE * 2)
    for arguments in ([], ["--json"]):
        with path.open() as piped:
            monkeypatch.setattr(sys, "stdin", piped)
            out, _ = done("generate", *arguments)
            assert LINE in out
    # A prompt, or a file, is enough: then what is piped in is left alone.
    with path.open() as piped:
        monkeypatch.setattr(sys, "stdin", piped)
        done("generate", "--prompt", LINE * 2)
        assert piped.buffer.read() == path.read_bytes()


def test_nothing_piped_is_nothing_to_continue(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        status, _, err = cli("generate")
    assert status == 2
    assert "or pipe the text in" in err


TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_chat_writes_the_text_in_the_models_own_format(
    done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[bytes] = []
    submit = Engine.submit

    def noting(self: Engine, request: Request, sink: Sink) -> Handle:
        prompts.append(b"".join(BYTES.token_bytes(token) for token in request.prompt))
        return submit(self, request, sink)

    monkeypatch.setattr(Engine, "submit", noting)
    chats = backend()
    chats.chat_template = TEMPLATE
    use_backend(monkeypatch, lambda: chats)
    done("generate", "--prompt", "Why?", "--chat", "--max-tokens", "2")
    assert prompts == [b"[user]Why?[assistant]"]
    _, err = done("generate", "--prompt", "Why?", "--max-tokens", "2")
    assert "--chat asks it" in err
    for silent in (["--chat"], ["-q"], ["--json"]):
        _, err = done("generate", "--prompt", "Why?", "--max-tokens", "2", *silent)
        assert "--chat" not in err
    _, err = done("generate", "--prompt", "Two\nlines", "--max-tokens", "2")
    assert "--chat" not in err


def test_q_silences_remarks_and_no_errors(cli: Run, engines: list[Engine]) -> None:
    assert cli("generate", "--prompt", LINE * 2, "-q") == (0, LINE * 2 + "\n", "")
    status, _, err = cli("generate", "--prompt", "x" * 5000, "-q")
    assert status == 2
    assert "prompt is 5000 tokens" in err
    assert "exactness: " in cli("generate", "--prompt", LINE * 2)[2]


GUESSES = {
    "a text": (["generate", "Once upon a time"], "--prompt 'Once upon a time'"),
    "a text for a server": (["serve", "Once upon a time"], "--prompt 'Once upon a time'"),
    "a word": (["generate", "hello"], "write copyahead generate --prompt hello"),
    "a model's name": (["serve", "qwen"], "neither a file nor a model's name: give the path"),
    "a name and a prompt": (["generate", "qwen", "--prompt", "a"], "file nor a model's name: give"),
    "nearly a name": (["chat", "smollm2-135n"], "did you mean SmolLM2-135M-Instruct"),
    "a name to compare": (["compare", "qwen"], "copyahead compare ./qwen.gguf"),
    "a path": (["generate", "./qwen.gguf", "--prompt", "a"], "model qwen.gguf does not exist"),
    "no command": (["hello"], "copyahead generate --prompt hello"),
    "nearly a command": (["generat"], "did you mean generate?"),
    "a text for a command": (["Once upon a time"], "--prompt 'Once upon a time'"),
    "a file for a command": ([__file__], "to serve that model write copyahead serve "),
}


@pytest.mark.parametrize("name", GUESSES)
def test_a_lone_word_is_taken_for_what_it_probably_is(
    cli: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    arguments, expected = GUESSES[name]
    status, out, err = cli(*arguments)
    assert (status, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1
