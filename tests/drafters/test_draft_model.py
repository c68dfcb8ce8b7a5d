"""Which draft models are refused, and what is said about one that is not."""

from __future__ import annotations

import pytest

from copyahead.drafters.draft_model import DraftModelCard, check_same_tokenizer
from copyahead.errors import ModelError
from copyahead.testing import TOY_PIECES, ToyTokenizer
from copyahead.types import Token


class Toy(ToyTokenizer):
    """With control tokens by their spelling."""

    def __init__(self, controls: dict[str, Token] | None = None, **changes: object) -> None:
        super().__init__(
            changes.pop("pieces", TOY_PIECES),  # type: ignore[arg-type]
            changes.pop("end_tokens", (0,)),  # type: ignore[arg-type]
        )
        self._controls = {"<|end|>": 0} if controls is None else controls
        self.control_texts = self._controls
        for name, value in changes.items():
            setattr(self, name, value)

    def encode(self, text: str, *, special: bool = True) -> list[Token]:
        return [self._controls[text]] if text in self._controls else []


OTHER = (*TOY_PIECES[:5], b"END", *TOY_PIECES[6:])


def test_the_same_tokenizer_passes() -> None:
    check_same_tokenizer(Toy(), Toy(), "small.gguf")


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"pieces": OTHER}, "its token 5 is 'END', and the model's is 'EN'"),
        ({"pieces": TOY_PIECES[:-1]}, "it has 19 tokens, and the model has 20"),
        ({"pieces": (*TOY_PIECES, b"more")}, "it has 21 tokens, and the model has 20"),
        ({"adds_bos": True, "bos_text": ""}, "it begins a prompt with ''"),
        ({"bos_text": "<s>"}, "its bos_text is '<s>', and the model's is ''"),
        ({"eos_text": "</s>"}, "its eos_text is '</s>', and the model's is ''"),
        ({"end_tokens": (0, 3)}, "token 3 ends its texts, and in the model it does not"),
        ({"end_tokens": ()}, "token 0 does not end its texts, and in the model it does"),
        ({"controls": {}}, "it lacks the control token '<|end|>'"),
        ({"controls": {"<|end|>": 0, "<|x|>": 1}}, "it has the control token '<|x|>'"),
        ({"controls": {"<|end|>": 1}}, r"it reads '<|end|>' as [1], and the model as [0]"),
    ],
)
def test_the_first_difference_is_named(changes: dict[str, object], difference: str) -> None:
    with pytest.raises(ModelError) as found:
        check_same_tokenizer(Toy(), Toy(**changes), "small.gguf")  # type: ignore[arg-type]
    text = str(found.value)
    assert text.startswith("draft_model small.gguf has another tokenizer: ")
    assert difference in text
    assert "take a draft model of the same family" in text


def test_a_card_says_what_it_costs() -> None:
    card = DraftModelCard(
        name="small.gguf", memory_bytes=135_000_000, draft_steps=0.123, read_steps=4.51
    )
    assert str(card) == (
        "small.gguf, T_draft(1) = 0.12 steps, 135 MB; 1,000 tokens of a prompt cost it 4.5 steps"
    )
