"""How a policy is written beside a draft model."""

from __future__ import annotations

import pytest

from copyahead.drafters.factory import parse_mode
from copyahead.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "rule", "shown"),
    [
        ("priced", "priced", "priced+priced"),
        ("priced:credit=64", "agree", "priced:credit=64.0+agree"),
        ("window", "longer", "window+longer"),
        ("priced+off", "priced", "priced+off"),
        ("window+first", "priced", "window+first"),
        ("model", "priced", "model"),
        ("window", None, "window+off"),
    ],
)
def test_a_mode_is_read_and_written(text: str, rule: str, shown: str) -> None:
    mode = parse_mode(text, rule)  # type: ignore[arg-type]
    assert str(mode) == shown
    assert (mode.copies is None) == (text == "model")
    again = str(parse_mode(shown, "priced"))
    assert again == shown


@pytest.mark.parametrize(
    ("text", "rule", "sentence"),
    [
        ("model", None, "policy 'model' needs draft_model"),
        ("priced+agree", None, r"policy 'priced\+agree' needs draft_model"),
        ("priced+x", "priced", "there is no rule 'x'; take one of priced, agree, longer, first"),
        ("none+off", "priced", "policy 'none' is unknown"),
        ("window", "priced", "hybrid priced needs copies that know their chances"),
        ("fixed+priced", "agree", "take policy priced, or hybrid agree, longer or first"),
    ],
)
def test_a_wrong_mode_says_what_to_do(text: str, rule: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_mode(text, rule)  # type: ignore[arg-type]
