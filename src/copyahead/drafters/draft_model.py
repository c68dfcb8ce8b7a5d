"""A draft model beside the model that it drafts for: may it stand there, and what does it cost?"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from copyahead.contracts import Tokenizer
from copyahead.errors import ModelError

_FIX = "take a draft model of the same family, converted from the same tokenizer"


class DraftModelCard(msgspec.Struct, frozen=True):
    """What a user is to know about a draft model that was loaded."""

    name: str
    """Its file, without folders."""
    memory_bytes: int
    """Weights and KV cache."""
    draft_steps: float
    """T_draft(1): what a pass of one row takes, in passes of the model itself."""
    read_steps: float
    """What reading 1,000 tokens of a prompt takes, in the same unit."""
    longest_prompt: int | None = None
    """Tokens of the longest prompt that the credit pays for at first; None: nothing is charged."""

    def __str__(self) -> str:
        text = (
            f"{self.name}, T_draft(1) = {self.draft_steps:.2f} steps, "
            f"{self.memory_bytes / 1e6:.0f} MB; 1,000 tokens of a prompt cost it "
            f"{self.read_steps:.1f} steps"
        )
        if self.longest_prompt is None:
            return text
        return f"{text}, and the credit pays for {self.longest_prompt:,} at first"


def check_same_tokenizer(target: Tokenizer, draft: Tokenizer, name: str) -> None:
    """Raise ModelError, with the first difference, unless ids mean the same in both models.

    `name` is the draft model's. Rows at the end that only pad a file may differ.
    """
    difference = next(_differences(target, draft), None)
    if difference is not None:
        raise ModelError(f"draft_model {name} has another tokenizer: {difference}; {_FIX}")


def _differences(target: Tokenizer, draft: Tokenizer) -> Iterator[str]:
    for token in range(min(target.vocab_size, draft.vocab_size)):
        theirs, ours = draft.token_bytes(token), target.token_bytes(token)
        if theirs != ours:
            yield f"its token {token} is {_shown(theirs)}, and the model's is {_shown(ours)}"
    if target.vocab_size != draft.vocab_size:
        yield f"it has {draft.vocab_size} tokens, and the model has {target.vocab_size}"
    if draft.adds_bos != target.adds_bos:
        begins = "begins" if draft.adds_bos else "does not begin"
        yield f"it {begins} a prompt with {draft.bos_text!r}, and the model differs"
    for what in ("bos_text", "eos_text"):
        theirs_text, ours_text = getattr(draft, what), getattr(target, what)
        if theirs_text != ours_text:
            yield f"its {what} is {theirs_text!r}, and the model's is {ours_text!r}"
    if draft.end_tokens != target.end_tokens:
        only = sorted(draft.end_tokens ^ target.end_tokens)[0]
        ends, other = ("ends", "does not") if only in draft.end_tokens else ("does not end", "does")
        yield f"token {only} {ends} its texts, and in the model it {other}"
    yield from _control_differences(target, draft)


def _control_differences(target: Tokenizer, draft: Tokenizer) -> Iterator[str]:
    """Control tokens stand for no bytes: they are compared by how they are spelled."""
    for text in sorted({*target.control_texts, *draft.control_texts}):
        if (text in target.control_texts) != (text in draft.control_texts):
            has = "it has" if text in draft.control_texts else "it lacks"
            yield f"{has} the control token {text!r}, and the model differs"
        theirs, ours = draft.encode(text), target.encode(text)
        if theirs != ours:
            yield f"it reads {text!r} as {theirs}, and the model as {ours}"


def _shown(data: bytes) -> str:
    return repr(data.decode("utf-8", "backslashreplace")) if data else "a control token or none"
