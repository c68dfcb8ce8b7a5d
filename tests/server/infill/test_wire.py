"""How plugins say how tokens are chosen, and what that means here."""

from __future__ import annotations

from typing import Any

import pytest

from copyahead.server.infill.wire import InfillRequest

USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, USUAL),
        ({"temperature": 0.1, "top_k": -1}, {**USUAL, "temperature": 0.1, "top_k": 0}),
        ({"samplers": []}, OFF),
        ({"samplers": [], "temperature": 0}, {**OFF, "temperature": 0.0}),
        ({"samplers": ["top_k", "temperature"]}, {**OFF, "top_k": 40, "temperature": 0.8}),
        (
            {"samplers": ["top_k", "top_p", "infill"], "top_k": 40, "top_p": 0.99},
            {**OFF, "top_k": 40, "top_p": 0.99, "min_p": 0.5},
        ),
        ({"samplers": ["infill"], "min_p": 0.9}, {**OFF, "min_p": 0.5}),
        ({"samplers": ["infill", "min_p"], "min_p": 0.9}, {**OFF, "min_p": 0.9}),
        ({"samplers": ["penalties"], "repeat_penalty": 1.1}, {**OFF, "repetition_penalty": 1.1}),
        ({"samplers": ["top_k"], "repeat_penalty": 1.1, "top_k": 3}, {**OFF, "top_k": 3}),
        ({"seed": -1}, {**USUAL, "seed": None}),
        ({"seed": 7}, {**USUAL, "seed": 7}),
    ],
)
def test_options_are_those_that_llama_cpp_s_server_would_take(
    fields: dict[str, Any], chosen: dict[str, Any]
) -> None:
    body = InfillRequest.model_validate({"input_prefix": "", "input_suffix": "", **fields})
    found = body.chosen()
    expected = {"repetition_penalty": 1.0, "seed": None, **chosen}
    assert {name: getattr(found, name) for name in expected} == expected
